// Gradients in 16 bits.
#pragma once

#include <vector>

#include "tutti/buffer.h"
#include "tutti/torch/communication_hook.h"

namespace tutti::ddp {

/// Rounds f32, or f64 by way of f32, to nearest even into f16 or bf16 of the same count.
void narrow(const Buffer& from, const Buffer& to);
/// The way back, which is exact.
void widen(const Buffer& from, const Buffer& to);

/// The communication hook that makes them travel so, in memory of the CPU. Who calls it with a
/// bucket on a device does its work there instead.
class Compress {
 public:
  explicit Compress(DType dtype) noexcept : dtype_(dtype) {}
  /// A copy has memory of its own: the buckets of another model may be under way at the same time.
  Compress(const Compress& other) : dtype_(other.dtype_) {}
  Compress& operator=(const Compress&) = delete;

  DType dtype() const noexcept { return dtype_; }
  static bool takes(DType full) noexcept { return full == DType::f32 || full == DType::f64; }
  /// Errors  kUnsupported: memory of a device, in a hook of the program's that calls this one.
  Work operator()(const GradientBucket& bucket, ProcessGroup& group);

 private:
  Memory memory_of(const GradientBucket& bucket, ProcessGroup& group);

  const DType dtype_;
  std::vector<Memory> memory_;  // of what travels, by bucket; kept from step to step
};

}  // namespace tutti::ddp
