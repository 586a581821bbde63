// f16 and bf16: accumulated in f32, rounded once.
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/half_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class T>
struct HalfTables {
  template <class Op, Extra kLast = Extra::none>
  static constexpr Table plain() {
    return {some_widths<T, float, Op>(), two_widths<T, T, Op, kLast>(),
            two_widths<float, float, Op>(), fuse<float, T, Op, kLast, 2>,
            fuse<float, T, Sum, kLast, 1>};
  }
  static constexpr Table kSum = plain<Sum>();
  static constexpr Table kProduct = plain<Product>();
  static constexpr Table kMin = plain<Min>();
  static constexpr Table kMax = plain<Max>();
  static constexpr Table kAvg = plain<Sum, Extra::divide>();
  static constexpr Table kPremulSum = {some_widths<T, float, Sum, Extra::scale>(),
                                       two_widths<T, T, Sum, Extra::scale>(), kSum.merge,
                                       kSum.merge_last, kSum.finish};
};

const Table* half_table(DType dtype, ReduceOp::Kind kind) {
  return dtype == DType::f16 ? table_in<HalfTables<float16>>(kind)
                             : table_in<HalfTables<bfloat16>>(kind);
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {
HWY_EXPORT(half_table);
const Table* find_half(DType dtype, ReduceOp::Kind kind) noexcept {
  return HWY_DYNAMIC_DISPATCH(half_table)(dtype, kind);
}
}  // namespace tutti::kernels
#endif
