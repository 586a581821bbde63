// libtorch's backward engine, as four events. The source of this header is the only one that
// touches libtorch's installed but internal headers.
//
// A *graph task* is one run of the engine. Tasks *nest*: a checkpointed block runs backward inside
// its own backward. The *outermost* task is the one the user started; it is known because the
// outputs of forward, which are watched, get their gradients first, and in it. A parameter's
// *accumulator* is the graph node that adds to its gradient; a hook behind it sees the gradient
// complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ddp/parameter_set.h"

namespace tutti::ddp {

/// Called one at a time, in the thread that runs this part of backward: libtorch has one for each
/// device. The current stream of that device is the one that the part was given to; when `ended` is
/// called, those are current that were where backward was called, and behind all parts. What they
/// throw comes out of backward().
struct BackwardEvents {
  /// The task has ended in an exception. In a destructor, or when another one begins.
  std::function<void()> broken;
  /// The outermost task has started, from outputs of a forward that trained this; null: it did not
  /// come through watched outputs.
  std::function<void(const TrainedPtr& trained)> began;
  /// It has come to outputs of another forward.
  std::function<void(const TrainedPtr& trained)> reached;
  std::function<void(std::size_t parameter)> gradient;  ///< this parameter's gradient is complete
  std::function<void(std::size_t parameter)> kept;      ///< the same while no events are delivered
  /// The task is over. `nested`: it was found to be an inner one after all (backward did not come
  /// through watched outputs), and an outer one goes on.
  std::function<void(bool nested)> ended;
};

/// Who watches, and over which ranks of the world it averages.
struct Follower {
  std::string name;
  std::vector<int> ranks;
};

/// A parameter that another one follows as well, over other ranks: both would write its gradient.
struct Contest {
  std::size_t parameter;
  Follower other;
};

/// Threads   As torch calls: one backward at a time.
class BackwardWatch {
 public:
  /// The first one, if `self` were to watch these parameters.
  static std::optional<Contest> contest_of(const std::vector<at::Tensor>& parameters,
                                           const Follower& self);
  /// Watches leaves for its lifetime, each from when it first requires a gradient.
  BackwardWatch(const std::vector<at::Tensor>& parameters, Follower self, BackwardEvents events);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// Whether events other than `kept` are delivered.
  void enable(bool on);
  /// Thawing, loading a model or changing its type may give parameters new accumulators: watches
  /// those. Stops at one that is contested.
  std::optional<Contest> follow_parameters();
  /// Whether another one follows one of the parameters, too.
  bool shares_parameters() const;
  /// Watches what a forward has returned; backward from it is the outermost task.
  void watch_outputs(const std::vector<at::Tensor>& outputs, const TrainedPtr& trained);
  /// Whether this thread is inside a backward, of whatever model.
  static bool in_backward();
  /// Whether a task has begun and not ended: after an exception it never will.
  bool task_open() const;
  /// No event is delivered while this is held: a device's thread may still be in a task that an
  /// exception has ended. Not inside a backward, which holds it itself.
  std::unique_lock<std::mutex> hold();
  /// What comes of the task that is open is ignored.
  void forget_task();
  /// Which parameters backward from these outputs will not reach.
  std::vector<std::size_t> unreached_from(const std::vector<at::Tensor>& outputs) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A tensor that shares memory with `view` but has no autograd history, fit to be a gradient: a
/// program's set_data of that leaves `view` as it is.
at::Tensor without_history(const at::Tensor& view);

}  // namespace tutti::ddp
