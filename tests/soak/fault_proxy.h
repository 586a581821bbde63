// A TCP proxy that does harm to one byte: between two hosts of a job, which it does not know.
//
// It stands before a rank's *door* (the listener that other hosts call): DoorStore publishes the
// proxy's address in place of the door's. So all connections to that rank go through it, lines of
// relays and data alike. Bytes are counted over all of them by direction, or those of frames of
// messages alone, and the connection that carries the byte of the *fault* has it. It may as well
// stand before the store where ranks meet.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "net/fd.h"
#include "net/tcp.h"
#include "own_store.h"

namespace tutti::soak {

enum class Harm : std::uint8_t {
  none,
  reset,    ///< RST to both ends, when what came before has been acknowledged
  end,      ///< both ends read the end of the stream behind what came before
  delay,    ///< what follows comes later, in order
  garbage,  ///< that byte is another one
};

struct Fault {
  Harm harm = Harm::none;
  bool is_inward = true;     ///< among what goes to the rank behind the proxy
  std::uint64_t offset = 0;  ///< of the byte
  std::chrono::milliseconds delay{0};
  bool is_of_messages = false;  ///< handshakes, relays and collectives do not count
};

class FaultProxy {
 public:
  /// Listens at a port of its own and calls `target`, HOST:PORT, for everybody who comes.
  FaultProxy(const std::string& target, const Fault& fault);
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  std::string address() const;
  std::uint64_t passed(bool is_inward) const noexcept { return passed_[is_inward ? 1 : 0].load(); }
  bool has_struck() const noexcept { return has_struck_.load(); }
  /// The rank that has called by the connection that was struck; -1: it had not said so, or none
  /// was struck.
  int struck_caller() const noexcept { return struck_caller_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  /// What has been read from one end and has yet to be written to the other.
  struct Pipe {
    std::vector<std::byte> bytes;
    std::size_t written = 0;
    std::uint64_t read = 0;  ///< so far
    bool has_ended = false;  ///< its source has
    bool is_told = false;    ///< and its target knows
    Clock::time_point held_until = {};
  };
  struct Pair {
    net::Fd ends[2];               ///< of the caller, of the rank
    Pipe pipes[2];                 ///< by the end that they read from
    std::vector<std::byte> hello;  ///< what has come of the caller's
    bool is_over = false, is_drained = false;
  };

  void run();
  void accept();
  void move(Pair& pair, int from);
  void read(Pair& pair, int from);
  std::uint64_t uncounted(const Pair& pair, int from, std::uint64_t come) const;
  void strike(Pair& pair, int from, std::size_t at);
  static bool write(Pair& pair, int from);
  void reset(Pair& pair, int from);

  const net::TcpAddress target_;
  const Fault fault_;
  net::Fd listener_, stop_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::atomic<std::uint64_t> passed_[2] = {};  ///< by the end that they come from
  std::atomic<bool> has_struck_{false};
  std::atomic<int> struck_caller_{-1};
  std::thread thread_;
};

/// A store whose user's door has a proxy before it.
class DoorStore final : public test::OwnStore {
 public:
  DoorStore(std::shared_ptr<Store> base, const Fault& fault)
      : OwnStore(std::move(base)), fault_(fault) {}

  void set(std::string_view key, std::string_view value, Timeout timeout) override;

  /// Null until the door has been told of.
  const FaultProxy* proxy() const noexcept { return proxy_.get(); }

 private:
  Fault fault_;
  std::unique_ptr<FaultProxy> proxy_;
};

}  // namespace tutti::soak
