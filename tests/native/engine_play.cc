#include "engine_play.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tutti::native::test {

std::string describe(const Call& call) {
  if (call.op == Op::barrier) return "barrier";
  const std::string what = std::string(name_of(call.op)) + " of " + std::to_string(call.byte_count);
  return call.op == Op::broadcast ? what + " from " + std::to_string(call.root) : what;
}

// ---- data --------------------------------------------------------------------------------------

Inputs::Inputs(int ranks, std::size_t most_bytes) {
  std::mt19937_64 random(0x5eed);
  std::array<std::byte, kPeriod> period, sum;
  for (std::byte& each : period) each = static_cast<std::byte>(random());
  for (std::size_t at = 0; at < kPeriod; ++at) {
    unsigned total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      total += static_cast<unsigned>(period[(at + static_cast<std::size_t>(rank)) % kPeriod]);
    }
    sum[at] = static_cast<std::byte>(total);
  }
  const auto repeat = [&](const std::array<std::byte, kPeriod>& one, std::vector<std::byte>& many) {
    const std::size_t least = most_bytes + kPeriod + static_cast<std::size_t>(ranks);
    while (many.size() < least) many.insert(many.end(), one.begin(), one.end());
  };
  repeat(period, data_);
  repeat(sum, sums_);
}

const std::byte* Inputs::of(int rank, const Call& call) const {
  return data_.data() + static_cast<std::size_t>(rank) + call.shift % kPeriod;
}

const std::byte* Inputs::result(const Call& call) const {
  return call.op == Op::broadcast ? of(call.root, call) : sums_.data() + call.shift % kPeriod;
}

// ---- ranks -------------------------------------------------------------------------------------

Play::Play(int ranks, const EngineTuning& tuning, std::size_t most_bytes, Tuning planted)
    : memory_(ranks, tuning),
      inputs_(ranks, most_bytes),
      players_(static_cast<std::size_t>(ranks)),
      turns_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) {
    Player& player = players_[static_cast<std::size_t>(rank)];
    player.rank = std::make_unique<Rank>(memory_, rank, planted);
    player.output.resize(most_bytes);
  }
  std::iota(turns_.begin(), turns_.end(), std::size_t{0});
}

void Play::begin(Player& player, const Call& call) {
  Rank& rank = *player.rank;
  const std::byte* input = inputs_.of(rank.rank(), call);
  std::byte* const output = player.output.data();
  if (call.in_place) {
    std::memcpy(output, input, call.byte_count);
    input = output;
  }
  if (call.op == Op::barrier) {
    player.request = rank.barrier();
  } else {
    player.request = rank.all_reduce(DType::u8, ReduceOp::sum, input, output, call.byte_count);
    player.request.op = call.op;
    player.request.root = call.root;
  }
  rank.begin(player.request);
  player.busy = true;
}

void Play::check(const Player& player, const Call& call) {
  if (call.op == Op::barrier || player.rank->rank() == call.root || call.byte_count == 0) return;
  if (std::memcmp(player.output.data(), inputs_.result(call), call.byte_count) == 0) return;
  wrong_ = "rank " + std::to_string(player.rank->rank()) + " has a wrong result of call " +
           std::to_string(player.next) + ", " + describe(call);
}

/// Lets a rank do all it can; whether that was anything.
bool Play::step(Player& player, std::span<const Call> calls) {
  bool moved = false;
  while (player.next < calls.size()) {
    const Call& call = calls[player.next];
    if (!player.busy) begin(player, call);
    const bool done = player.rank->engine().step();
    moved = player.rank->engine().take_moved() || done || moved;
    if (!done) break;
    player.busy = false;
    check(player, call);
    ++player.next;
  }
  return moved;
}

bool Play::round(Order order, std::span<const Call> calls, std::mt19937_64& random) {
  if (order == Order::random) std::shuffle(turns_.begin(), turns_.end(), random);
  bool moved = false;
  for (const std::size_t turn : turns_) {
    const std::size_t rank = order == Order::downwards ? players_.size() - 1 - turn : turn;
    moved = step(players_[rank], calls) || moved;
    if (moved && order == Order::lowest_that_can) return true;
  }
  return moved;
}

std::string Play::run(std::span<const Call> calls, Order order, std::mt19937_64& random) {
  for (Player& player : players_) player.next = 0;
  if (order != Order::random) std::sort(turns_.begin(), turns_.end());
  while (wrong_.empty() && round(order, calls, random)) {
  }
  calls_ += calls.size();
  for (const Player& player : players_) {
    if (!wrong_.empty() || player.next == calls.size()) continue;
    wrong_ = "nobody can step: rank " + std::to_string(player.rank->rank()) + " waits in call " +
             std::to_string(player.next) + ", " + describe(calls[player.next]);
  }
  return wrong_;
}

}  // namespace tutti::native::test
