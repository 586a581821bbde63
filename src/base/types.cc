// Names, and the two 16-bit floating types. Both conversions work on the bits alone, so that they
// do not depend on the rounding mode, on flush-to-zero, or on what the processor offers.
#include "tutti/types.h"

#include <fmt/format.h>

#include <bit>

#include "base/half.h"
#include "base/hash.h"

namespace tutti {

float16::float16(float value) noexcept : bits(half_bits(value)) {}
float16::operator float() const noexcept { return half_value(bits); }
bfloat16::bfloat16(float value) noexcept : bits(bfloat_bits(value)) {}
bfloat16::operator float() const noexcept { return bfloat_value(bits); }

std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::bool_:
      return "bool";
    case DType::u8:
      return "u8";
    case DType::i8:
      return "i8";
    case DType::i16:
      return "i16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
    case DType::u64:
      return "u64";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::complex64:
      return "complex64";
    case DType::complex128:
      return "complex128";
    case DType::f8_e4m3:
      return "f8_e4m3";
    case DType::f8_e5m2:
      return "f8_e5m2";
  }
  return "?";
}

std::string_view name_of(ReduceOp::Kind kind) noexcept {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return "sum";
    case ReduceOp::Kind::product:
      return "product";
    case ReduceOp::Kind::min:
      return "min";
    case ReduceOp::Kind::max:
      return "max";
    case ReduceOp::Kind::avg:
      return "avg";
    case ReduceOp::Kind::premul_sum:
      return "premul_sum";
    case ReduceOp::Kind::band:
      return "band";
    case ReduceOp::Kind::bor:
      return "bor";
    case ReduceOp::Kind::bxor:
      return "bxor";
  }
  return "?";
}

std::string name_of(const Device& device) {
  if (device.kind == Device::Kind::cpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

std::string_view name_of(Op op) noexcept {
  switch (op) {
    case Op::send:
      return "send";
    case Op::recv:
      return "recv";
    case Op::broadcast:
      return "broadcast";
    case Op::all_reduce:
      return "all_reduce";
    case Op::reduce:
      return "reduce";
    case Op::gather:
      return "gather";
    case Op::all_gather:
      return "all_gather";
    case Op::scatter:
      return "scatter";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_to_all:
      return "all_to_all";
    case Op::barrier:
      return "barrier";
    case Op::scan:
      return "scan";
    case Op::exclusive_scan:
      return "exclusive_scan";
  }
  return "?";
}

std::string name_of(const Where& where) {
  const std::string_view path = where.file == nullptr ? "" : where.file;
  if (path.empty()) return {};
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line);
}

Purpose Purpose::part(const std::string& of_call, const Where& call) {
  const std::uint64_t key = hash_text(of_call);
  return {call.purpose == nullptr ? key : hash_combine(call.purpose->key, key),
          of_call + purpose_of(call)};
}

std::string purpose_of(const Where& where) {
  return where.purpose == nullptr ? std::string() : " for " + where.purpose->text;
}

}  // namespace tutti
