#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "base/hash.h"
#include "base/legality.h"
#include "base/random.h"
#include "test_kit/reference.h"
#include "tutti/buffer.h"
#include "tutti/error.h"

namespace tutti {
namespace {

template <class Half>
void check_every_value(int fraction_bits) {
  for (unsigned i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double want = reference::decode(bits, fraction_bits);
    const auto value = static_cast<float>(Half::from_bits(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << i;
      ASSERT_TRUE(std::isnan(static_cast<float>(Half(value)))) << i;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value),
              std::bit_cast<std::uint32_t>(static_cast<float>(want)))
        << i;
    ASSERT_EQ(Half(value).bits, bits);
  }
}

/// Between each value and the next: the middle, and the floats beside it.
template <class Half>
void check_every_tie(int fraction_bits) {
  for (unsigned i = 0; i < 0x8000u; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double here = reference::decode(bits, fraction_bits);
    const double next = reference::decode(static_cast<std::uint16_t>(i + 1), fraction_bits);
    if (std::isnan(next) || std::isnan(here)) continue;
    const auto middle = static_cast<float>(here + (next - here) / 2);
    for (const float probe :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY), -middle}) {
      ASSERT_EQ(Half(probe).bits, reference::encode(probe, fraction_bits)) << probe;
    }
  }
  for (const float probe : {65519.996f, 65520.0f, 65536.0f, 1e10f, 3.4e38f, 3.3961776e38f, 1e-45f,
                            -1e-45f, 2.9802322e-8f, 2.9802326e-8f, INFINITY, -INFINITY}) {
    ASSERT_EQ(Half(probe).bits, reference::encode(probe, fraction_bits)) << probe;
  }
}

TEST(Float16, HoldsEveryValue) { check_every_value<float16>(reference::kHalfFraction); }
TEST(Float16, RoundsTiesToEven) { check_every_tie<float16>(reference::kHalfFraction); }
TEST(Bfloat16, HoldsEveryValue) { check_every_value<bfloat16>(reference::kBrainFraction); }
TEST(Bfloat16, RoundsTiesToEven) { check_every_tie<bfloat16>(reference::kBrainFraction); }
TEST(Bfloat16, KeepsNanWhosePayloadIsBelow) {
  const auto nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(nan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(float16(nan))));
}

TEST(DTypes, SizesAreThoseOfTheCppTypes) {
  EXPECT_EQ(size_of(dtype_of<bool>), sizeof(bool));
  EXPECT_EQ(size_of(dtype_of<std::uint8_t>), 1u);
  EXPECT_EQ(size_of(dtype_of<std::int8_t>), 1u);
  EXPECT_EQ(size_of(dtype_of<std::int16_t>), 2u);
  EXPECT_EQ(size_of(dtype_of<std::uint16_t>), 2u);
  EXPECT_EQ(size_of(dtype_of<std::int32_t>), 4u);
  EXPECT_EQ(size_of(dtype_of<std::uint32_t>), 4u);
  EXPECT_EQ(size_of(dtype_of<std::int64_t>), 8u);
  EXPECT_EQ(size_of(dtype_of<std::uint64_t>), 8u);
  EXPECT_EQ(size_of(dtype_of<float16>), 2u);
  EXPECT_EQ(size_of(dtype_of<bfloat16>), 2u);
  EXPECT_EQ(size_of(dtype_of<float>), 4u);
  EXPECT_EQ(size_of(dtype_of<double>), 8u);
  EXPECT_EQ(size_of(dtype_of<std::complex<float>>), sizeof(std::complex<float>));
  EXPECT_EQ(size_of(dtype_of<std::complex<double>>), sizeof(std::complex<double>));
  EXPECT_EQ(size_of(dtype_of<float8_e4m3>), sizeof(float8_e4m3));
  EXPECT_EQ(size_of(dtype_of<float8_e5m2>), sizeof(float8_e5m2));
  EXPECT_NE(dtype_of<float8_e4m3>, dtype_of<float8_e5m2>);
}

TEST(Names, AreDistinctAndThere) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kDTypeCount; ++i) names.insert(name_of(static_cast<DType>(i)));
  for (std::size_t i = 0; i < kReduceKindCount; ++i) {
    names.insert(name_of(static_cast<ReduceOp::Kind>(i)));
  }
  for (std::size_t i = 0; i < kOpCount; ++i) names.insert(name_of(static_cast<Op>(i)));
  EXPECT_EQ(names.size(), kDTypeCount + kReduceKindCount + kOpCount);
  EXPECT_EQ(names.count("?"), 0u);
  EXPECT_EQ(name_of(DType::bool_), "bool");
  EXPECT_EQ(name_of(ErrorCode::kPeerLost), "kPeerLost");
}

TEST(Legality, IsTheTableOfTheDocumentation) {
  using Kind = ReduceOp::Kind;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool moved = dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2;
    const bool complex = dtype == DType::complex64 || dtype == DType::complex128;
    const bool floating = is_floating(dtype);
    const bool truth = dtype == DType::bool_;
    for (const Kind kind : {Kind::min, Kind::max})
      EXPECT_EQ(why_illegal(dtype, kind).empty(), !complex && !moved);
    for (const Kind kind : {Kind::sum, Kind::product}) {
      EXPECT_EQ(why_illegal(dtype, kind).empty(), !truth && !moved);
    }
    for (const Kind kind : {Kind::avg, Kind::premul_sum}) {
      EXPECT_EQ(why_illegal(dtype, kind).empty(), floating || complex);
    }
    for (const Kind kind : {Kind::band, Kind::bor, Kind::bxor}) {
      EXPECT_EQ(why_illegal(dtype, kind).empty(), !floating && !complex && !moved);
    }
  }
  EXPECT_TRUE(why_illegal(Op::broadcast, DType::f8_e4m3, Kind::sum).empty());
  EXPECT_FALSE(why_illegal(Op::scan, DType::f32, Kind::avg).empty());
  EXPECT_NE(why_illegal(DType::i32, Kind::avg).find("use sum and divide"), std::string_view::npos);
}

TEST(Errors, CarryCodeTextAndContext) {
  const Error error(ErrorCode::kPeerLost, "rank 1 is gone", {.op = "barrier", .culprits = {1}});
  const Error copy = error;
  EXPECT_EQ(copy.code(), ErrorCode::kPeerLost);
  EXPECT_STREQ(copy.what(), "rank 1 is gone");
  EXPECT_EQ(copy.context().culprits, std::vector<int>{1});
  EXPECT_EQ(copy.context().rank, -1);
}

TEST(Hash, SeesOrderAndEveryBit) {
  EXPECT_NE(hash_combine(hash_combine(1, 2), 3), hash_combine(hash_combine(1, 3), 2));
  EXPECT_NE(hash_combine(0, 0), 0u);
  std::set<std::uint64_t> seen;
  for (int bit = 0; bit < 64; ++bit) seen.insert(hash_combine(7, std::uint64_t{1} << bit));
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(hash_combine(7, std::uint64_t{1} << bit, 0));
    seen.insert(hash_combine(7, 0, std::uint64_t{1} << bit));
  }
  EXPECT_EQ(seen.size(), 192u);
  EXPECT_NE(hash_text("ab"), hash_text("ba"));
  EXPECT_NE(hash_text(std::string_view("\0", 1)), hash_text(""));
  EXPECT_NE(hash_text("12345678"), hash_text("123456780"));
}

TEST(Random, NamesAre128BitsAndDiffer) {
  const std::string name = random_name();
  EXPECT_EQ(name.size(), 32u);
  EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(name, random_name());
}

}  // namespace
}  // namespace tutti
