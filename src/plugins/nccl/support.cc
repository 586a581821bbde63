#include "plugins/nccl/support.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/legality.h"

namespace tutti::nccl_backend {

namespace {

/// Empty: NCCL cannot add them.
std::optional<SeenAs> reduced_as(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
      return SeenAs{ncclUint8, 1};
    case DType::i8:
      return SeenAs{ncclInt8, 1};
    case DType::i32:
      return SeenAs{ncclInt32, 1};
    case DType::u32:
      return SeenAs{ncclUint32, 1};
    case DType::i64:
      return SeenAs{ncclInt64, 1};
    case DType::u64:
      return SeenAs{ncclUint64, 1};
    case DType::f16:
      return SeenAs{ncclFloat16, 1};
    case DType::bf16:
      return SeenAs{ncclBfloat16, 1};
    case DType::f32:
      return SeenAs{ncclFloat32, 1};
    case DType::f64:
      return SeenAs{ncclFloat64, 1};
    case DType::complex64:
      return SeenAs{ncclFloat32, 2};
    case DType::complex128:
      return SeenAs{ncclFloat64, 2};
    case DType::bool_:
    case DType::i16:
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
  return std::nullopt;
}

bool is_bitwise(ReduceOp::Kind kind) noexcept {
  return kind == ReduceOp::Kind::band || kind == ReduceOp::Kind::bor ||
         kind == ReduceOp::Kind::bxor;
}

/// Why NCCL cannot combine so; empty if it can.
std::string why_not(DType dtype, ReduceOp::Kind kind) {
  if (is_bitwise(kind)) return "NCCL has no bitwise operations";
  if (!reduced_as(dtype)) return fmt::format("NCCL cannot combine elements of {}", name_of(dtype));
  const bool is_by_parts = kind == ReduceOp::Kind::sum || kind == ReduceOp::Kind::avg ||
                           kind == ReduceOp::Kind::premul_sum;
  const bool is_order = kind == ReduceOp::Kind::min || kind == ReduceOp::Kind::max;
  if (is_order && is_floating(dtype))
    return "NCCL's min and max pass over NaN, and tell -0 from +0 by chance";
  if (is_complex(dtype) && !is_by_parts) {
    return "NCCL knows no complex numbers, and can only add their parts";
  }
  return {};
}

Support no(std::string reason) { return {false, std::move(reason)}; }

}  // namespace

Support support_of(const OpKey& key) {
  if (const auto why = why_illegal(key.op, key.dtype, key.reduce); !why.empty()) {
    return no(std::string(why));
  }
  if (key.device != Device::Kind::cuda) {
    return no("nccl moves device memory only; copy to the device, or use another backend");
  }
  switch (key.op) {
    case Op::barrier:
      return no("ranks meet on the host, where NCCL has no part");
    case Op::send:
    case Op::recv:
      return no("messages do not go through NCCL in this version");
    case Op::scan:
    case Op::exclusive_scan:
      return no("NCCL has no scans");
    case Op::all_reduce:
    case Op::reduce:
    case Op::reduce_scatter:
      if (std::string reason = why_not(key.dtype, key.reduce); !reason.empty()) {
        return no(std::move(reason));
      }
      return {};
    case Op::broadcast:
    case Op::gather:
    case Op::all_gather:
    case Op::scatter:
    case Op::all_to_all:
      return {};
  }
  return no("NCCL has no such operation");
}

SeenAs seen_when_moved(DType dtype) noexcept { return {ncclUint8, size_of(dtype)}; }

SeenAs seen_when_reduced(DType dtype) noexcept { return reduced_as(dtype).value_or(SeenAs{}); }

ncclRedOp_t operator_of(ReduceOp::Kind kind) noexcept {
  switch (kind) {
    case ReduceOp::Kind::product:
      return ncclProd;
    case ReduceOp::Kind::min:
      return ncclMin;
    case ReduceOp::Kind::max:
      return ncclMax;
    case ReduceOp::Kind::avg:
      return ncclAvg;
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::premul_sum:
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      break;
  }
  return ncclSum;
}

}  // namespace tutti::nccl_backend
