#include "test_kit/bound.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "test_kit/reference.h"

namespace tutti::conformance {

namespace {

/// A format: half a unit in the last place of 1, and the largest and smallest normal numbers.
struct Format {
  double half_unit, largest, smallest;
};

Format format_of(DType dtype) {
  if (dtype == DType::f16) return {0x1p-11, 65504, 0x1p-14};
  if (dtype == DType::bf16) return {0x1p-8, 0x1.fep127, 0x1p-126};
  if (dtype == DType::f32) return {0x1p-24, std::numeric_limits<float>::max(), 0x1p-126};
  return {0x1p-53, std::numeric_limits<double>::max(), 0x1p-1022};
}

double element(DType dtype, const void* data, std::size_t index) {
  if (dtype == DType::f64) return reference::read_as<double>(data, index);
  return reference::read_float(dtype, data, index);
}

/// The sizes of the inputs of one element, as far as they are finite.
class Sizes {
 public:
  void add(double size) {
    ++inputs_;
    finite_ = finite_ && std::isfinite(size);
    if (!std::isfinite(size)) return;
    sum_ += size;
    product_ *= size;
    largest_ *= std::max(size, 1.0);
    smallest_ *= std::min(size, 1.0);
  }
  bool finite() const { return finite_; }
  /// Whether some order may overflow, or underflow on the way.
  bool may_leave_range(bool product, const Format& format) const {
    if (!product) return sum_ > format.largest / 4;
    return largest_ > format.largest / 4 || smallest_ < 4 * format.smallest;
  }
  double bound(bool product, const Format& format) const {
    return 4 * inputs_ * (format.half_unit * (product ? product_ : sum_) + format.smallest);
  }

 private:
  double inputs_ = 0, sum_ = 0, product_ = 1, largest_ = 1, smallest_ = 1;
  bool finite_ = true;
};

bool is_within(const Sizes& sizes, bool product, const Format& format, double want, double have) {
  if (sizes.may_leave_range(product, format)) return true;
  if (!sizes.finite()) return std::isnan(want) ? std::isnan(have) : want == have;
  return std::fabs(have - want) <= sizes.bound(product, format);
}

}  // namespace

bool depends_on_order(DType dtype, ReduceOp::Kind kind) noexcept {
  if (!is_floating(dtype) && !is_complex(dtype)) return false;
  switch (kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::product:
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
      return true;
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      return false;
  }
  return false;
}

std::string out_of_bound(DType dtype, ReduceOp reduce, const std::vector<const void*>& inputs,
                         const void* expected, const void* got, std::size_t count) {
  const bool product = reduce.kind() == ReduceOp::Kind::product;
  const bool complex = is_complex(dtype);
  const DType part = complex ? reference::part_dtype(dtype) : dtype;
  // The parts of a complex product mix; those of a sum do not.
  if (complex && !product) return out_of_bound(part, reduce, inputs, expected, got, 2 * count);
  const Format format = format_of(part);
  const bool scaled = reduce.kind() == ReduceOp::Kind::premul_sum;
  const std::size_t parts = complex ? 2 : 1;
  for (std::size_t i = 0; i < count; ++i) {
    Sizes sizes;
    for (const void* input : inputs) {
      const double value = element(part, input, i * parts);
      sizes.add(complex ? std::hypot(value, element(part, input, i * parts + 1))
                        : std::fabs(value) * (scaled ? std::fabs(reduce.factor()) : 1));
    }
    if (complex && !sizes.finite()) continue;  // the textbook formula makes NaNs by its order
    for (std::size_t j = i * parts; j < (i + 1) * parts; ++j) {
      const double want = element(part, expected, j), have = element(part, got, j);
      if (is_within(sizes, product, format, want, have)) continue;
      return fmt::format("element {} of {} is {:g}, expected {:g}, which no order explains", i,
                         count, have, want);
    }
  }
  return {};
}

}  // namespace tutti::conformance
