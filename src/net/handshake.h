// What both ends of a TCP connection say to each other first: who they are, and a proof that they
// know the key of the connection. Without sockets: bytes in, bytes out, of fixed sizes.
//
//     caller -> called   hello    level, claim, a random nonce
//     called -> caller   reply    the same of the other end, and its proof
//     caller -> called   confirm  its proof
//
// Who leaves a *note* waits for no reply: the confirm follows the hello at once. It proves who has
// said it, not when, and may be heard again: whoever hears notes remembers their nonces. Its frames
// bear tags at every level, so that nobody says more on it who has merely heard one.
//
// The *claim* says what the connection is for, from whom and to whom. A *proof* is made with a key
// of its own for each direction, over all that both have said: it counts for this connection only,
// and for nobody who has merely heard one. Each end reads no more than it wants, and nothing before
// the other has proved who it is. A level or version that is not the same at both ends is said in
// the reply, which then proves nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "net/keys.h"
#include "net/security.h"

namespace tutti::net {

inline constexpr std::uint32_t kHandshakeVersion = 1;
inline constexpr std::size_t kHelloBytes = 80;
inline constexpr std::size_t kProofBytes = sizeof(Digest);
inline constexpr std::size_t kReplyBytes = kHelloBytes + kProofBytes;

enum class Purpose : std::uint32_t {
  store,
  line,  ///< of the relay of a host
  data,  ///< one lane of a group
  note,
};
/// Whether the called end says nothing, and the proof is over the hello alone.
constexpr bool is_one_way(Purpose purpose) noexcept { return purpose == Purpose::note; }
/// Whether what follows the handshake of a connection between ranks is frames with tags. What hosts
/// tell each other always is: a changed report would be waited on, and a changed vote obeyed.
constexpr bool has_frame_tags(Level level, Purpose purpose) noexcept {
  return level == Level::integrity || purpose != Purpose::data;
}

/// Ranks are of the world; -1: none, or not known.
struct Claim {
  Purpose purpose = Purpose::store;
  int from = -1, to = -1;
  std::uint64_t group = 0;  ///< data
  std::uint32_t lane = 0;   ///< data
  bool operator==(const Claim&) const = default;
};

class Handshake {
 public:
  using Nonce = std::array<std::byte, 32>;
  enum class Outcome : std::uint8_t {
    going_on,
    proved,
    strange,        ///< the other end speaks something else
    other_version,  ///< see other_version()
    other_level,    ///< see other_level()
    refused,        ///< by the called end: the claim is not for it
    unproved,       ///< the other end does not know the key
  };
  /// The key of a connection for this claim; none: it is refused.
  using KeyFor = std::function<std::optional<Key>(const Claim&)>;

  static Handshake calling(const Claim& claim, Level level, const Key& key);
  static Handshake called(Level level, KeyFor key_for);

  /// So many bytes it takes now, and not one more; 0: none.
  std::size_t wants() const noexcept;
  /// At most as many as it wants.
  void receive(std::span<const std::byte> bytes);
  /// What is to be sent, also when it is over: the other end is to know why.
  std::span<const std::byte> unsent() const noexcept;
  void has_sent(std::size_t byte_count) noexcept { sent_ += byte_count; }

  Outcome outcome() const noexcept { return outcome_; }
  /// Whether the other end has said who it is; what it has said is proved only by the outcome.
  bool has_claim() const noexcept { return has_claim_; }
  const Claim& claim() const noexcept { return claim_; }
  Level other_level() const noexcept { return other_level_; }
  std::uint32_t other_version() const noexcept { return other_version_; }
  /// Once it is proved.
  FrameKeys frame_keys() const;
  /// Once it is proved: the caller's, which no caller chooses twice.
  Nonce nonce() const noexcept;

 private:
  struct Greeting;

  Handshake(bool is_caller, Level level) noexcept : is_caller_(is_caller), level_(level) {}
  bool awaits_greeting() const noexcept { return is_caller_ || !has_claim_; }
  void say(const Greeting& greeting);
  void hear_hello();
  void hear_reply();
  void hear_confirm();
  Outcome judge(const std::optional<Greeting>& greeting);
  void agree(const Key& key);
  Digest proof(bool of_caller) const;

  bool is_caller_;
  Level level_;
  Outcome outcome_ = Outcome::going_on;
  Claim claim_ = {};
  bool has_claim_ = false;
  Level other_level_ = Level::none;
  std::uint32_t other_version_ = 0;
  KeyFor key_for_ = {};                               // of the called
  Key key_ = {};                                      // of the caller
  std::optional<Key> session_ = {};                   // of this connection
  std::array<std::byte, 2 * kHelloBytes> said_ = {};  // hello and reply, less its proof, if any
  std::array<std::byte, kReplyBytes> in_ = {}, out_ = {};
  std::size_t due_ = 0, received_ = 0;  // of what is heard now
  std::size_t to_send_ = 0, sent_ = 0;
};

}  // namespace tutti::net
