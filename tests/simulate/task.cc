#include "simulate/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tutti::simulate {

namespace {

/// Data repeat after a prime number of elements, so that what must come out is computed once.
constexpr std::size_t kPeriod = 251;

/// Of a step for `value`; who disagrees with the plan puts in something else.
constexpr std::uint64_t number_of(std::size_t step, bool disagrees) noexcept {
  return step + (disagrees ? 1000 : 0);
}

/// What `member` puts into `step`: of different magnitudes, so that the order of additions shows.
float value(std::uint64_t step, int member, std::size_t i) noexcept {
  std::uint64_t bits = (step * 64 + static_cast<std::uint64_t>(member) + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 29)) + (i % kPeriod) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 32)) * 0x94d049bb133111eb;
  const auto digits = static_cast<float>(static_cast<std::int32_t>(bits >> 40) - (1 << 23));
  return digits * static_cast<float>(1 << (bits & 15)) * 0x1p-24f;
}

/// Repeats what the first `period` elements are.
template <class Element>
void fill(std::span<float> to, Element&& element) {
  const std::size_t period = std::min(kPeriod, to.size());
  for (std::size_t i = 0; i < period; ++i) to[i] = element(i);
  for (std::size_t done = period; done < to.size(); done += kPeriod)
    std::memcpy(&to[done], to.data(), std::min(kPeriod, to.size() - done) * sizeof(float));
}

bool is_filled(std::span<const float> with, std::span<const float> period) {
  for (std::size_t at = 0; at < with.size(); at += period.size()) {
    const std::size_t count = std::min(period.size(), with.size() - at);
    if (std::memcmp(&with[at], period.data(), count * sizeof(float)) != 0) return false;
  }
  return true;
}

/// docs/numerics.md: tree(v) = tree(first k) + tree(rest), k the largest power of two below.
float tree(const float* values, std::size_t count) noexcept {
  if (count == 1) return *values;
  const std::size_t first = std::bit_floor(count - 1);
  return tree(values, first) + tree(values + first, count - first);
}

}  // namespace

Task::Task(const Plan& plan, std::size_t step, int me, bool other)
    : plan_(plan),
      step_(step),
      planned_(plan.steps[step]),
      me_(me),
      members_(plan.size_of(planned_.group)),
      is_other_(other),
      op_(planned_.op),
      count_(static_cast<std::size_t>(planned_.count)),
      root_(planned_.root) {
  if (planned_.kind == StepKind::message) {
    op_ = me == planned_.from ? Op::send : Op::recv;
    count_ += other ? 1 : 0;
  } else if (other) {  // of each kind in turn
    switch (step % 3) {
      case 0:
        op_ = op_ == Op::all_reduce ? Op::all_gather : Op::all_reduce;
        count_ += 1;
        break;
      case 1:
        count_ += 1;
        op_ = op_ == Op::barrier ? Op::all_reduce : op_;
        break;
      default:
        root_ = (root_ + 1) % members_;
        op_ = op_ == Op::broadcast ? Op::reduce : Op::broadcast;
    }
    // Nor is it what another step does: a rank that skips one would agree with it.
    const auto does_the_same = [&](const PlanStep& each) {
      return each.kind == StepKind::collective && each.op == op_ &&
             static_cast<std::size_t>(each.count) == count_;
    };
    while (op_ != Op::barrier && std::any_of(plan.steps.begin(), plan.steps.end(), does_the_same))
      ++count_;
  }
  lay_out();
}

bool Task::is_joined() const noexcept {
  return op_ == Op::all_to_all || op_ == Op::all_gather || op_ == Op::gather;
}

bool Task::has_input() const noexcept {
  return op_ != Op::recv && op_ != Op::barrier && (op_ != Op::scatter || me_ == root_);
}

bool Task::has_output() const noexcept {
  return op_ != Op::send && op_ != Op::barrier && (op_ != Op::gather || me_ == root_);
}

void Task::lay_out() {
  const auto members = static_cast<std::size_t>(members_);
  const bool is_split = op_ == Op::all_to_all || op_ == Op::reduce_scatter || op_ == Op::scatter;
  const std::uint64_t number = number_of(step_, is_other_);
  if (has_input()) {
    input_.resize(is_split ? first_of(members_) : count_of(me_));
    fill(input_, [&](std::size_t i) { return value(number, me_, i); });
  }
  if (op_ == Op::send) input_[0] = static_cast<float>(step_);
  const std::size_t part = op_ == Op::all_to_all ? count_of(me_) * members : first_of(members_);
  if (has_output()) output_.assign(is_joined() ? part : count_of(me_), -1.0f);
  if (op_ == Op::broadcast && me_ == root_) output_ = input_;
}

std::size_t Task::count_of(int member) const noexcept {
  return count_ + (is_uneven() ? static_cast<std::size_t>(member % 3) : 0);
}

std::size_t Task::first_of(int member) const noexcept {
  std::size_t before = 0;
  for (int each = 0; each < member; ++each) before += count_of(each);
  return before;
}

std::vector<std::size_t> Task::counts() const {
  std::vector<std::size_t> all;
  for (int member = 0; member < members_; ++member) all.push_back(count_of(member));
  return all;
}

template <class Result, class... How>
Result Task::issue_uneven(ProcessGroup& group, How... how) {
  if (op_ == Op::reduce_scatter)
    return group.reduce_scatterv(input_, output_, counts(), AllReduceOptions{}, how...);
  if (op_ == Op::gather)
    return group.gatherv(input_, output_, counts(), RootedOptions{.root = root_}, how...);
  if (op_ == Op::scatter)
    return group.scatterv(input_, counts(), output_, RootedOptions{.root = root_}, how...);
  if (op_ == Op::all_gather)
    return group.all_gatherv(input_, output_, counts(), CollectiveOptions{}, how...);
  const std::vector<std::size_t> received(static_cast<std::size_t>(members_), count_of(me_));
  return group.all_to_allv(input_, counts(), output_, received, CollectiveOptions{}, how...);
}

template <class Result, class... How>
Result Task::issue(ProcessGroup& group, How... how) {
  // Without a time of its own, a message may be part of a deadlock.
  const Timeout patience = plan_.patience.count() > 0 ? Timeout(plan_.patience) : Timeout();
  if (is_uneven()) return issue_uneven<Result>(group, how...);
  switch (op_) {
    case Op::all_reduce:
      return group.all_reduce(input_, output_, AllReduceOptions{}, how...);
    case Op::reduce:
      return group.reduce(input_, output_, ReduceOptions{.root = root_}, how...);
    case Op::reduce_scatter:
      return group.reduce_scatter(input_, output_, AllReduceOptions{}, how...);
    case Op::broadcast:
      return group.broadcast(output_, RootedOptions{.root = root_}, how...);
    case Op::gather:
      return group.gather(input_, output_, RootedOptions{.root = root_}, how...);
    case Op::all_gather:
      return group.all_gather(input_, output_, CollectiveOptions{}, how...);
    case Op::scatter:
      return group.scatter(input_, output_, RootedOptions{.root = root_}, how...);
    case Op::scan:
      return group.scan(input_, output_, AllReduceOptions{}, how...);
    case Op::exclusive_scan:
      return group.exclusive_scan(input_, output_, AllReduceOptions{}, how...);
    case Op::all_to_all:
      return group.all_to_all(input_, output_, CollectiveOptions{}, how...);
    case Op::send:
      return group.send(input_, planned_.to,
                        {.tag = planned_.tag, .buffered = planned_.buffered, .timeout = patience},
                        how...);
    case Op::recv:
      return static_cast<Result>(
          group.recv(output_, planned_.any ? kAnyRank : planned_.from,
                     {.tag = planned_.tag, .timeout = patience, .info = &info_}, how...));
    case Op::barrier:
      break;
  }
  return group.barrier(CollectiveOptions{}, how...);
}

void Task::run(ProcessGroup& group) {
  if (is_monitored()) return group.monitored_barrier();
  issue<void>(group);
}
Work Task::start(ProcessGroup& group) { return issue<Work>(group, async); }

std::size_t Task::received() const noexcept { return static_cast<std::size_t>(output_[0]); }

std::string Task::why_wrong_message() const {
  const std::size_t step = output_[0] >= 0 ? received() : plan_.steps.size();
  const bool is_one = step < plan_.steps.size() && static_cast<float>(step) == output_[0];
  if (!is_one) return fmt::format("got what nobody sent, {}", output_[0]);
  const PlanStep& sent = plan_.steps[step];
  const bool is_mine = sent.kind == StepKind::message && sent.group == planned_.group &&
                       sent.to == me_ && sent.tag == planned_.tag &&
                       (planned_.any || sent.from == planned_.from);
  if (!is_mine) return fmt::format("got the message of step {}", step);
  if (info_.rank != sent.from || info_.tag != sent.tag || info_.count != count_)
    return fmt::format("was told that rank {} sent it, with tag {}", info_.rank, info_.tag);
  const auto is_of = [&](std::uint64_t number) {
    std::vector<float> period(std::min(kPeriod, count_));
    fill(period, [&](std::size_t i) { return value(number, sent.from, i); });
    const auto got = std::span(output_).subspan(1);  // the first is the step
    const auto first = std::min(period.size() - 1, got.size());
    return is_filled(got.first(first), std::span(period).subspan(1)) &&
           is_filled(got.subspan(first), period);
  };
  // Both ends may disagree with the plan in the same way.
  const bool is_right =
      is_of(number_of(step, false)) || (is_other_ && is_of(number_of(step, true)));
  return is_right ? "" : fmt::format("got other bytes than those of step {}", step);
}

std::string Task::why_wrong() const {
  if (op_ == Op::recv) return why_wrong_message();
  if (!has_output()) return {};
  if (is_other_) return members_ > 1 && needs_all() ? "has succeeded alone" : "";
  if (op_ == Op::reduce && me_ != root_) return {};
  std::vector<float> period;
  const std::size_t own_first = first_of(me_);
  const auto from = [&](int member, std::size_t first) {
    fill(period, [&](std::size_t i) { return value(step_, member, first + i); });
  };
  const auto of_first = [&](int members, std::size_t first) {
    std::vector<float> inputs(static_cast<std::size_t>(members));
    for (std::size_t i = 0; i < period.size(); ++i) {
      for (int member = 0; member < members; ++member)
        inputs[static_cast<std::size_t>(member)] = value(step_, member, first + i);
      period[i] = members > 0 ? tree(inputs.data(), inputs.size()) : 0;
    }
  };
  const bool is_of_others = op_ == Op::gather || op_ == Op::all_gather;
  std::size_t at = 0;
  for (int part = 0; part < (is_joined() ? members_ : 1); ++part) {
    const std::size_t count = count_of(is_of_others ? part : me_);
    period.resize(std::min(kPeriod, count));
    if (is_joined()) {
      from(part, op_ == Op::all_to_all ? own_first : 0);
    } else if (op_ == Op::broadcast || op_ == Op::scatter) {
      from(root_, op_ == Op::scatter ? own_first : 0);
    } else if (op_ == Op::scan || op_ == Op::exclusive_scan) {
      of_first(me_ + (op_ == Op::scan ? 1 : 0), 0);
    } else {
      of_first(members_, op_ == Op::reduce_scatter ? own_first : 0);
    }
    if (!is_filled(std::span(output_).subspan(at, count), period))
      return fmt::format("has a wrong result of {} x {}, part {}", name_of(op_), count, part);
    at += count;
  }
  return {};
}

bool Task::needs_all() const noexcept {
  return op_ == Op::all_reduce || op_ == Op::reduce_scatter || op_ == Op::all_gather ||
         op_ == Op::all_to_all;
}

}  // namespace tutti::simulate
