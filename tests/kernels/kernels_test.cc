// Every kernel on every instruction set of this machine against src/test_kit/reference.h.
#include "kernels/kernels.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <random>

#include "base/half.h"
#include "base/legality.h"
#include "sanitized.h"
#include "test_kit/reference.h"

namespace tutti {
namespace {

using reference::Bytes;

constexpr ReduceOp kOps[] = {ReduceOp::sum,  ReduceOp::product, ReduceOp::min,
                             ReduceOp::max,  ReduceOp::avg,     ReduceOp::premul_sum(0.3),
                             ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};
static_assert(std::size(kOps) == kReduceKindCount);

#ifdef TUTTI_SANITIZED
constexpr std::size_t kLarge = 4099;
#else
constexpr std::size_t kLarge = 100003;
#endif

std::uint64_t test_seed() {
  static const std::uint64_t seed = std::random_device()() % 1000000;
  return seed;
}

/// Runs `body` once per instruction set that this machine and this build have.
template <class Body>
void on_every_target(const Body& body) {
  int targets = 0;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SSSE3) continue;  // left out by src/kernels/CMakeLists.txt
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
    ++targets;
  }
  hwy::SetSupportedTargetsForTest(0);
  ASSERT_GT(targets, 0);
}

/// A buffer that starts one element past an aligned address and is followed by a canary.
class Guarded {
 public:
  Guarded(std::size_t byte_count, std::size_t shift)
      : bytes_(shift + byte_count + kCanary, std::byte{0xa5}), shift_(shift) {}
  Guarded(const Bytes& from, std::size_t shift) : Guarded(from.size(), shift) {
    std::copy(from.begin(), from.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(shift));
  }
  std::byte* data() { return bytes_.data() + shift_; }
  bool untouched_around() const {
    const auto intact = [](std::byte byte) { return byte == std::byte{0xa5}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(shift_),
                       intact) &&
           std::all_of(bytes_.end() - kCanary, bytes_.end(), intact);
  }

 private:
  static constexpr std::ptrdiff_t kCanary = 80;
  Bytes bytes_;
  std::size_t shift_;
};

struct Case {
  DType dtype;
  ReduceOp op;
  int n;
  std::size_t count;
};

std::string describe(const Case& c) {
  return std::string(name_of(c.dtype)) + " " + std::string(name_of(c.op.kind())) +
         " n=" + std::to_string(c.n) + " count=" + std::to_string(c.count) +
         " seed=" + std::to_string(test_seed());
}

std::vector<Bytes> inputs_of(const Case& c) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < c.n; ++rank) {
    inputs.push_back(reference::random_data(
        c.dtype, c.count, test_seed() + static_cast<std::uint64_t>(rank) * 977 + c.count));
  }
  return inputs;
}

std::vector<const void*> pointers_to(const std::vector<Bytes>& buffers) {
  std::vector<const void*> pointers;
  for (const Bytes& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

/// Whole, with a second output cached and streamed, and in place of each end.
void check_whole(const Case& c, const std::vector<Bytes>& inputs, const Bytes& want) {
  const std::size_t element_bytes = size_of(c.dtype);
  std::vector<const void*> pointers = pointers_to(inputs);
  const auto same = [&](const void* got) {
    return reference::first_difference(c.dtype, want.data(), got, c.count);
  };
  Guarded out(want.size(), element_bytes);
  Guarded out2(want.size(), 3 * element_bytes);
  kernels::reduce_tree(c.dtype, c.op, pointers.data(), c.n, out.data(), out2.data(), c.count);
  ASSERT_EQ(same(out.data()), c.count) << describe(c);
  ASSERT_EQ(same(out2.data()), c.count) << describe(c) << " second output";
  ASSERT_TRUE(out.untouched_around() && out2.untouched_around()) << describe(c);

  for (const int rank : {0, c.n - 1}) {
    Guarded own(inputs[static_cast<std::size_t>(rank)], element_bytes);
    Guarded streamed(want.size(), element_bytes);
    std::vector<const void*> mixed = pointers;
    mixed[static_cast<std::size_t>(rank)] = own.data();
    kernels::reduce_tree(c.dtype, c.op, mixed.data(), c.n, own.data(), streamed.data(), c.count,
                         kernels::Store::streaming);
    ASSERT_EQ(same(own.data()), c.count) << describe(c) << " in place of " << rank;
    ASSERT_EQ(same(streamed.data()), c.count) << describe(c) << " streamed";
    ASSERT_TRUE(own.untouched_around() && streamed.untouched_around()) << describe(c);
  }
}

/// As two subtrees computed apart, joined and finished: the same bits.
void check_partials(const Case& c, const std::vector<Bytes>& inputs, const Bytes& want) {
  const std::size_t partial_bytes = size_of(kernels::accumulation_dtype(c.dtype)) * c.count;
  int lower = 1;
  while (2 * lower < c.n) lower *= 2;
  const std::vector<const void*> pointers = pointers_to(inputs);
  Guarded left(partial_bytes, 8);
  Guarded right(partial_bytes, 8);
  const void* root = left.data();
  if (c.n == 1) {
    kernels::reduce_partial(c.dtype, c.op, pointers.data(), 1, left.data(), c.count);
  } else {
    kernels::reduce_partial(c.dtype, c.op, pointers.data(), lower, left.data(), c.count);
    kernels::reduce_partial(c.dtype, c.op, pointers.data() + lower, c.n - lower, right.data(),
                            c.count);
    const void* const halves[] = {left.data(), right.data()};
    kernels::combine_partials(c.dtype, c.op, halves, 2, left.data(), c.count);
  }
  Guarded out(want.size(), 8);
  kernels::finish_partial(c.dtype, c.op, c.n, root, out.data(), nullptr, c.count);
  ASSERT_EQ(reference::first_difference(c.dtype, want.data(), out.data(), c.count), c.count)
      << describe(c) << " from partials";
  ASSERT_TRUE(left.untouched_around() && right.untouched_around() && out.untouched_around());
}

class Kernels : public testing::TestWithParam<DType> {};

TEST_P(Kernels, EqualTheReferenceOnEveryTarget) {
  const DType dtype = GetParam();
  RecordProperty("seed", static_cast<int>(test_seed()));
  for (const ReduceOp op : kOps) {
    if (!why_illegal(dtype, op.kind()).empty()) continue;
    for (const int n : {1, 2, 3, 4, 7, 8, 13}) {
      const auto ranks = static_cast<std::size_t>(n);
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, ranks - 1, ranks, ranks + 1,
                                      std::size_t{1000}, kLarge}) {
        if (count == kLarge && n > 4 && n != 13) continue;  // time
        const Case c{dtype, op, n, count};
        const std::vector<Bytes> inputs = inputs_of(c);
        const Bytes want = reference::reduce(dtype, op, pointers_to(inputs), 0, count);
        on_every_target([&] {
          check_whole(c, inputs, want);
          check_partials(c, inputs, want);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Kernels, EveryNumberOfInputs) {
  const DType dtype = GetParam();
  for (int n = 1; n <= 70; ++n) {
    const Case c{dtype,
                 why_illegal(dtype, ReduceOp::Kind::avg).empty() ? ReduceOp::avg : ReduceOp::max, n,
                 67};
    const std::vector<Bytes> inputs = inputs_of(c);
    const Bytes want = reference::reduce(dtype, c.op, pointers_to(inputs), 0, c.count);
    on_every_target([&] { check_whole(c, inputs, want); });
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Kernels,
                         testing::Values(DType::bool_, DType::u8, DType::i8, DType::i16, DType::i32,
                                         DType::i64, DType::u16, DType::u32, DType::u64, DType::f16,
                                         DType::bf16, DType::f32, DType::f64, DType::complex64,
                                         DType::complex128),
                         [](const auto& given) { return std::string(name_of(given.param)); });

TEST(KernelsTargets, AreWhatThisMachineOffers) {
  std::string names;
  on_every_target([&] { names += std::string(" ") + kernels::chosen_target(); });
  std::printf("instruction sets tested:%s\n", names.c_str());
}

TEST(KernelsOrder, AdditionsAreAssociatedAsTheTreeSays) {
  // (1 + e) + (e + e) = 1 + 2e in the tree; e too small for 1 + e, so left to right gives 1.
  const float e = std::ldexp(1.0f, -24);
  const float values[] = {1.0f, e, e, e};
  const void* inputs[] = {&values[0], &values[1], &values[2], &values[3]};
  float sum = 0;
  kernels::reduce_tree(DType::f32, ReduceOp::sum, inputs, 4, &sum, nullptr, 1);
  EXPECT_EQ(sum, 1.0f + 2 * e);
  kernels::reduce_tree(DType::f32, ReduceOp::sum, inputs, 3, &sum, nullptr, 1);
  EXPECT_EQ(sum, 1.0f);
}

TEST(KernelsComplex, AProductFollowsTheTextbook) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::complex<double> values[] = {{1, 2}, {3, -1}, {infinity, infinity}, {2, 0}};
  const auto product = [&](int a, int b) {
    const void* inputs[] = {&values[a], &values[b]};
    std::complex<double> result;
    kernels::reduce_tree(DType::complex128, ReduceOp::product, inputs, 2, &result, nullptr, 1);
    return result;
  };
  EXPECT_EQ(product(0, 1), (std::complex<double>{5, 5}));
  EXPECT_TRUE(std::isnan(product(2, 3).real()));  // inf * 2 - inf * 0
}

TEST(KernelsHalf, EveryHalfSurvivesAndEveryTieRoundsToEven) {
  on_every_target([] {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const int fraction_bits =
          dtype == DType::f16 ? reference::kHalfFraction : reference::kBrainFraction;
      std::vector<std::uint16_t> all(65536);
      for (unsigned i = 0; i < 65536; ++i) all[i] = static_cast<std::uint16_t>(i);
      std::vector<float> wide(65536);
      const void* input = all.data();
      kernels::reduce_partial(dtype, ReduceOp::sum, &input, 1, wide.data(), wide.size());
      for (unsigned i = 0; i < 65536; ++i) {
        const auto want = static_cast<float>(reference::decode(all[i], fraction_bits));
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(wide[i])) << i;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(want)) << i;
        }
      }
      // Each value, and its neighbours at half a step and just beside it.
      std::vector<float> probes;
      for (unsigned i = 0; i < 65535; ++i) {
        const auto here = static_cast<double>(wide[i]);
        const auto next = static_cast<double>(wide[i + 1]);
        const auto middle = static_cast<float>((here + next) / 2);
        for (const float probe : {wide[i], middle, std::nextafter(middle, -INFINITY),
                                  std::nextafter(middle, INFINITY)}) {
          probes.push_back(probe);
        }
      }
      for (const float probe : {65519.99f, 65520.0f, 65536.0f, 1e10f, 3.4e38f, 1e-44f, -1e-44f}) {
        probes.push_back(probe);
      }
      std::vector<std::uint16_t> rounded(probes.size());
      kernels::finish_partial(dtype, ReduceOp::sum, 1, probes.data(), rounded.data(), nullptr,
                              probes.size());
      std::vector<std::uint16_t> want;
      for (const float probe : probes) want.push_back(reference::encode(probe, fraction_bits));
      const std::size_t at =
          reference::first_difference(dtype, want.data(), rounded.data(), want.size());
      ASSERT_EQ(at, want.size()) << name_of(dtype) << " of " << probes[at] << " is " << rounded[at]
                                 << ", not " << want[at];
    }
  });
}

TEST(KernelsCopy, StreamingCopiesExactlyThatMuch) {
  on_every_target([] {
    const Bytes source = reference::random_data(DType::u8, 5000, test_seed());
    for (const std::size_t byte_count : {0, 1, 31, 63, 64, 65, 127, 1000, 4096, 4999}) {
      for (const std::size_t shift : {0, 1, 8, 63}) {
        Guarded target(byte_count, shift);
        kernels::copy_streaming(target.data(), source.data() + 1, byte_count);
        ASSERT_EQ(std::memcmp(target.data(), source.data() + 1, byte_count), 0);
        ASSERT_TRUE(target.untouched_around()) << byte_count << " at " << shift;
      }
    }
  });
}

}  // namespace
}  // namespace tutti
