// The driver: composes kernels of few inputs into the canonical tree over any number of inputs.
//
// Where a kernel for exactly n inputs exists it runs over the whole range. Else the range is cut
// into *blocks* small enough that partials stay in the first-level cache: each subtree of a block
// ends in a *slot*, its lower half in the same slot, its upper half in the next, and the last merge
// writes the outputs. So every input is read once and every output written once. A streamed second
// output is copied block by block while the first is still in the cache.
#include "kernels/kernels.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/table.h"

namespace tutti::kernels {
namespace {

constexpr std::size_t kSlotBytes = 32 * 1024;  // all slots together: the usual first-level cache
constexpr std::size_t kLargestBlock = 4096;    // bytes of partials

/// Which kernels turn n inputs into the result, and how wide both are.
struct Steps {
  const ByWidth& whole;  // for a number of inputs that has a kernel
  const ByWidth& leaf;
  Kernel merge;
  Kernel merge_last;
  std::size_t in_bytes;
  std::size_t partial_bytes;
  std::size_t out_bytes;
  double factor;
  double divisor;

  bool direct(int n) const noexcept { return n <= kWidest && whole.of[n] != nullptr; }
  Args args(const void* const* inputs, void* out, void* out2, std::size_t count) const noexcept {
    return {inputs, out, out2, count, factor, divisor};
  }
};

const Table& table_for(DType dtype, ReduceOp::Kind kind) noexcept {
  if (dtype == DType::f32 || dtype == DType::f64) return *find_float(dtype, kind);
  if (is_complex(dtype)) return *find_complex_product(dtype);
  return is_floating(dtype) ? *find_half(dtype, kind) : *find_integer(dtype, kind);
}

/// Bitwise operations on integers are those of their bytes; all on complex numbers but the product
/// are those of their parts.
DType computed_as(DType dtype, ReduceOp::Kind kind) noexcept {
  if (is_complex(dtype) && kind != ReduceOp::Kind::product) {
    return dtype == DType::complex64 ? DType::f32 : DType::f64;
  }
  return kind >= ReduceOp::Kind::band && dtype != DType::bool_ ? DType::u8 : dtype;
}

void* offset(void* base, std::size_t byte_count) noexcept {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + byte_count;
}
const void* offset(const void* base, std::size_t byte_count) noexcept {
  return static_cast<const std::byte*>(base) + byte_count;
}

int lower_half(int n) noexcept {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
}

/// The subtrees of one block.
class Block {
 public:
  Block(const Steps& steps, const void* const* inputs, std::size_t begin, std::size_t count,
        std::byte* slots, std::size_t slot_bytes) noexcept
      : steps_(steps),
        inputs_(inputs),
        begin_(begin),
        count_(count),
        slots_(slots),
        slot_bytes_(slot_bytes) {}

  void whole(int n, void* out, void* out2) const noexcept {
    if (steps_.direct(n)) {
      run(steps_.whole.of[n], 0, n, out, out2);
      return;
    }
    const int lower = lower_half(n);
    subtree(0, lower, 0);
    subtree(lower, n - lower, 1);
    merge(steps_.merge_last, 0, out, out2);
  }

 private:
  std::byte* slot(int index) const noexcept {
    return slots_ + static_cast<std::size_t>(index) * slot_bytes_;
  }
  void run(Kernel kernel, int first, int n, void* out, void* out2) const noexcept {
    const void* here[kWidest];
    for (int i = 0; i < n; ++i) here[i] = offset(inputs_[first + i], begin_ * steps_.in_bytes);
    kernel(steps_.args(here, out, out2, count_));
  }
  void merge(Kernel kernel, int index, void* out, void* out2) const noexcept {
    const void* const halves[] = {slot(index), slot(index + 1)};
    kernel(steps_.args(halves, out, out2, count_));
  }
  void subtree(int first, int n, int index) const noexcept {
    if (static_cast<unsigned>(n) <= kWidest && steps_.leaf.of[n] != nullptr) {
      run(steps_.leaf.of[n], first, n, slot(index), nullptr);
      return;
    }
    const int lower = lower_half(n);
    subtree(first, lower, index);
    subtree(first + lower, n - lower, index + 1);
    merge(steps_.merge, index, slot(index), nullptr);
  }

  const Steps& steps_;
  const void* const* inputs_;
  const std::size_t begin_;
  const std::size_t count_;
  std::byte* const slots_;
  const std::size_t slot_bytes_;
};

[[gnu::noinline]] void run_blocks(const Steps& steps, const void* const* inputs, int n, void* out,
                                  void* out2, std::size_t count, Store store2) noexcept {
  alignas(64) std::byte slots[kSlotBytes];
  const auto depth = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(n)));
  const std::size_t slot_bytes = std::min(kLargestBlock, kSlotBytes / (depth + 1) / 64 * 64);
  const std::size_t block = slot_bytes / steps.partial_bytes;
  const bool streaming = store2 == Store::streaming && out2 != nullptr;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t here = std::min(block, count - begin);
    void* const first = offset(out, begin * steps.out_bytes);
    void* const second = offset(out2, begin * steps.out_bytes);
    Block(steps, inputs, begin, here, slots, slot_bytes)
        .whole(n, first, streaming ? nullptr : second);
    if (streaming) copy_unfenced(second, first, here * steps.out_bytes);
  }
  if (streaming) hwy::FlushStream();
}

void run(const Steps& steps, const void* const* inputs, int n, void* out, void* out2,
         std::size_t count, Store store2) noexcept {
  if (steps.direct(n) && store2 == Store::cached) {
    steps.whole.of[n](steps.args(inputs, out, out2, count));
  } else {
    run_blocks(steps, inputs, n, out, out2, count, store2);
  }
}

/// A range in the units that are computed: bytes for bitwise operations on integers, parts for
/// sums of complex numbers.
struct Range {
  const Table& table;
  std::size_t element_bytes;
  std::size_t partial_bytes;
  std::size_t count;
};

Range range_of(DType dtype, ReduceOp op, std::size_t count) noexcept {
  const DType computed = computed_as(dtype, op.kind());
  const std::size_t element_bytes = size_of(computed);
  return {table_for(computed, op.kind()), element_bytes, size_of(accumulation_dtype(computed)),
          count * (size_of(dtype) / element_bytes)};
}

}  // namespace

void reduce_tree(DType dtype, ReduceOp op, const void* const* inputs, int n, void* out, void* out2,
                 std::size_t count, Store store2) noexcept {
  const Range range = range_of(dtype, op, count);
  const Table& table = range.table;
  run({table.whole, table.leaf, table.merge.of[2], table.merge_last, range.element_bytes,
       range.partial_bytes, range.element_bytes, op.factor(), static_cast<double>(n)},
      inputs, n, out, out2, range.count, store2);
}

void reduce_partial(DType dtype, ReduceOp op, const void* const* inputs, int n, void* out,
                    std::size_t count) noexcept {
  const Range range = range_of(dtype, op, count);
  const Table& table = range.table;
  run({table.leaf, table.leaf, table.merge.of[2], table.merge.of[2], range.element_bytes,
       range.partial_bytes, range.partial_bytes, op.factor(), 1.0},
      inputs, n, out, nullptr, range.count, Store::cached);
}

void combine_partials(DType dtype, ReduceOp op, const void* const* partials, int n, void* out,
                      std::size_t count) noexcept {
  const Range range = range_of(dtype, op, count);
  const Table& table = range.table;
  run({table.merge, table.merge, table.merge.of[2], table.merge.of[2], range.partial_bytes,
       range.partial_bytes, range.partial_bytes, op.factor(), 1.0},
      partials, n, out, nullptr, range.count, Store::cached);
}

void finish_partial(DType dtype, ReduceOp op, int ranks, const void* partial, void* out, void* out2,
                    std::size_t count, Store store2) noexcept {
  const Range range = range_of(dtype, op, count);
  const ByWidth only = {{nullptr, range.table.finish}};
  run({only, only, nullptr, nullptr, range.partial_bytes, range.partial_bytes, range.element_bytes,
       op.factor(), static_cast<double>(ranks)},
      &partial, 1, out, out2, range.count, store2);
}

void run_tail(const Tail& tail) noexcept {
  constexpr std::size_t kVectorBytes = 256;  // no instruction set has longer ones
  alignas(64) std::byte inputs[kWidest][kVectorBytes];
  alignas(64) std::byte result[kVectorBytes];
  const std::size_t count = tail.args.count - tail.begin;
  const void* pointers[kWidest];
  for (int i = 0; i < tail.inputs; ++i) {
    std::memset(inputs[i], 0, tail.lanes * tail.in_bytes);
    std::memcpy(inputs[i], offset(tail.args.inputs[i], tail.begin * tail.in_bytes),
                count * tail.in_bytes);
    pointers[i] = inputs[i];
  }
  tail.kernel({pointers, result, nullptr, tail.lanes, tail.args.factor, tail.args.divisor});
  for (void* const out : {tail.args.out, tail.args.out2}) {
    if (out == nullptr) continue;
    std::memcpy(offset(out, tail.begin * tail.out_bytes), result, count * tail.out_bytes);
  }
}

void copy_streaming(void* to, const void* from, std::size_t byte_count) noexcept {
  copy_unfenced(to, from, byte_count);
  hwy::FlushStream();
}

}  // namespace tutti::kernels
