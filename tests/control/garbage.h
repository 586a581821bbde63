// Words that another process has written by mistake: any values at any place, but for mutexes and
// bells.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "control/board/board.h"
#include "control/board/layout.h"

namespace tutti::control {

/// Adjacent words.
struct Stretch {
  std::atomic<std::uint64_t>* words;
  std::size_t count;
};

inline Stretch stretch(void* begin, const void* end) {
  const auto byte_count = static_cast<const std::byte*>(end) - static_cast<std::byte*>(begin);
  return {static_cast<std::atomic<std::uint64_t>*>(begin),
          static_cast<std::size_t>(byte_count) / 8};
}

/// The words of a slot but for its mark and its bells.
inline Stretch words_of(Slot& slot) { return stretch(&slot.state, &slot + 1); }
inline Stretch words_of(BoardHeader& header) { return stretch(&header, &header + 1); }
/// As many further lines as are reserved at a time.
inline Stretch further_lines(const Board& board, SlotIndex slot) {
  return {
      reinterpret_cast<std::atomic<std::uint64_t>*>(board.data() + board.more_lines_offset(slot)),
      kLinesPerSlot * sizeof(Line) / 8};
}

class Garbage {
 public:
  explicit Garbage(std::uint64_t seed) : random_(seed) {}

  /// Spoils some words: a few, or many, or a run of them with one value, as one that writes past
  /// the end of its buffer would.
  void spoil(const std::vector<Stretch>& stretches) {
    const std::uint64_t shape = below(3);
    const Stretch run = stretches[below(stretches.size())];
    if (shape == 2) return spoil_run(run, below(run.count), 1 + below(run.count), value(0));
    const std::uint64_t most = shape == 0 ? 4 : 512;
    for (std::uint64_t left = 1 + below(most); left > 0; --left) {
      const Stretch& there = stretches[below(stretches.size())];
      std::atomic<std::uint64_t>& word = there.words[below(there.count)];
      word.store(value(word.load()));
    }
  }
  std::uint64_t below(std::uint64_t below) { return random_() % below; }

 private:
  static void spoil_run(const Stretch& there, std::size_t first, std::size_t count,
                        std::uint64_t value) {
    for (std::size_t i = first; i < there.count && i < first + count; ++i)
      there.words[i].store(value);
  }

  std::uint64_t value(std::uint64_t before) {
    static constexpr std::array<std::uint64_t, 8> kExtremes = {0,
                                                               1,
                                                               ~std::uint64_t{0},
                                                               std::uint64_t{1} << 63,
                                                               0x7fffffff7fffffff,
                                                               0x8000000080000000,
                                                               0x7fffffff,
                                                               0xffffffff};
    switch (below(5)) {
      case 0:
        return random_();
      case 1:
        return before ^ std::uint64_t{1} << below(64);
      case 2:
        return below(8) | below(8) << 32;  // two small ones: states, counts
      case 3:
        return below(300);
      default:
        return kExtremes[below(kExtremes.size())];
    }
  }

  std::mt19937_64 random_;
};

}  // namespace tutti::control
