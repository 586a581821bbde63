#include "control/board/line.h"

#include <algorithm>

namespace tutti::control {

std::vector<WorldRank> read_set(const RankWords& words, int world_size) {
  std::vector<WorldRank> ranks;
  for (int first = 0; first < world_size; first += 64) {
    std::uint64_t word =
        words[static_cast<std::size_t>(first) / 64].load(std::memory_order_acquire);
    for (; word != 0; word &= word - 1) {
      const int rank = first + std::countr_zero(word);
      if (rank < world_size) ranks.emplace_back(rank);
    }
  }
  return ranks;
}

void write_set(RankWords& words, const std::vector<WorldRank>& ranks, int world_size) noexcept {
  for (int first = 0; first < world_size; first += 64) {
    std::uint64_t word = 0;
    for (const WorldRank rank : ranks) {
      if (rank.value >= first && rank.value < std::min(first + 64, world_size))
        word |= std::uint64_t{1} << (rank.value - first);
    }
    words[static_cast<std::size_t>(first) / 64].store(word, std::memory_order_release);
  }
}

std::optional<Shown> SharedShown::read() const noexcept {
  Shown value;
  value.seq = words_[0].load(std::memory_order_acquire);
  if (value.seq == 0) return std::nullopt;
  value.chain = words_[1].load(std::memory_order_acquire);
  value.count = words_[2].load(std::memory_order_acquire);
  value.factor = std::bit_cast<double>(words_[3].load(std::memory_order_acquire));
  const std::uint64_t packed = words_[4].load(std::memory_order_acquire);
  if (words_[0].load(std::memory_order_relaxed) != value.seq) return std::nullopt;
  value.op = static_cast<std::uint8_t>(packed);
  value.dtype = static_cast<std::uint8_t>(packed >> 8);
  value.reduce = static_cast<std::uint8_t>(packed >> 16);
  value.site = static_cast<std::uint8_t>(packed >> 24);
  value.root_or_peer = static_cast<std::int32_t>(packed >> 32);
  return value;
}

}  // namespace tutti::control
