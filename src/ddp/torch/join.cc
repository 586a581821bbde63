// Uneven inputs: what a rank that has run out of samples does so that the others can go on.
//
// A shadowed backward is a backward of a rank without samples: the same buckets, in the same order,
// with zeros in them, or with what no_sync has kept. What it exchanges is learned from the lowest
// rank that is in, because models freeze and thaw meanwhile.
#include <ATen/ATen.h>

#include <exception>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "ddp/torch/data_parallel_impl.h"
#include "ddp/torch/tensor.h"

namespace tutti::detail {

void DataParallel::Impl::begin_join(const JoinOptions& how, Where where) {
  called_at = where;
  must_be_between_steps("join");
  if (attendance) {
    fail(ErrorCode::kInvalidArgument, "join inside a join; finish the first one before");
  }
  attendance.emplace(group().world_size());
  join_options = how;
  for_turn = purpose(how.divide_by_world ? "a turn inside join"
                                         : "a turn inside join that divides by the ranks still in");
}

ddp::Word DataParallel::Impl::take_turn(const ddp::Word& own) {
  ProcessGroup ranks = group();
  return attendance->take(own, agreed_digest(), ranks, at(for_turn));
}

/// Says that this rank's backward begins.
void DataParallel::Impl::say_backward(const ddp::TrainedPtr& now) {
  ddp::Trained own = *now;
  ddp::ParameterSet wanted = now->set;
  ddp::add(wanted, kept_local);
  take_turn({ddp::Turn::backward, must_agree, digest_of(own, wanted)});
  share_sets(own, wanted);
}

/// Gives those who shadow what the lowest rank that is in trains and exchanges, where that is new.
void DataParallel::Impl::share_sets(ddp::Trained& now, ddp::ParameterSet& wanted) {
  if (!attendance->is_changed() || !attendance->has_shadows()) return;
  std::vector<std::uint8_t> both = now.set;
  both.insert(both.end(), wanted.begin(), wanted.end());
  both.push_back(now.refusal.empty() ? 0 : 1);
  const Purpose for_sets = purpose("what is trained while ranks have left");
  group().broadcast(Buffer(both), {.root = root()}, at(for_sets));
  if (role == Role::trains) return;
  const auto count = static_cast<std::ptrdiff_t>(now.set.size());
  now.set.assign(both.begin(), both.begin() + count);
  wanted.assign(both.begin() + count, both.begin() + 2 * count);
  if (both.back() != 0) now.refusal = str("the model of rank ", root(), " was changed");
}

/// `others`: what the lowest rank that is in has said.
void DataParallel::Impl::shadow_backward(const ddp::Word& others) try {
  step_began = Clock::now();
  ddp::Trained now{trained->set, {}};
  ddp::ParameterSet wanted = exchanged;
  share_sets(now, wanted);
  meet_after_giving_up(others.gave_up);
  if (others.digest != agreed_digest()) {
    agree_on(std::make_shared<const ddp::Trained>(std::move(now)), std::move(wanted),
             others.digest);
  }
  begin_exchange();
  mark_shadowed();
  finish();
} catch (...) {
  start_over();
  throw;
}

/// In the order of the first guess: if this is a plan's first step, its order stays.
void DataParallel::Impl::mark_shadowed() {
  const at::NoGradGuard no_grad;
  used.assign(plan->count(), may_lack_gradients() ? 0 : 1);
  for (std::size_t place = plan->count(); place-- > 0;) {
    const bool has_kept = kept_local[plan->parameter(place)] != 0;
    if (has_kept && plan->tensor(place).grad().defined()) {
      mark_without_gradient(place);
    } else {
      plan->take_turn(place);
      plan->view(place).zero_();
      plan->reducer.mark_ready(place);
    }
  }
}

void DataParallel::Impl::shadow(const std::function<void()>& after_backward) {
  for (;;) {
    const ddp::Word others = take_turn({ddp::Turn::left, false, 0});
    if (attendance->is_over()) return;
    if (others.turn == ddp::Turn::forward) {
      copy_buffers();
    } else {
      shadow_backward(others);
      if (after_backward) after_backward();
    }
  }
}

void DataParallel::Impl::finish_join(const std::function<void()>& after_backward, Where where) {
  called_at = where;
  must_be_between_steps("finish");
  if (!attendance) fail(ErrorCode::kInvalidArgument, "finish of a join that has been finished");
  struct End {
    Impl& impl;
    ~End() {
      impl.attendance.reset();
      impl.role = Role::trains;
    }
  } const end{*this};
  role = after_backward ? Role::follows : Role::stands_still;
  shadow(after_backward);
  if (!attendance->has_shadows()) return;  // all have left after one step: nobody has missed any
  ProcessGroup ranks = group();
  const Purpose for_model = purpose("the model of those who left last");
  ddp::broadcast_tensors(ranks, tensors.parameters, root(), at(for_model));
  if (!options.broadcast_buffers) return;
  ddp::broadcast_tensors(ranks, tensors.buffers, root(), at(for_buffers));
}

DataParallel::Join::Join(DataParallel& owner, const JoinOptions& options, Where where)
    : impl_(&owner.impl()), made_at_(where), exceptions_(std::uncaught_exceptions()) {
  impl_->begin_join(options, where);
}

void DataParallel::Join::finish(const std::function<void()>& after_backward, Where where) {
  if (std::exchange(is_finished_, true)) {
    impl_->fail(ErrorCode::kInvalidArgument, "finish of a join that has been finished");
  }
  impl_->finish_join(after_backward, where);
}

DataParallel::Join::~Join() {
  if (is_finished_) return;
  if (std::uncaught_exceptions() > exceptions_) {
    impl_->leave_join();
    return;
  }
  try {
    impl_->finish_join({}, made_at_);
  } catch (const std::exception& failure) {
    log(LogLevel::warn, str("in the destructor of a join: ", failure.what()));
  }
}

}  // namespace tutti::detail
