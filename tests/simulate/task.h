// One operation of a plan as one rank carries it out: its data, the call, and what must come out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/round.h"
#include "tutti/process_group.h"

namespace tutti::simulate {

/// Lives until its operation has ended.
class Task {
 public:
  /// `step`: index into the plan's steps. `me`: rank in the group. With `other` it is another
  /// operation than that of the plan.
  Task(const Plan& plan, std::size_t step, int me, bool other = false);
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  void run(ProcessGroup& group);
  Work start(ProcessGroup& group);

  std::size_t step() const noexcept { return step_; }
  std::string_view what() const noexcept { return name_of(op_); }
  int group() const noexcept { return planned_.group; }
  bool is_message() const noexcept { return tutti::is_message(op_); }
  bool is_send() const noexcept { return op_ == Op::send; }
  bool is_other() const noexcept { return is_other_; }
  /// Of a receive that has ended well: the step whose message it got, by its content.
  std::size_t received() const noexcept;
  /// After it has ended well; empty: as it must be, bit for bit.
  std::string why_wrong() const;

 private:
  template <class Result, class... How>
  Result issue(ProcessGroup& group, How... how);
  template <class Result, class... How>
  Result issue_uneven(ProcessGroup& group, How... how);
  void lay_out();
  /// Of a member: how many floats its part has, and how many lie before it.
  std::size_t count_of(int member) const noexcept;
  std::size_t first_of(int member) const noexcept;
  std::vector<std::size_t> counts() const;
  bool is_uneven() const noexcept { return planned_.uneven && has_parts(op_); }
  bool has_input() const noexcept;
  bool has_output() const noexcept;
  bool is_joined() const noexcept;  ///< its output has a part of each member
  bool needs_all() const noexcept;  ///< its output depends on all inputs
  /// Of barriers in which ranks wait: every other one.
  bool is_monitored() const noexcept { return op_ == Op::barrier && step_ % 2 == 1; }
  std::string why_wrong_message() const;

  const Plan& plan_;
  const std::size_t step_;
  const PlanStep& planned_;
  const int me_;
  const int members_;
  const bool is_other_;
  Op op_;
  std::size_t count_;
  int root_;
  std::vector<float> input_, output_;
  MessageInfo info_;
};

}  // namespace tutti::simulate
