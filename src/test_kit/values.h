// Data for the conformance suite: a pure function of (seed, rank, index), so that every rank knows
// every other rank's input without asking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/buffer.h"

namespace tutti::conformance {

/// Elements `first` to `first + count` of the input of `rank`: ordinary values, random bits, and
/// the special ones (zeros of both signs, infinities, NaNs, subnormals, the largest).
void fill(std::uint64_t seed, int rank, DType dtype, std::size_t first, std::size_t count,
          void* out);

/// Empty if the elements have the same bits, a NaN being equal to any NaN; else the first
/// difference.
std::string difference(DType dtype, const void* expected, const void* got, std::size_t count);

/// Hash of the elements, every NaN counting as the same.
std::uint64_t bits_of(DType dtype, const void* elements, std::size_t count);

/// Memory for `count` elements between guards, at an address aligned to the element only.
class Guarded {
 public:
  Guarded(DType dtype, std::size_t count, std::size_t skew);
  void* data() noexcept { return bytes_.data() + offset_; }
  Buffer buffer() noexcept { return {data(), count_, dtype_}; }
  Buffer part(std::size_t first, std::size_t part_count) noexcept;
  bool guards_are_whole() const noexcept;
  /// The guards, too.
  std::vector<std::byte>& bytes() noexcept { return bytes_; }

 private:
  DType dtype_;
  std::size_t count_, offset_;
  std::vector<std::byte> bytes_;
};

}  // namespace tutti::conformance
