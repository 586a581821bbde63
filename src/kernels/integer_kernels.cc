// Integers and bool, and the copy that bypasses the cache.
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integer_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class T, class Op>
constexpr Table kIntegers = table_of(some_widths<T, T, Op>());
template <class T>
constexpr Table kIntegerSum = table_of(all_widths<T, T, Sum>());

/// Sums and products wrap, so they are computed unsigned; bitwise operations are called with bytes.
template <class Signed, class Unsigned>
const Table* table_for(bool is_signed, ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return &kIntegerSum<Unsigned>;
    case ReduceOp::Kind::product:
      return &kIntegers<Unsigned, Product>;
    case ReduceOp::Kind::min:
      return is_signed ? &kIntegers<Signed, Min> : &kIntegers<Unsigned, Min>;
    case ReduceOp::Kind::max:
      return is_signed ? &kIntegers<Signed, Max> : &kIntegers<Unsigned, Max>;
    case ReduceOp::Kind::band:
      return &kIntegers<std::uint8_t, And>;
    case ReduceOp::Kind::bor:
      return &kIntegers<std::uint8_t, Or>;
    case ReduceOp::Kind::bxor:
      return &kIntegers<std::uint8_t, Xor>;
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
      return nullptr;
  }
  return nullptr;
}

const Table* truth_table(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::band:
      return &kIntegers<Truth, And>;
    case ReduceOp::Kind::max:
    case ReduceOp::Kind::bor:
      return &kIntegers<Truth, Or>;
    case ReduceOp::Kind::bxor:
      return &kIntegers<Truth, Xor>;
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::product:
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
      return nullptr;
  }
  return nullptr;
}

const Table* integer_table(DType dtype, ReduceOp::Kind kind) {
  switch (dtype) {
    case DType::bool_:
      return truth_table(kind);
    case DType::u8:
      return table_for<std::int8_t, std::uint8_t>(false, kind);
    case DType::i8:
      return table_for<std::int8_t, std::uint8_t>(true, kind);
    case DType::u16:
      return table_for<std::int16_t, std::uint16_t>(false, kind);
    case DType::i16:
      return table_for<std::int16_t, std::uint16_t>(true, kind);
    case DType::u32:
      return table_for<std::int32_t, std::uint32_t>(false, kind);
    case DType::i32:
      return table_for<std::int32_t, std::uint32_t>(true, kind);
    case DType::u64:
      return table_for<std::int64_t, std::uint64_t>(false, kind);
    case DType::i64:
      return table_for<std::int64_t, std::uint64_t>(true, kind);
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
    case DType::complex64:
    case DType::complex128:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return nullptr;
  }
  return nullptr;
}

void stream(void* to, const void* from, std::size_t byte_count) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* target = static_cast<std::uint8_t*>(to);
  const auto* source = static_cast<const std::uint8_t*>(from);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(target) % lanes;
  const std::size_t head = std::min(byte_count, past == 0 ? 0 : lanes - past);
  if (head > 0) std::memcpy(target, source, head);
  std::size_t at = head;
  for (; at + lanes <= byte_count; at += lanes) {
    hn::Stream(hn::LoadU(d, source + at), d, target + at);
  }
  if (at < byte_count) std::memcpy(target + at, source + at, byte_count - at);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {
HWY_EXPORT(integer_table);
HWY_EXPORT(stream);
HWY_EXPORT(target_name);
const Table* find_integer(DType dtype, ReduceOp::Kind kind) noexcept {
  return HWY_DYNAMIC_DISPATCH(integer_table)(dtype, kind);
}
void copy_unfenced(void* to, const void* from, std::size_t byte_count) noexcept {
  HWY_DYNAMIC_DISPATCH(stream)(to, from, byte_count);
}
const char* chosen_target() noexcept { return HWY_DYNAMIC_DISPATCH(target_name)(); }
}  // namespace tutti::kernels
#endif
