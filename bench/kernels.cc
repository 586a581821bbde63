// How fast the kernels are beside memcpy: bytes touched per second (n inputs read, outputs
// written).
#include "kernels/kernels.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <vector>

namespace tutti {
namespace {

/// `buffers` aligned runs of `byte_count` bytes, all touched.
class Buffers {
 public:
  Buffers(std::size_t buffers, std::size_t byte_count) {
    for (std::size_t i = 0; i < buffers; ++i) {
      const std::size_t rounded = (byte_count + 63) / 64 * 64;
      void* const data = std::aligned_alloc(64, rounded);
      std::memset(data, 0x11, rounded);
      owned_.emplace_back(data, &std::free);
      pointers_.push_back(data);
    }
  }
  const void* const* inputs() const { return pointers_.data(); }
  void* at(std::size_t index) const { return owned_[index].get(); }

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> owned_;
  std::vector<const void*> pointers_;
};

void memory_copy(benchmark::State& state) {
  const auto byte_count = static_cast<std::size_t>(state.range(0));
  const Buffers buffers(2, byte_count);
  for (auto _ : state) {
    std::memcpy(buffers.at(0), buffers.at(1), byte_count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);
}

void streaming_copy(benchmark::State& state) {
  const auto byte_count = static_cast<std::size_t>(state.range(0));
  const Buffers buffers(2, byte_count);
  for (auto _ : state) {
    kernels::copy_streaming(buffers.at(0), buffers.at(1), byte_count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);
}

/// Out of place: n inputs, one output.
void reduce(benchmark::State& state, DType dtype, ReduceOp op) {
  const int n = static_cast<int>(state.range(0));
  const auto byte_count = static_cast<std::size_t>(state.range(1));
  const std::size_t count = byte_count / size_of(dtype);
  const Buffers buffers(static_cast<std::size_t>(n) + 1, byte_count);
  void* const out = buffers.at(static_cast<std::size_t>(n));
  for (auto _ : state) {
    kernels::reduce_tree(dtype, op, buffers.inputs(), n, out, nullptr, count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(1) * (n + 1));
  state.SetLabel(kernels::chosen_target());
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(8)->Arg(4 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20);
}
void ranks_and_sizes(benchmark::internal::Benchmark* bench) {
  for (const int n : {2, 3, 4, 8, 16}) {
    for (const int byte_count : {8, 4 << 10, 64 << 10, 1 << 20, 16 << 20}) {
      bench->Args({n, byte_count});
    }
  }
}

BENCHMARK(memory_copy)->Apply(sizes);
BENCHMARK(streaming_copy)->Apply(sizes);
BENCHMARK_CAPTURE(reduce, f32_sum, DType::f32, ReduceOp::sum)->Apply(ranks_and_sizes);
BENCHMARK_CAPTURE(reduce, f32_avg, DType::f32, ReduceOp::avg)->Apply(ranks_and_sizes);
BENCHMARK_CAPTURE(reduce, f32_max, DType::f32, ReduceOp::max)->Apply(ranks_and_sizes);
BENCHMARK_CAPTURE(reduce, f64_sum, DType::f64, ReduceOp::sum)->Apply(ranks_and_sizes);
BENCHMARK_CAPTURE(reduce, f16_sum, DType::f16, ReduceOp::sum)->Apply(ranks_and_sizes);
BENCHMARK_CAPTURE(reduce, bf16_sum, DType::bf16, ReduceOp::sum)->Apply(ranks_and_sizes);
BENCHMARK_CAPTURE(reduce, i64_product, DType::i64, ReduceOp::product)->Apply(ranks_and_sizes);

}  // namespace
}  // namespace tutti

BENCHMARK_MAIN();
