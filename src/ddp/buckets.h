// Which gradients travel together.
//
// A *bucket* is one flat buffer that holds the gradients of several parameters and is reduced by
// one all_reduce. Each gradient has its *slot* in a bucket: offset and count, in elements. Slots
// begin on cache lines, so that the kernels of both sides work on aligned memory; the elements
// between slots are *padding*, always zero. Buckets are filled in *ready order*, the order in which
// backward is expected to produce gradients, and are numbered by when their last gradient is due.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/types.h"

namespace tutti::ddp {

/// What the assignment needs to know of a parameter.
struct ParameterShape {
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device = {};
};

struct Slot {
  std::size_t parameter = 0;
  std::size_t offset = 0;
  std::size_t count = 0;
  friend bool operator==(const Slot&, const Slot&) = default;
};

struct BucketShape {
  DType dtype = DType::f32;
  Device device = {};
  std::size_t count = 0;  ///< elements, padding included
  std::vector<Slot> slots;
  friend bool operator==(const BucketShape&, const BucketShape&) = default;
};

/// A bucket is closed once it holds this many bytes. The first one is small, so that communication
/// starts early in backward.
struct BucketLimits {
  std::size_t first_bytes = std::size_t{1} << 20;
  std::size_t bytes = std::size_t{25} << 20;
};

/// Cuts the parameters, in `ready_order`, into buckets of one dtype and device each.
std::vector<BucketShape> assign_buckets(std::span<const ParameterShape> parameters,
                                        std::span<const std::size_t> ready_order,
                                        const BucketLimits& limits);

/// The first guess at the ready order: backward meets the parameters last to first.
std::vector<std::size_t> reverse_order(std::size_t parameter_count);

}  // namespace tutti::ddp
