// No multiply-adds here: they round differently (src/ddp/CMakeLists.txt sees to that).
#include "ddp/norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/half.h"

namespace tutti::ddp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double magnitude(double number) { return std::fabs(number); }
double magnitude(float number) { return std::fabs(static_cast<double>(number)); }
double magnitude(bfloat16 number) { return magnitude(bfloat_value(number.bits)); }
double magnitude(float16 number) { return magnitude(half_value(number.bits)); }

/// NaN once one of them is.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }
double smaller(double a, double b) { return std::isnan(a) || a <= b ? a : b; }

/// log(m) and exp(y) by their series, m in [sqrt(1/2), sqrt(2)), |y| <= log(2) / 2.
double log_near_1(double m) {
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 12; k >= 0; --k) sum = sum * (s * s) + 1.0 / (2 * k + 1);
  return 2 * s * sum;
}
double exp_near_0(double y) {
  double sum = 1;
  for (int k = 16; k >= 1; --k) sum = 1 + y / k * sum;
  return sum;
}

}  // namespace

double power(double x, double p) {
  constexpr double kLog2High = 0x1.62e42fefa0000p-1, kLog2Low = 0x1.cf79abc9e3b3ap-40;
  if (std::isnan(x)) return x;
  if (x == 0 || std::isinf(x)) return (x == 0) == (p > 0) ? 0 : kInfinity;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m *= 2;
    --exponent;
  }
  const double log_m = log_near_1(m);
  const double y = p * (exponent * kLog2High + (exponent * kLog2Low + log_m));
  if (y > 710) return kInfinity;
  if (y < -746) return 0;
  const double twos = std::floor(y / kLog2High + 0.5);
  return std::ldexp(exp_near_0((y - twos * kLog2High) - twos * kLog2Low), static_cast<int>(twos));
}

Norm::Norm(double p)
    : p_(p),
      kind_(p == 1            ? Kind::sum_of_magnitudes
            : p == 2          ? Kind::sum_of_squares
            : p == kInfinity  ? Kind::largest
            : p == -kInfinity ? Kind::smallest
                              : Kind::sum_of_powers),
      total_(kind_ == Kind::smallest ? kInfinity : 0) {}

void Norm::add(const ConstBuffer& numbers) {
  const void* const data = numbers.data;
  if (numbers.dtype == DType::f64) {
    add_numbers(static_cast<const double*>(data), numbers.count);
  } else if (numbers.dtype == DType::f16) {
    add_numbers(static_cast<const float16*>(data), numbers.count);
  } else if (numbers.dtype == DType::bf16) {
    add_numbers(static_cast<const bfloat16*>(data), numbers.count);
  } else {
    add_numbers(static_cast<const float*>(data), numbers.count);
  }
}

double Norm::result() const {
  switch (kind_) {
    case Kind::sum_of_squares:
      return std::sqrt(total_);
    case Kind::sum_of_powers:
      return power(total_, 1 / p_);
    case Kind::sum_of_magnitudes:
    case Kind::largest:
    case Kind::smallest:
      break;
  }
  return total_;
}

template <class Number>
void Norm::add_numbers(const Number* numbers, std::size_t count) {
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    total_ = join(total_, block(numbers + begin, std::min(kBlock, count - begin)));
  }
}

double Norm::join(double a, double b) const {
  switch (kind_) {
    case Kind::largest:
      return larger(a, b);
    case Kind::smallest:
      return smaller(a, b);
    case Kind::sum_of_magnitudes:
    case Kind::sum_of_squares:
    case Kind::sum_of_powers:
      break;
  }
  return a + b;
}

namespace {

/// Adds `count` numbers to the lanes: `step(lane's value, number)`.
template <class Number, class Step>
void run_lanes(std::array<double, Norm::kLanes>& lanes, const Number* numbers, std::size_t count,
               Step&& step) {
  std::size_t i = 0;
  for (; i + Norm::kLanes <= count; i += Norm::kLanes) {
    for (std::size_t lane = 0; lane < Norm::kLanes; ++lane) {
      lanes[lane] = step(lanes[lane], magnitude(numbers[i + lane]));
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    lanes[lane] = step(lanes[lane], magnitude(numbers[i]));
  }
}

}  // namespace

template <class Number>
double Norm::block(const Number* numbers, std::size_t count) const {
  std::array<double, kLanes> lanes;
  lanes.fill(0);
  if (kind_ == Kind::smallest) lanes.fill(kInfinity);
  switch (kind_) {
    case Kind::sum_of_magnitudes:
      run_lanes(lanes, numbers, count, [](double sum, double x) { return sum + x; });
      break;
    case Kind::sum_of_squares:
      run_lanes(lanes, numbers, count, [](double sum, double x) { return sum + x * x; });
      break;
    case Kind::sum_of_powers:
      run_lanes(lanes, numbers, count,
                [p = p_](double sum, double x) { return sum + power(x, p); });
      break;
    case Kind::largest:
      run_lanes(lanes, numbers, count, larger);
      break;
    case Kind::smallest:
      run_lanes(lanes, numbers, count, smaller);
      break;
  }
  for (std::size_t apart = 1; apart < kLanes; apart *= 2) {
    for (std::size_t lane = 0; lane < kLanes; lane += 2 * apart) {
      lanes[lane] = join(lanes[lane], lanes[lane + apart]);
    }
  }
  return lanes[0];
}

}  // namespace tutti::ddp
