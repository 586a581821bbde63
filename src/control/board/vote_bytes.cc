#include "control/board/vote_bytes.h"

#include <algorithm>

#include "control/board/layout.h"

namespace tutti::control {

namespace {

struct VoteWord {
  std::uint64_t term = 0;  // its lower 32 bits
  std::uint32_t slot = 0;
  std::uint32_t version = 0;  // 20 bits, never 0

  static constexpr std::uint32_t kVersions = 0xfffff;
  static VoteWord unpack(std::uint64_t word) noexcept {
    return {word >> 32, static_cast<std::uint32_t>(word >> 20 & 0xfff),
            static_cast<std::uint32_t>(word & kVersions)};
  }
  std::uint64_t pack() const noexcept {
    return term << 32 | std::uint64_t{slot} << 20 | std::uint64_t{version};
  }
};

}  // namespace

std::optional<SlotIndex> VoteBytes::relay_on(const Board& board) noexcept {
  const std::uint64_t word = board.header().vote.load();
  const VoteWord found = VoteWord::unpack(word);
  if (word == 0 || found.slot >= static_cast<std::uint32_t>(board.slot_count()))
    return std::nullopt;
  return SlotIndex(static_cast<int>(found.slot));
}

std::uint64_t VoteBytes::term() const noexcept { return VoteWord::unpack(word_).term; }

std::optional<std::string> VoteBytes::look() {
  word_ = board_.header().vote.load();
  if (word_ == 0) return std::string();
  const VoteWord word = VoteWord::unpack(word_);
  if (word.slot >= static_cast<std::uint32_t>(board_.slot_count())) return std::nullopt;
  const auto& place =
      board_.relay_area(SlotIndex(static_cast<int>(word.slot))).votes[word.version % 2];
  const std::uint64_t byte_count = place.byte_count.load(std::memory_order_acquire);
  if (byte_count == 0 || byte_count > kVoteBytes) return std::nullopt;
  std::string bytes(byte_count, '\0');
  for (std::size_t i = 0; i < byte_count; i += 8) {
    const std::uint64_t each = place.words[i / 8].load(std::memory_order_acquire);
    for (std::size_t k = i; k < std::min<std::size_t>(i + 8, byte_count); ++k)
      bytes[k] = static_cast<char>(each >> (8 * (k - i)));
  }
  return bytes;
}

bool VoteBytes::write(std::uint64_t term, std::string_view bytes) {
  const std::uint32_t version = VoteWord::unpack(word_).version % VoteWord::kVersions + 1;
  own_.reserve_relay_area(bytes.size());
  auto& place = board_.relay_area(own_.index()).votes[version % 2];
  place.byte_count.store(bytes.size(), std::memory_order_release);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t k = i; k < std::min(i + 8, bytes.size()); ++k)
      word |= std::uint64_t{static_cast<unsigned char>(bytes[k])} << (8 * (k - i));
    place.words[i / 8].store(word, std::memory_order_release);
  }
  const VoteWord next{term, static_cast<std::uint32_t>(own_.index().value), version};
  if (!board_.header().vote.compare_exchange_strong(word_, next.pack())) return false;
  word_ = next.pack();
  return true;
}

}  // namespace tutti::control
