// The inside of DistributedDataParallel: the reducer's bookkeeping (ddp/reducer.h) tied to
// libtorch's backward and to a group.
//
// A forward *trains* the parameters that require a gradient when it is called; the same tensor
// under two names counts once. The backward that follows *exchanges* these, less what was frozen
// in between, and whatever else has gradients that no_sync kept local. When it begins, the ranks
// *agree*: if it is not what the backward before exchanged, they pass a barrier whose purpose names
// the change. Ranks that have made another change, or none, disagree with it, and everybody is told
// who changed what.
#pragma once

#include <c10/util/StringUtil.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddp/arrivals.h"
#include "ddp/attendance.h"
#include "ddp/compress.h"
#include "ddp/hook.h"
#include "ddp/model_check.h"
#include "ddp/overlap.h"
#include "ddp/parameter_set.h"
#include "ddp/torch/autograd.h"
#include "ddp/torch/plan.h"
#include "ddp/torch/registered.h"
#include "ddp/torch/stream.h"
#include "tutti/torch/data_parallel.h"

namespace tutti::detail {

using c10::str;
using Clock = std::chrono::steady_clock;
using Names = std::vector<std::string>;

inline constexpr std::size_t kListBytes = 400;  // of names in an error

/// What a model has when it is wrapped.
struct Tensors {
  std::vector<at::Tensor> parameters;  // each once
  Names names;                         // of these
  std::unordered_map<const void*, std::size_t> index;
  std::vector<ddp::NamedParameter> named;
  std::vector<at::Tensor> buffers;
  ddp::ModelDescription description;
};

struct DataParallel::Impl {
  Impl(const ProcessGroup& group, const DataParallelOptions& the_options, Where where);

  // ---- who it is ----
  ProcessGroup group() const;
  std::string name() const;
  Purpose purpose(const std::string& what, std::uint64_t key = 0) const;
  /// The line of the latest forward, with what an operation is for.
  Where at(const Purpose& purpose) const { return called_at.with(purpose); }
  [[noreturn]] void fail(ErrorCode code, const std::string& what) const;
  [[noreturn]] void refuse(const std::string& change) const;
  void must_be_between_steps(const std::string& call);
  void end_broken_step();

  // ---- what is trained ----
  void attach(std::shared_ptr<torch::nn::Module> wrapped);
  ddp::Follower self() const;
  void take_devices();
  void refuse_contest(const std::optional<ddp::Contest>& contest) const;
  void check_model();
  void look_at_model();
  ddp::TrainedPtr without_frozen(const ddp::TrainedPtr& from) const;
  void agree(const ddp::TrainedPtr& now);
  void agree_on(const ddp::TrainedPtr& now, ddp::ParameterSet wanted, std::uint64_t key);
  void meet_after_giving_up(bool others_gave_up = false);
  void use_plan(const ddp::ParameterSet& set);
  void make_buckets(ddp::Plan& of, std::span<const std::size_t> ready_order);
  void reorder_buckets();

  // ---- one step ----
  void set_synchronise(bool on);
  void forward_begins(Where where);
  void copy_buffers();
  void forward_ended(const std::vector<at::Tensor>& outputs);
  void begin_exchange();
  void backward_began(const ddp::TrainedPtr& from);
  void backward_reached(const ddp::TrainedPtr& from);
  void gradient_complete(std::size_t parameter);
  void gradient_kept(std::size_t parameter);
  bool is_last_gradient(std::size_t place);
  void take_gradient(std::size_t place);
  void mark_without_gradient(std::size_t place);
  void backward_ended(bool nested);
  void learn_graph();
  [[noreturn]] void fail_incomplete();
  void launch(std::size_t bucket);
  void start(std::size_t bucket);
  Work start_packed(ddp::Bucket& due, DType dtype, ProcessGroup& ranks);
  void unpack(ddp::Bucket& due);
  void wait(std::size_t bucket);
  void drop(std::size_t bucket) noexcept;
  void finish();
  void count_step(Clock::time_point computed, Clock::time_point done);
  void exchange_used();
  void check_graph_used();
  void hand_out(std::size_t place);
  void start_over() noexcept;
  void set_hook(ddp::NamedHook now, Where where);
  ReduceOp mean() const;
  bool is_left_to_wait(std::size_t bucket) const;

  // ---- uneven inputs: join.cc ----
  void begin_join(const JoinOptions& how, Where where);
  void finish_join(const std::function<void()>& after_backward, Where where);
  void leave_join() noexcept { attendance.reset(); }
  ddp::Word take_turn(const ddp::Word& own);
  void say_backward(const ddp::TrainedPtr& now);
  std::uint64_t agreed_digest() const { return digest_of(*trained, exchanged); }
  static std::uint64_t digest_of(const ddp::Trained& now, const ddp::ParameterSet& wanted);
  void share_sets(ddp::Trained& now, ddp::ParameterSet& wanted);
  void shadow(const std::function<void()>& after_backward);
  void shadow_backward(const ddp::Word& others);
  void mark_shadowed();
  /// Whose buffers and order of gradients count.
  int root() const { return attendance ? attendance->lowest() : 0; }

  const std::string& name_at(std::size_t place) const {
    return tensors.names[plan->parameter(place)];
  }
  Names names_of_plan() const;
  bool looks_for_unused() const { return options.find_unused_parameters && !options.static_graph; }
  /// Whether ranks may have no gradient for something that is exchanged.
  bool may_lack_gradients() const {
    return options.static_graph || looks_for_unused() || exchanged != trained->set;
  }
  bool is_trained(std::size_t place) const { return trained->set[plan->parameter(place)] != 0; }

  const BorrowedGroup borrowed;
  const int rank;
  const DataParallelOptions options;
  const Where made_at;
  const Purpose for_buffers, for_used, for_arrivals, for_hook;
  Where called_at;
  std::shared_ptr<torch::nn::Module> module;
  Tensors tensors;
  std::vector<ddp::Registered> seen;  // in the latest forward
  ddp::TrainedPtr latest;             // by it

  ddp::TrainedPtr began_from;  // the forward whose outputs the latest backward reached first

  // What the ranks have agreed upon, for the latest backward.
  ddp::TrainedPtr trained;
  ddp::ParameterSet exchanged;
  std::vector<std::unique_ptr<ddp::Plan>> plans;  // the latest first
  ddp::Plan* plan = nullptr;                      // the latest

  ddp::NamedHook hook;
  ddp::Overlap overlap = ddp::Overlap::none;
  ddp::OwnDevices devices;
  std::optional<ddp::Attendance> attendance;  // inside a join
  JoinOptions join_options;
  Purpose for_turn;  // of that join
  /// What this rank does: its own steps, or those of others, with their gradients or not.
  enum class Role { trains, follows, stands_still } role = Role::trains;

  bool synchronise = true;
  ddp::ParameterSet kept_local;        // with gradients that were not exchanged yet
  bool must_agree = false;             // a step was given up: did all ranks give it up?
  int forwards = 0;                    // since the last step
  std::vector<std::size_t> unreached;  // by the only forward since then, where asked for
  std::vector<std::uint8_t> used;      // by place, in this step: 0 if there is no gradient
  bool shares_parameters = false;      // with another wrapper, in this step

  DataParallelStats stats;
  ddp::Arrivals arrivals;
  Clock::time_point step_began = {};
  Clock::time_point first_launch = {};

  /// None if attach failed. Its end comes first: it waits for what it has told to touch all above.
  std::optional<ddp::BackwardWatch> watch;
};

}  // namespace tutti::detail
