#include "ddp/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tutti::ddp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// As the header says, one element after the other.
double in_words(const std::vector<double>& numbers, double p) {
  double total = 0;
  for (std::size_t begin = 0; begin < numbers.size(); begin += Norm::kBlock) {
    std::vector<double> lanes(Norm::kLanes);
    const std::size_t end = std::min(begin + Norm::kBlock, numbers.size());
    for (std::size_t i = begin; i < end; ++i) {
      const double x = std::abs(numbers[i]);
      const volatile double term = p == 2 ? x * x : p == 1 ? x : power(x, p);
      lanes[(i - begin) % Norm::kLanes] += term;
    }
    while (lanes.size() > 1) {
      std::vector<double> joined;
      for (std::size_t i = 0; i < lanes.size(); i += 2) joined.push_back(lanes[i] + lanes[i + 1]);
      lanes = joined;
    }
    total += lanes[0];
  }
  return p == 2 ? std::sqrt(total) : p == 1 ? total : power(total, 1 / p);
}

template <class Number>
double norm_of(const std::vector<Number>& numbers, double p) {
  Norm norm(p);
  norm.add(ConstBuffer(numbers));
  return norm.result();
}

TEST(Norm, EveryPowerHasTheBitsOfTheOrderInWordsAndIsNearTheNorm) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  for (const std::size_t count : {0, 1, 15, 16, 17, 16384, 16385, 50001}) {
    std::vector<float> numbers(count);
    for (float& number : numbers) number = normal(random);
    const std::vector<double> wide(numbers.begin(), numbers.end());
    for (const double p : {1.0, 2.0, 3.0, 0.5, 2.5, -1.5}) {
      const double result = norm_of(numbers, p);
      EXPECT_EQ(result, in_words(wide, p)) << count << " numbers, p " << p;
      EXPECT_EQ(result, norm_of(wide, p));
      long double sum = 0;
      for (const double x : wide) sum += std::pow(std::fabs(static_cast<long double>(x)), p);
      const auto expected = static_cast<double>(std::pow(sum, 1 / static_cast<long double>(p)));
      if (count == 0) continue;
      EXPECT_NEAR(result / expected, 1, 1e-12) << count << " numbers, p " << p;
    }
  }
}

TEST(Norm, BuffersAreOneVectorAndTypesAreWidened) {
  const std::vector<float> a = {3, -4}, b = {12};
  Norm norm(2);
  norm.add(ConstBuffer(a));
  norm.add(ConstBuffer(b));
  EXPECT_EQ(norm.result(), 13);
  EXPECT_EQ(norm_of(std::vector<bfloat16>{bfloat16(3.f), bfloat16(-4.f)}, 2), 5);
  EXPECT_EQ(norm_of(std::vector<float16>{float16(3.f), float16(-4.f)}, 1), 7);
  EXPECT_EQ(norm_of(std::vector<float>(4, 3e38f), 2), std::sqrt(4 * double(3e38f) * double(3e38f)));
}

TEST(Norm, TheLargestAndTheSmallestMagnitude) {
  std::vector<float> numbers(40, 1);
  numbers[7] = -9;
  numbers[33] = 0.5;
  EXPECT_EQ(norm_of(numbers, kInfinity), 9);
  EXPECT_EQ(norm_of(numbers, -kInfinity), 0.5);
}

TEST(Norm, NanAndInfinityShow) {
  for (const double p : {1.0, 2.0, 3.0, kInfinity, -kInfinity}) {
    for (const std::size_t at : {0, 16, 39}) {
      std::vector<double> numbers(40, 1);
      numbers[at] = kNan;
      EXPECT_TRUE(std::isnan(norm_of(numbers, p))) << p;
      numbers[at] = -kInfinity;
      EXPECT_EQ(norm_of(numbers, p), p == -kInfinity ? 1 : kInfinity) << p;
    }
  }
}

TEST(Power, IsThatOfTheCLibraryToTwelveDigits) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> exponents(-300, 300), powers(-4, 4);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::exp2(exponents(random)), p = powers(random);
    const double expected = std::pow(x, p);
    if (expected < 1e-300 || std::isinf(expected)) continue;
    ASSERT_NEAR(power(x, p) / expected, 1, 1e-12) << x << " to the power " << p;
  }
  EXPECT_EQ(power(0, 3), 0);
  EXPECT_EQ(power(0, -3), kInfinity);
  EXPECT_EQ(power(kInfinity, 0.5), kInfinity);
  EXPECT_EQ(power(kInfinity, -1), 0);
  EXPECT_EQ(power(1e300, 2), kInfinity);
  EXPECT_EQ(power(1e-300, 3), 0);
  EXPECT_EQ(power(1, 1e6), 1);
  EXPECT_TRUE(std::isnan(power(kNan, 2)));
}

}  // namespace
}  // namespace tutti::ddp
