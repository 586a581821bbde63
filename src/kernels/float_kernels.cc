// f32 and f64.
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/float_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class T>
struct FloatTables {
  static constexpr ByWidth kSums = all_widths<T, T, Sum>();
  static constexpr ByWidth kScaled = all_widths<T, T, Sum, Extra::scale>();
  static constexpr ByWidth kMeans = all_widths<T, T, Sum, Extra::divide>();
  static constexpr Table kSum = table_of(kSums);
  static constexpr Table kProduct = table_of(some_widths<T, T, Product>());
  static constexpr Table kMin = table_of(some_widths<T, T, Min>());
  static constexpr Table kMax = table_of(some_widths<T, T, Max>());
  static constexpr Table kPremulSum = {kScaled, kScaled, kSums, kSums.of[2], kSums.of[1]};
  static constexpr Table kAvg = {kSums, kMeans, kSums, kMeans.of[2],
                                 fuse<T, T, Sum, Extra::divide, 1>};
};

const Table* float_table(DType dtype, ReduceOp::Kind kind) {
  return dtype == DType::f32 ? table_in<FloatTables<float>>(kind)
                             : table_in<FloatTables<double>>(kind);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {
HWY_EXPORT(float_table);
const Table* find_float(DType dtype, ReduceOp::Kind kind) noexcept {
  return HWY_DYNAMIC_DISPATCH(float_table)(dtype, kind);
}
}  // namespace tutti::kernels
#endif
