// Gradients in 16 bits.
#pragma once

#include "tutti/buffer.h"

namespace tutti::ddp {

/// Rounds f32, or f64 by way of f32, to nearest even into f16 or bf16 of the same count.
void narrow(const Buffer& from, const Buffer& to);
/// The way back, which is exact.
void widen(const Buffer& from, const Buffer& to);

}  // namespace tutti::ddp
