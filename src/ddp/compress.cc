// Conversions without branches, which compilers turn into vector instructions. f16 after Fabian
// Giesen, "half_to_float_fast5" and "float_to_half_fast3_rtne" (public domain, 2012).
#include "ddp/compress.h"

#include <bit>
#include <cstdint>
#include <utility>

#include "base/half.h"
#include "tutti/torch/communication_hook.h"

namespace tutti::ddp {
namespace {

struct Bf16 {
  static std::uint16_t narrow(float value) { return bfloat_bits(value); }
  static float widen(std::uint16_t bits) { return bfloat_value(bits); }
};

/// As half_bits and half_value, but for what a NaN carries.
struct F16 {
  static std::uint16_t narrow(float value) {
    constexpr std::uint32_t kInfinity = 255u << 23;
    constexpr std::uint32_t kTooLarge = (127u + 16) << 23;
    constexpr std::uint32_t kNormal = 113u << 23;  // the least that is no denormal in f16
    constexpr std::uint32_t kMagic = ((127u - 15) + (23 - 10) + 1) << 23;
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = all >> 16 & 0x8000;
    const std::uint32_t bits = all & 0x7fffffff;
    const std::uint32_t special = bits > kInfinity ? 0x7e00 : 0x7c00;
    // An addition that leaves the ten bits of a denormal at the low end, rounded.
    const float shifted = std::bit_cast<float>(bits) + std::bit_cast<float>(kMagic);
    const std::uint32_t denormal = std::bit_cast<std::uint32_t>(shifted) - kMagic;
    const std::uint32_t normal = (bits + ((15u - 127) << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    const std::uint32_t finite = bits < kNormal ? denormal : normal;
    return static_cast<std::uint16_t>(sign | (bits >= kTooLarge ? special : finite));
  }
  static float widen(std::uint16_t half) {
    constexpr std::uint32_t kExponent = 0x7c00u << 13;
    constexpr std::uint32_t kMagic = 113u << 23;
    const std::uint32_t bits = (half & 0x7fffu) << 13;
    const std::uint32_t exponent = bits & kExponent;
    const std::uint32_t normal = bits + ((127u - 15) << 23);
    const std::uint32_t special = normal + ((128u - 16) << 23);
    const float shifted = std::bit_cast<float>(normal + (1u << 23)) - std::bit_cast<float>(kMagic);
    const auto denormal = std::bit_cast<std::uint32_t>(shifted);
    const std::uint32_t finite = exponent == 0 ? denormal : normal;
    const std::uint32_t sign = (half & 0x8000u) << 16;
    return std::bit_cast<float>(sign | (exponent == kExponent ? special : finite));
  }
};

template <class Half, class Number>
void narrow_all(const Buffer& from, const Buffer& to) {
  const auto* const source = static_cast<const Number*>(from.data);
  auto* const target = static_cast<std::uint16_t*>(to.data);
  for (std::size_t i = 0; i < from.count; ++i) {
    target[i] = Half::narrow(static_cast<float>(source[i]));
  }
}

template <class Half, class Number>
void widen_all(const Buffer& from, const Buffer& to) {
  const auto* const source = static_cast<const std::uint16_t*>(from.data);
  auto* const target = static_cast<Number*>(to.data);
  for (std::size_t i = 0; i < from.count; ++i) target[i] = Half::widen(source[i]);
}

}  // namespace

void narrow(const Buffer& from, const Buffer& to) {
  const bool is_f64 = from.dtype == DType::f64;
  if (to.dtype == DType::bf16) {
    is_f64 ? narrow_all<Bf16, double>(from, to) : narrow_all<Bf16, float>(from, to);
  } else {
    is_f64 ? narrow_all<F16, double>(from, to) : narrow_all<F16, float>(from, to);
  }
}

void widen(const Buffer& from, const Buffer& to) {
  const bool is_f64 = to.dtype == DType::f64;
  if (from.dtype == DType::bf16) {
    is_f64 ? widen_all<Bf16, double>(from, to) : widen_all<Bf16, float>(from, to);
  } else {
    is_f64 ? widen_all<F16, double>(from, to) : widen_all<F16, float>(from, to);
  }
}

Memory Compress::memory_of(const GradientBucket& bucket, ProcessGroup& group) {
  if (memory_.size() <= bucket.index) memory_.resize(bucket.index + 1);
  Memory& memory = memory_[bucket.index];
  const std::size_t byte_count = bucket.gradients.count * sizeof(std::uint16_t);
  if (memory.byte_count < byte_count) memory = group.allocate(byte_count);
  return memory;
}

Work Compress::operator()(const GradientBucket& bucket, ProcessGroup& group) {
  const AllReduceOptions options{.op = bucket.mean};
  const Buffer full = bucket.gradients;
  if (!takes(full.dtype)) return group.all_reduce(full, options, async, bucket.where);
  if (full.device.kind != Device::Kind::cpu) {
    throw Error(ErrorCode::kUnsupported,
                "a hook of one's own calls bf16_compress or f16_compress with gradients on " +
                    name_of(full.device) +
                    "; on a device they work by themselves: set_communication_hook(name, "
                    "tutti::bf16_compress())");
  }
  Memory memory = memory_of(bucket, group);
  const Buffer half(memory.data.get(), full.count, dtype_);
  narrow(full, half);
  return group.all_reduce(half, options, async, bucket.where)
      .then([full, half, keep = std::move(memory)](const Error* failure) {
        if (failure == nullptr) widen(half, full);
      });
}

}  // namespace tutti::ddp

namespace tutti {

CommunicationHook bf16_compress() { return ddp::Compress(DType::bf16); }
CommunicationHook f16_compress() { return ddp::Compress(DType::f16); }

}  // namespace tutti
