// The server's side of the store protocol, without sockets: bytes in, bytes out.
//
// A *hall* is one table and everybody who speaks with it. A *guest* is one connection: a decoder
// for what comes, a queue for what goes, and its *waits*, the calls that have no answer yet. A wait
// is kept below one key that it lacks; when that key is set, the wait looks for the next. A guest
// may leave a *will*: what the hall writes once the guest has gone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "net/frame.h"
#include "net/security.h"
#include "store/call.h"
#include "store/table.h"

namespace tutti::store {

inline constexpr std::uint32_t kGreetingMagic = 0x53545554;  // "TUTS"
inline constexpr std::uint32_t kProtocolVersion = 5;
inline constexpr std::size_t kMaxGreetingBytes = 64;
inline constexpr std::size_t kMaxWaits = 1024;  ///< of one guest
/// Guests who do not take their answers are not listened to beyond this.
inline constexpr std::size_t kMaxUnsentBytes = 2 * kMaxCallBytes;

/// What a client says first.
struct Hello {
  int rank = -1;  ///< -1: not a rank
  int world_size = 0;
  std::uint64_t job = 0;  ///< hash of the job's name where the launcher gives one, else 0
  /// Hash of the world's name, 0: it has none. Of a client of make_tcp_store: random, the same
  /// however often it connects.
  std::uint64_t world = 0;
  std::uint32_t version = kProtocolVersion;
};
/// The key of connections over TCP: of the secret, where the level has one.
net::Key key_of_store(const net::Security& security);

/// Where the server of a store says why it has turned away a process that called itself that rank.
std::string turned_away_key(int rank);

/// kUnsupported when the client speaks another version of the protocol.
std::optional<Error> check_version(const Hello& hello);
net::Frame encode(const Hello& hello);
/// The id of a frame of kind failed with which either end says that it has got a changed one.
inline constexpr std::uint64_t kIdOfChanged = 0;
/// `whose`: "the connection of rank 1 to the store".
Error changed_error(const std::string& whose);
/// What the server answers: that it is `server`, or why the client is not welcome.
net::Frame encode_welcome(const std::optional<Error>& refusal, bool with_descriptor,
                          std::string_view server = {});

class Hall;

class Guest {
 public:
  explicit Guest(Hall& hall) : hall_(hall) {}
  ~Guest();
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  /// From now on every frame has a tag, both ways.
  void protect(const net::FrameKeys& keys);
  /// Takes bytes and performs what they ask for, as long as wants_more(); call it with none to go
  /// on. False: malformed; close the connection.
  bool receive(std::span<const std::byte> bytes);
  /// The greeting, once it has come whole; calls are looked at only after welcome().
  const std::optional<Hello>& hello() const noexcept { return hello_; }
  void welcome() noexcept { is_welcome_ = true; }
  bool is_welcome() const noexcept { return is_welcome_; }

  /// Until it is taken back.
  const std::optional<Will>& will() const noexcept { return will_; }
  /// The connection ends because a frame on it was changed on its way, as one of both ends says.
  bool is_changed() const noexcept { return is_changed_; }
  /// The connection ends because the guest's host has fallen silent.
  void has_fallen_silent() noexcept { is_silent_ = true; }

  net::SendQueue& queue() noexcept { return queue_; }
  bool has_unsent() const noexcept { return !queue_.empty(); }
  bool wants_more() const noexcept { return queue_.pending() < kMaxUnsentBytes; }
  /// So many answers to waits are unsent that the connection is to be closed.
  bool is_flooded() const noexcept { return queue_.pending() > 4 * kMaxUnsentBytes; }

 private:
  friend class Hall;
  struct Wait {
    Call call;
    std::size_t lacks = 0;  ///< index of the key it is kept below
    const std::string& key() const { return call.keys[lacks]; }
  };
  bool take_greeting(const net::Frame& frame);
  bool take_call(const net::Frame& frame);
  void cancel(std::uint64_t id);

  Hall& hall_;
  net::FrameDecoder decoder_{kMaxGreetingBytes};
  net::SendQueue queue_;
  std::optional<Hello> hello_;
  bool is_welcome_ = false;
  bool is_protected_ = false;
  bool is_changed_ = false;
  std::map<std::uint64_t, Wait> waits_;
  std::optional<Will> will_;
  bool is_silent_ = false;
};

class Hall {
 public:
  /// From now on every call fails with `reason`; those who wait are answered so at once.
  void fail(const Error& reason);
  /// The server's own entry, for whom it may concern.
  void put(const std::string& key, const std::string& value);
  std::size_t guest_count() const noexcept { return guests_.size(); }
  /// From now on guests go because the hall closes: their wills are void.
  void close() noexcept { is_closing_ = true; }

 private:
  friend class Guest;
  using Waiting = std::pair<Guest*, std::uint64_t>;

  /// Answers the call or keeps it as a wait of `guest`.
  void perform(Guest& guest, Call call, std::uint64_t id);
  void keep(Guest& guest, std::uint64_t id, Guest::Wait wait);
  /// Looks again at those who lack one of `keys`.
  void wake(std::span<const std::string> keys);
  void forget(Guest& guest, std::uint64_t id, const std::string& key);
  Answer take_will(Guest& guest, const Call& call);
  void execute(const Will& will, const std::string& text);

  Table table_;
  std::unordered_map<std::string, std::vector<Waiting>> lacking_;
  std::unordered_set<Guest*> guests_;
  std::optional<Error> failure_;
  bool is_closing_ = false;
};

}  // namespace tutti::store
