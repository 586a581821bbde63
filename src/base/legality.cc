#include "base/legality.h"

namespace tutti {

std::string_view why_illegal(DType dtype, ReduceOp::Kind kind) noexcept {
  const bool truth = dtype == DType::bool_;
  const bool scalable = is_floating(dtype) || is_complex(dtype);
  if (is_float8(dtype)) return "8-bit floats are moved, not reduced; convert to f16, bf16 or f32";
  switch (kind) {
    case ReduceOp::Kind::sum:
      return truth ? "bool has no sum; use max (any) or bor, or convert to an integer type" : "";
    case ReduceOp::Kind::product:
      return truth ? "bool has no product; use min (all) or band" : "";
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
      return is_complex(dtype)
                 ? "complex numbers have no order; reduce their parts or magnitudes instead"
                 : "";
    case ReduceOp::Kind::avg:
      if (scalable) return "";
      return truth ? "bool has no average; convert to a floating type"
                   : "integers have no exact average; use sum and divide";
    case ReduceOp::Kind::premul_sum:
      if (scalable) return "";
      return truth ? "bool cannot be scaled; convert to a floating type"
                   : "integers cannot be scaled by a factor; use sum and multiply or divide";
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      return scalable ? "bitwise operations are for integers and bool; reinterpret the bits as an "
                        "unsigned type of the same width if that is what is meant"
                      : "";
  }
  return "unknown reduce operation";
}

std::string_view why_illegal(Op op, DType dtype, ReduceOp::Kind kind) noexcept {
  if (!reduces(op)) return "";
  const bool scans = op == Op::scan || op == Op::exclusive_scan;
  if (scans && kind == ReduceOp::Kind::avg) {
    return "a scan has no average; use sum and divide by the number of ranks it covers";
  }
  return why_illegal(dtype, kind);
}

}  // namespace tutti
