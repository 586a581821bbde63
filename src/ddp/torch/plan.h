// The buckets in which one set of parameters is exchanged.
//
// A parameter has its index in the model and, in a plan that exchanges it, a *place*, from 0. Every
// bucket is one flat tensor, in the group's memory or on the device of its parameters; every place
// has a *view* into it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "ddp/buckets.h"
#include "ddp/parameter_set.h"
#include "ddp/reducer.h"
#include "ddp/static_graph.h"
#include "ddp/torch/stream.h"
#include "tutti/process_group.h"

namespace tutti::ddp {

struct Bucket {
  at::Tensor flat;
  DType dtype = DType::f32;
  Purpose purpose = {};
  /// On a device whoever writes gradients or reads means takes a turn: hooks run on the streams of
  /// their parameters.
  StreamTurns turns = {};
  at::Tensor packed = {};  ///< on a device: the 16 bits that travel in place of `flat`
  Work work = {};          // last: it ends before what it uses

  bool is_on_device() const { return flat.is_cuda(); }
  /// All of it, behind what has been done to it; the operation is ordered with the current stream.
  Buffer take();
};

class Plan {
 public:
  static constexpr std::size_t kNoPlace = std::numeric_limits<std::size_t>::max();

  Plan(const ParameterSet& set, std::span<const at::Tensor> parameters, ReducerActions actions);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Cuts the buckets anew, if that changes them; only between steps. `ready_order`: of places.
  void make_buckets(std::span<const std::size_t> ready_order, const BucketLimits& limits,
                    ProcessGroup& group,
                    const std::function<Purpose(std::size_t bucket, std::size_t count)>& purpose);

  const ParameterSet& set() const { return set_; }
  std::size_t count() const { return tensors_.size(); }
  std::size_t byte_count() const;  ///< of all buckets
  std::size_t place_of(std::size_t parameter) const { return places_[parameter]; }

  // By place.
  std::size_t parameter(std::size_t place) const { return parameters_[place]; }
  const at::Tensor& tensor(std::size_t place) const { return tensors_[place]; }
  const at::Tensor& view(std::size_t place) const { return views_[place]; }
  /// Whether the parameter's gradient lies in its bucket.
  bool holds_view(std::size_t place) const;

  /// Before the parameter's view is used on the current stream.
  void take_turn(std::size_t place) { buckets[reducer.bucket_of(place)].turns.take(); }

  std::vector<Bucket> buckets;
  Reducer reducer;
  bool reordered = false;  ///< the buckets follow an observed order

  // With static_graph: what the first step was that trained the same parameters.
  void begin_graph(const ParameterSet& trained);  ///< a backward of these does
  StaticGraph graph;                              ///< by place; on this rank
  std::vector<std::uint8_t> graph_used;  ///< by place: some rank had a gradient; empty: not known

 private:
  at::Tensor view_of(const at::Tensor& flat, const Slot& slot) const;

  const ParameterSet set_;
  std::vector<std::size_t> parameters_, places_;
  std::vector<at::Tensor> tensors_, views_;
  std::vector<BucketShape> shapes_;
  ParameterSet graph_of_;  // by parameter
};

}  // namespace tutti::ddp
