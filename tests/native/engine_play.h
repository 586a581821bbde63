// Calls played by all ranks of an engine in one thread, without clock or sleep: where they end is
// known exactly, because a round in which nobody has moved would repeat itself for ever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine_ranks.h"

namespace tutti::native::test {

/// One operation of all ranks on bytes.
struct Call {
  Op op = Op::barrier;
  std::size_t byte_count = 0;
  int root = -1;          ///< of a broadcast
  bool in_place = false;  ///< of an all_reduce
  std::size_t shift = 0;  ///< where the input begins, so that calls have different data
};
std::string describe(const Call& call);

/// What the ranks put in and what comes out, so that a result is checked by one comparison. The
/// data repeat after a prime number of bytes: no two places that an engine could mistake for each
/// other hold the same.
class Inputs {
 public:
  static constexpr std::size_t kPeriod = 1021;
  Inputs(int ranks, std::size_t most_bytes);
  const std::byte* of(int rank, const Call& call) const;
  /// What `call` leaves at every rank that receives.
  const std::byte* result(const Call& call) const;

 private:
  std::vector<std::byte> data_, sums_;
};

/// Which rank is next.
enum class Order { upwards, downwards, random, lowest_that_can };
inline constexpr std::array kOrders{Order::upwards, Order::downwards, Order::random,
                                    Order::lowest_that_can};

class Play {
 public:
  Play(int ranks, const EngineTuning& tuning, std::size_t most_bytes,
       Tuning planted = Tuning::sound);

  /// All ranks run all calls, as far ahead of each other as the engine lets them. Returns what went
  /// wrong: a wrong result, or nobody can step.
  std::string run(std::span<const Call> calls, Order order, std::mt19937_64& random);
  /// Calls that all ranks have ended.
  std::size_t calls() const { return calls_; }

 private:
  struct Player {
    std::unique_ptr<Rank> rank;
    Request request;
    std::vector<std::byte> output;
    std::size_t next = 0;
    bool busy = false;
  };

  void begin(Player& player, const Call& call);
  bool step(Player& player, std::span<const Call> calls);
  bool round(Order order, std::span<const Call> calls, std::mt19937_64& random);
  void check(const Player& player, const Call& call);

  const SharedMemory memory_;
  const Inputs inputs_;
  std::vector<Player> players_;
  std::vector<std::size_t> turns_;
  std::string wrong_;
  std::size_t calls_ = 0;
};

}  // namespace tutti::native::test
