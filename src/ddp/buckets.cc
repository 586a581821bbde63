#include "ddp/buckets.h"

#include <algorithm>
#include <numeric>

namespace tutti::ddp {
namespace {

constexpr std::size_t kCacheLine = 64;

std::size_t align_up(std::size_t offset, DType dtype) {
  const std::size_t elements_per_line = kCacheLine / size_of(dtype);
  return (offset + elements_per_line - 1) / elements_per_line * elements_per_line;
}

}  // namespace

std::vector<BucketShape> assign_buckets(std::span<const ParameterShape> parameters,
                                        std::span<const std::size_t> ready_order,
                                        const BucketLimits& limits) {
  struct Open {
    BucketShape shape;
    std::size_t last_due = 0;  // position in the ready order
    std::size_t limit;
  };
  std::vector<Open> open;
  std::vector<Open> closed;
  for (std::size_t position = 0; position < ready_order.size(); ++position) {
    const ParameterShape& parameter = parameters[ready_order[position]];
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Open& candidate) {
      return candidate.shape.dtype == parameter.dtype && candidate.shape.device == parameter.device;
    });
    if (bucket == open.end()) {
      open.push_back({{parameter.dtype, parameter.device, 0, {}}, 0, limits.first_bytes});
      bucket = open.end() - 1;
    }
    BucketShape& shape = bucket->shape;
    const std::size_t offset = align_up(shape.count, shape.dtype);
    shape.slots.push_back({ready_order[position], offset, parameter.count});
    shape.count = offset + parameter.count;
    bucket->last_due = position;
    if (shape.count * size_of(shape.dtype) >= bucket->limit) {
      closed.push_back(*bucket);
      shape.slots.clear();
      shape.count = 0;
      bucket->limit = limits.bytes;
    }
  }
  for (Open& rest : open) {
    if (!rest.shape.slots.empty()) closed.push_back(std::move(rest));
  }
  std::sort(closed.begin(), closed.end(),
            [](const Open& a, const Open& b) { return a.last_due < b.last_due; });
  std::vector<BucketShape> buckets;
  for (Open& bucket : closed) buckets.push_back(std::move(bucket.shape));
  return buckets;
}

std::vector<std::size_t> reverse_order(std::size_t parameter_count) {
  std::vector<std::size_t> order(parameter_count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

}  // namespace tutti::ddp
