#include "simulate/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <numeric>

#include "control/host.h"
#include "group/group_impl.h"
#include "group/native_spec.h"
#include "native/native.h"
#include "simulate/network.h"
#include "simulate/task.h"

namespace tutti::simulate {

using namespace std::chrono_literals;

namespace {

/// One rank: it follows the plan, and notes what it is told.
class Program {
 public:
  Program(Happened& happened, int rank)
      : happened_(happened),
        plan_(happened.plan),
        kernel_(happened.kernel),
        rank_(rank),
        random_(plan_.seed * 1000 + static_cast<std::uint64_t>(rank)) {}

  void run() {
    if (call("join", -1, [&] { join(); })) follow();
    settle(-1);
    host_.reset();
    while (!groups_.empty()) {
      const int group = groups_.rbegin()->first;
      // Else the destructor does.
      if (is_well(group) && plan_.goes_on[static_cast<std::size_t>(rank_)]) close(group);
      // Who has said its last goodbye may stay, or die.
      if (group == 0 && random_.chance(0.3))
        pause(std::chrono::milliseconds(random_.from_to(1, 60)));
      leave(group);
    }
    happened_.left[rank_] = kernel_.now();
  }

 private:
  struct Group {
    ProcessGroup group;
    GroupId id = 0;
    int me = 0;
    bool failed = false, closed = false;
  };
  struct Pending {
    std::unique_ptr<Task> task;
    Work work;
    Fiber* thread = nullptr;
    bool is_cancelled = false;
  };

  void join() {
    control::HostOptions options;
    options.board_fd = happened_.board_fd;
    if (Network* const network = happened_.network) {
      options.board_fd = network->board_fd(plan_.host_of(rank_));
      options.roster = network->roster(plan_.host_of(rank_));
      options.others = &network->others_of(rank_);
    }
    options.rank = rank_;
    options.world_size = plan_.ranks();
    options.timeout = 5s;
    options.first_line_after = plan_.timeout / 8;
    options.deadlock_after = plan_.timeout / 4;
    host_ = control::Host::join(options);
  }

  void follow() {
    bool goes_on = make(0);
    for (std::size_t step = 0; step <= plan_.steps.size() && goes_on; ++step) {
      const Fault* const fault = fault_at(step);
      const FaultKind kind = fault != nullptr ? fault->kind : FaultKind::none;
      if (kind == FaultKind::late) pause(fault->lasts);
      if (kind == FaultKind::quit) return;
      if (kind == FaultKind::error) kernel_.self().has_no_memory = true;
      slow_ = kind == FaultKind::slow ? fault->lasts : 0ns;
      if (step == plan_.steps.size()) return;
      if (random_.chance(0.3)) settle(-1);
      goes_on = take(step, kind) || plan_.goes_on[static_cast<std::size_t>(rank_)];
    }
  }

  bool take(std::size_t number, FaultKind fault) {
    const PlanStep& step = plan_.steps[number];
    const auto& members = plan_.groups[static_cast<std::size_t>(step.group)].world_ranks;
    if (std::find(members.begin(), members.end(), rank_) == members.end()) return true;
    if (step.kind == StepKind::make)
      return is_well(plan_.groups[static_cast<std::size_t>(step.group)].parent) && make(step.group);
    if (!is_well(step.group)) return true;
    Group& group = groups_[step.group];
    if (fault == FaultKind::abort) {
      group.group.abort("as planned");
      group.failed = true;
      return false;
    }
    if (fault == FaultKind::skip && step.kind == StepKind::collective) return true;
    if (step.kind == StepKind::close) return close(step.group);
    if (step.kind == StepKind::message && group.me != step.from && group.me != step.to) return true;
    auto task = std::make_unique<Task>(plan_, number, group.me, fault == FaultKind::disagree);
    const bool receives = step.kind == StepKind::message && group.me == step.to;
    return carry_out(std::move(task), receives ? step.how_to : step.how);
  }

  const Fault* fault_at(std::size_t step) const {
    for (const Fault& fault : plan_.faults)
      if (fault.who == rank_ && fault.at == step && fault.kind != FaultKind::die &&
          fault.kind != FaultKind::stop)
        return &fault;
    return nullptr;
  }

  bool is_well(int group) const {
    const auto found = groups_.find(group);
    return found != groups_.end() && !found->second.failed && !found->second.closed &&
           found->second.group.is_member();
  }

  void pause(std::chrono::nanoseconds lasts) { kernel_.block(nullptr, kernel_.now() + lasts); }

  /// A call of the program: it must end in time, and say what its group has failed with, if it has.
  template <class Body>
  bool call(std::string_view what, int group, Body&& body) {
    const auto began = kernel_.now();
    std::optional<ErrorCode> code;
    try {
      body();
    } catch (const Error& error) {
      code = error.code();
      note(what, group, error);
      const std::set<ErrorCode> possible = {
          ErrorCode::kTimeout,   ErrorCode::kPeerLost, ErrorCode::kCollectiveMismatch,
          ErrorCode::kClosed,    ErrorCode::kAborted,  ErrorCode::kSystem,
          ErrorCode::kCancelled, ErrorCode::kDeadlock};
      if (!possible.contains(error.code())) violated(fmt::format("{}: {}", what, error.what()));
    }
    const auto lasted = kernel_.now() - began;
    ++happened_.tally.calls;
    ++happened_.tally.outcomes[fmt::format("{} {}", what, code ? name_of(*code) : "well")];
    if (lasted > 5 * plan_.timeout + happened_.pauses() + 6s)
      violated(fmt::format("{} of group {} took {} ms", what, group, lasted / 1ms));
    return !code;
  }

  void note(std::string_view what, int index, const Error& error) {
    const auto found = groups_.find(index);
    if (found == groups_.end()) return;
    Group& group = found->second;
    const auto failure =
        group.group.is_member() ? group.group.error() : std::optional<Error>(error);
    const bool is_harmless =
        what == "close" || what == "send" || what == "recv" || what == "cancelled";
    if (failure || !is_harmless) group.failed = true;
    const bool stays_usable =
        error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kCancelled;
    if (!failure && !(is_harmless && stays_usable))
      violated(fmt::format("{} of group {} threw {}, and the group has not failed: {}", what, index,
                           name_of(error.code()), error.what()));
    if (failure && !(is_harmless && stays_usable) && failure->code() != error.code())
      violated(fmt::format("{} of group {} threw {}, and the group has failed with {}: {}", what,
                           index, name_of(error.code()), name_of(failure->code()), error.what()));
  }

  void violated(const std::string& what) {
    happened_.violated(fmt::format("rank {}: {}", rank_, what));
  }

  // ---- groups

  bool make(int index) {
    const PlannedGroup& planned = plan_.groups[static_cast<std::size_t>(index)];
    Group& group = groups_[index];
    group.me =
        static_cast<int>(std::find(planned.world_ranks.begin(), planned.world_ranks.end(), rank_) -
                         planned.world_ranks.begin());
    happened_.made_last[rank_] = 0;
    const bool well = call("make", index, [&] {
      try {
        group.group = planned.parent < 0 ? make_world() : make_of(planned);
      } catch (const Error& error) {
        failed_to_make(planned, group.me, error);
        throw;
      }
    });
    group.id = happened_.made_last[rank_];
    return well;
  }

  ProcessGroup make_of(const PlannedGroup& planned) {
    const auto& parents = plan_.groups[static_cast<std::size_t>(planned.parent)].world_ranks;
    std::vector<int> ranks;
    for (const int world_rank : planned.world_ranks)
      ranks.push_back(static_cast<int>(std::find(parents.begin(), parents.end(), world_rank) -
                                       parents.begin()));
    return groups_[planned.parent].group.new_group(ranks);
  }

  /// Culprits are ranks of the parent.
  void failed_to_make(const PlannedGroup& planned, int me, const Error& error) {
    const GroupId id = happened_.made_last[rank_];
    if (id == 0) return;
    const auto of = static_cast<std::size_t>(std::max(planned.parent, 0));
    end(id, me, error, plan_.groups[of].world_ranks);
  }

  /// What a rank has been told, with ranks of the world that are members.
  void end(GroupId id, int me, const Error& error, const std::vector<int>& counted_in) {
    Happened::Group& seen = happened_.groups[id];
    Outcome outcome{error.code(), {}};
    for (const int culprit : error.context().culprits) {
      const int world_rank = counted_in[static_cast<std::size_t>(culprit)];
      const auto& members = seen.world_ranks;
      if (std::find(members.begin(), members.end(), world_rank) != members.end())
        outcome.culprits.push_back(world_rank);
    }
    std::sort(outcome.culprits.begin(), outcome.culprits.end());
    seen.outcomes[static_cast<std::size_t>(me)] = outcome;
  }

  ProcessGroup make_world() {
    group::Parts parts;
    parts.name = "world";
    parts.id = 1000;
    parts.rank = rank_;
    parts.world_ranks.resize(static_cast<std::size_t>(plan_.ranks()));
    std::iota(parts.world_ranks.begin(), parts.world_ranks.end(), 0);
    parts.arrive = parts.stall = parts.close_timeout = plan_.timeout;
    parts.host = host_;
    parts.store = happened_.store;
    return group::make_group(std::move(parts), nullptr, Where::current(),
                             [](group::Parts& made, const GroupSpec& spec) {
                               made.backend = native::make_native(spec);
                             });
  }

  bool close(int index) {
    Group& group = groups_[index];
    settle(index, random_.chance(0.5));
    happened_.leaving.insert(rank_);
    happened_.doing[rank_] = "close";
    const bool well = call("close", index, [&] { group.group.close(); });
    if (well) happened_.groups[group.id].parted.insert(rank_);
    group.closed = well || !group.failed;
    settle(index);
    if (group.closed && !plan_.keeps[static_cast<std::size_t>(rank_)]) leave(index);
    return well;
  }

  /// The group is destroyed; before that it says what it has ended with.
  void leave(int index) {
    const auto found = groups_.find(index);
    if (found == groups_.end()) return;
    Group& group = found->second;
    happened_.leaving.insert(rank_);
    if (group.group.is_member()) {
      if (const auto failure = group.group.error()) {
        end(group.id, group.me, *failure, happened_.groups[group.id].world_ranks);
      } else if (!group.closed) {
        happened_.check_untold(group.id, rank_);
      }
    }
    groups_.erase(found);
  }

  // ---- operations

  bool carry_out(std::unique_ptr<Task> task, How how) {
    const int index = task->group();
    ProcessGroup& group = groups_[index].group;
    if (task->is_message()) {
      Happened::Mail& mail = mail_of(*task, task->step());
      mail.both_posted = mail.last_posted != Clock::time_point{};
      mail.last_posted = kernel_.now();
    }
    if (how == How::waits) {
      const bool well = call(task->what(), index, [&] { run(*task, group); });
      return well || !groups_[index].failed;
    }
    Pending& pending = pending_.emplace_back();
    pending.task = std::move(task);
    Task& own = *pending.task;
    if (how == How::thread && own.is_message()) {
      pending.thread = kernel_.spawn(nullptr, [this, index, &own] {
        call(own.what(), index, [&] { run(own, groups_[index].group); });
      });
      return true;
    }
    const bool started = call("start", index, [&] { pending.work = own.start(group); });
    if (!started) {
      pending_.pop_back();
      return !groups_[index].failed;
    }
    if (how == How::callback)
      pending.work = std::move(pending.work).then([this, lasts = slow_](const Error*) {
        if (lasts.count() > 0) pause(lasts);
      });
    if (how == How::cancels) {
      pause(plan_.steps[own.step()].cancel_after);
      pending.is_cancelled = pending.work.cancel();
    }
    return true;
  }

  void run(Task& task, ProcessGroup& group) {
    try {
      task.run(group);
    } catch (const Error& error) {
      taken_back(task, error);
      throw;
    }
    check(task);
    const Happened::Mail& mail = mail_of(task, task.step());
    if (task.is_message() && !plan_.steps[task.step()].any && mail.both_posted &&
        plan_.patience == 0ms)
      happened_.check_prompt(mail.last_posted, fmt::format("message of step {}", task.step()));
  }

  /// Waits for what is under way in a group, or in all (-1); for threads in any case.
  void settle(int group, bool works = true) {
    for (auto at = pending_.begin(); at != pending_.end();) {
      Pending& pending = *at;
      const bool is_due = pending.thread != nullptr || works;
      if ((group >= 0 && pending.task->group() != group) || !is_due) {
        ++at;
        continue;
      }
      if (pending.thread != nullptr) {
        kernel_.join(pending.thread);
      } else {
        settle(pending);
      }
      at = pending_.erase(at);
    }
  }

  void settle(Pending& pending) {
    const Task& task = *pending.task;
    call(pending.is_cancelled ? "cancelled" : task.what(), task.group(), [&] {
      try {
        while (!look(pending.work)) {
        }
      } catch (const Error& error) {
        if (pending.is_cancelled != (error.code() == ErrorCode::kCancelled))
          violated(fmt::format("a Work that was cancelled ends with {}", name_of(error.code())));
        taken_back(task, error);
        throw;
      }
      if (pending.is_cancelled) violated("a Work that was cancelled ends well");
      check(task);
    });
  }

  /// Waits, or looks at it and computes for a while: then others carry it forward.
  bool look(Work& work) {
    constexpr auto kPause = 8ms;
    if (random_.chance(0.7) || happened_.paused + kPause > plan_.timeout / 8) {
      work.wait();
      return true;
    }
    if (work.wait_for(std::chrono::microseconds(random_.from_to(0, 20)))) return true;
    happened_.paused += kPause;
    pause(kPause);
    return false;
  }

  Happened::Mail& mail_of(const Task& task, std::size_t step) {
    return happened_.mail[{groups_[task.group()].id, step}];
  }

  /// Nobody has received what its sender was told it has not sent.
  void taken_back(const Task& task, const Error& error) {
    const bool is_back =
        error.code() == ErrorCode::kCancelled ||
        (error.code() == ErrorCode::kTimeout && !groups_[task.group()].group.error());
    if (!task.is_send() || !is_back) return;
    Happened::Mail& mail = mail_of(task, task.step());
    mail.is_taken_back = true;
    if (mail.is_received)
      violated(fmt::format("the message of step {} was received and taken back", task.step()));
  }

  void check(const Task& task) {
    const std::string wrong = task.why_wrong();
    if (!wrong.empty()) return violated(fmt::format("step {} {}", task.step(), wrong));
    if (!task.is_message()) return;
    if (task.is_send()) {
      mail_of(task, task.step()).is_sent = true;
      return;
    }
    const std::size_t step = task.received();
    const PlanStep& sent = plan_.steps[step];
    Happened::Mail& mail = mail_of(task, step);
    if (std::exchange(mail.is_received, true))
      violated(fmt::format("the message of step {} was received twice", step));
    if (mail.is_taken_back)
      violated(fmt::format("the message of step {} was taken back and received", step));
    // Those of one sender and tag come in order.
    auto& all = happened_.received[{groups_[task.group()].id, sent.from, sent.to, sent.tag}];
    const auto at = all.emplace(task.step(), step).first;
    const bool in_order = (at == all.begin() || std::prev(at)->second < step) &&
                          (std::next(at) == all.end() || step < std::next(at)->second);
    if (!in_order) violated(fmt::format("the message of step {} was received out of order", step));
  }

  Happened& happened_;
  const Plan& plan_;
  Kernel& kernel_;
  const int rank_;
  Random random_;
  std::shared_ptr<control::Host> host_;
  std::map<int, Group> groups_;
  std::list<Pending> pending_;
  std::chrono::nanoseconds slow_{0};
};

}  // namespace

void run_program(Happened& happened, int rank) {
  Program(happened, rank).run();
  happened.done[static_cast<std::size_t>(rank)] = true;
  if (happened.network != nullptr) happened.network->ended(rank);
}

}  // namespace tutti::simulate
