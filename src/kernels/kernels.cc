// The driver: composes kernels of few inputs into the canonical tree over any number of inputs.
//
// Where a kernel for exactly n inputs exists it runs over the whole range. Else the range is cut
// into *blocks* small enough that partials stay in the first-level cache: each subtree of a block
// ends in a *slot*, its lower half in the same slot, its upper half in the next, and the last merge
// writes the outputs. So every input is read once and every output written once.
#include "kernels/kernels.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/table.h"

namespace tutti::kernels {
namespace {

constexpr std::size_t kBlockBytes = 4096;
constexpr int kSlots = 30;  // depth of the tree over INT_MAX inputs, leaves of 4

/// What is reduced, in terms of tables: bitwise operations on integers are those of their bytes.
struct Job {
  const Table* table;
  std::size_t count;
  std::size_t element_bytes;
  std::size_t partial_bytes;
  double factor;
  double divisor;
};

Job job_of(DType dtype, ReduceOp op, int ranks, std::size_t count) noexcept {
  const std::size_t partial_bytes = size_of(accumulation_dtype(dtype));
  Job job{nullptr, count, size_of(dtype), partial_bytes, op.factor(), static_cast<double>(ranks)};
  if (dtype == DType::f32 || dtype == DType::f64) {
    job.table = find_float(dtype, op.kind());
  } else if (is_floating(dtype)) {
    job.table = find_half(dtype, op.kind());
  } else {
    job.table = find_integer(dtype, op.kind());
    if (op.kind() >= ReduceOp::Kind::band) {
      job.count *= job.element_bytes;
      job.element_bytes = job.partial_bytes = 1;
    }
  }
  return job;
}

struct alignas(64) Slot {
  std::byte bytes[kBlockBytes];
};

/// One pass over n inputs with kernels for leaves and merges.
class Pass {
 public:
  Pass(const Job& job, const ByWidth& leaf, std::size_t in_bytes, const ByWidth& whole,
       Kernel merge_last, std::size_t out_bytes) noexcept
      : job_(job),
        leaf_(leaf),
        in_bytes_(in_bytes),
        whole_(whole),
        merge_last_(merge_last),
        out_bytes_(out_bytes) {}

  void run(const void* const* inputs, int n, void* out, void* out2) noexcept {
    if (n <= kWidest && whole_.of[n] != nullptr) {
      whole_.of[n](args(inputs, out, out2, job_.count));
      return;
    }
    const std::size_t block = kBlockBytes / job_.partial_bytes;
    const int lower = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
    for (begin_ = 0; begin_ < job_.count; begin_ += block) {
      count_ = std::min(block, job_.count - begin_);
      subtree(inputs, lower, 0);
      subtree(inputs + lower, n - lower, 1);
      const void* const halves[] = {slots_[0].bytes, slots_[1].bytes};
      merge_last_(args(halves, at(out), out2 == nullptr ? nullptr : at(out2), count_));
    }
  }

 private:
  Args args(const void* const* inputs, void* out, void* out2, std::size_t count) const noexcept {
    return {inputs, out, out2, count, job_.factor, job_.divisor};
  }
  void* at(void* out) const noexcept { return static_cast<std::byte*>(out) + begin_ * out_bytes_; }

  void subtree(const void* const* inputs, int n, int slot) noexcept {
    void* const result = slots_[static_cast<std::size_t>(slot)].bytes;
    if (n <= kWidest && leaf_.of[n] != nullptr) {
      const void* here[kWidest];
      for (int i = 0; i < n; ++i) {
        here[i] = static_cast<const std::byte*>(inputs[i]) + begin_ * in_bytes_;
      }
      leaf_.of[n](args(here, result, nullptr, count_));
      return;
    }
    const int lower = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
    subtree(inputs, lower, slot);
    subtree(inputs + lower, n - lower, slot + 1);
    const void* const halves[] = {result, slots_[static_cast<std::size_t>(slot) + 1].bytes};
    job_.table->merge.of[2](args(halves, result, nullptr, count_));
  }

  const Job& job_;
  const ByWidth& leaf_;
  const std::size_t in_bytes_;
  const ByWidth& whole_;
  const Kernel merge_last_;
  const std::size_t out_bytes_;
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  std::array<Slot, kSlots> slots_;  // not initialised: only what is used is touched
};

}  // namespace

void reduce_tree(DType dtype, ReduceOp op, const void* const* inputs, int n, void* out, void* out2,
                 std::size_t count, Store store2) noexcept {
  const Job job = job_of(dtype, op, n, count);
  const Table& table = *job.table;
  const bool streaming = store2 == Store::streaming && out2 != nullptr;
  Pass(job, table.leaf, job.element_bytes, table.whole, table.merge_last, job.element_bytes)
      .run(inputs, n, out, streaming ? nullptr : out2);
  if (streaming) copy_streaming(out2, out, count * size_of(dtype));
}

void reduce_partial(DType dtype, ReduceOp op, const void* const* inputs, int n, void* out,
                    std::size_t count) noexcept {
  const Job job = job_of(dtype, op, 1, count);
  const Table& table = *job.table;
  Pass(job, table.leaf, job.element_bytes, table.leaf, table.merge.of[2], job.partial_bytes)
      .run(inputs, n, out, nullptr);
}

void combine_partials(DType dtype, ReduceOp op, const void* const* partials, int n, void* out,
                      std::size_t count) noexcept {
  const Job job = job_of(dtype, op, 1, count);
  const Table& table = *job.table;
  Pass(job, table.merge, job.partial_bytes, table.merge, table.merge.of[2], job.partial_bytes)
      .run(partials, n, out, nullptr);
}

void finish_partial(DType dtype, ReduceOp op, int ranks, const void* partial, void* out, void* out2,
                    std::size_t count, Store store2) noexcept {
  const Job job = job_of(dtype, op, ranks, count);
  const bool streaming = store2 == Store::streaming && out2 != nullptr;
  job.table->finish(
      {&partial, out, streaming ? nullptr : out2, job.count, job.factor, job.divisor});
  if (streaming) copy_streaming(out2, out, count * size_of(dtype));
}

}  // namespace tutti::kernels
