#include "simulate/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>

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
        around_(happened.around),
        rank_(rank),
        random_(plan_.seed * 1000 + static_cast<std::uint64_t>(rank)) {}

  void run() {
    follow();
    settle(-1);
    // Late to its end, wherever that is.
    if (const Fault* const late = late_at(plan_.steps.size() + 1)) around_.pause(late->lasts);
    while (!groups_.empty()) {
      const int group = groups_.rbegin()->first;
      // Else the destructor does.
      if (is_well(group) && plan_.goes_on[static_cast<std::size_t>(rank_)]) close(group);
      // Who has said its last goodbye may stay, or die.
      const Fault* const last = fault_at(plan_.steps.size() + 2);
      if (group == 0 && groups_[0].closed && last != nullptr) around_.befall(*last);
      if (Random chosen = choice_at(plan_.steps.size()); group == 0 && chosen.chance(0.3))
        around_.pause(std::chrono::milliseconds(chosen.from_to(1, 60)));
      leave(group);
    }
    happened_.left[rank_] = around_.now();
  }

 private:
  struct Group {
    ProcessGroup group;
    GroupId id = 0;
    int me = 0;
    bool failed = false, closed = false;
  };
  /// A call of the program, and how it has ended.
  struct Call {
    std::string_view what;
    int group = 0;
    std::optional<std::size_t> step = {};  ///< of an operation
    Clock::time_point began = {}, ended = {};
    std::optional<Error> failure = {};
  };
  struct Pending {
    std::unique_ptr<Task> task;
    Work work;
    std::function<void()> join;  ///< the thread whose call it is, if it is one's
    Call call;                   ///< the same
    bool is_cancelled = false;
  };

  void follow() {
    bool goes_on = make(0);
    for (std::size_t step = 0; step <= plan_.steps.size() && goes_on; ++step) {
      if (happened_.told != nullptr) told().reached = step;
      if (const Fault* const late = late_at(step)) {
        happened_.befallen = operation_at(step, FaultKind::late);
        around_.pause(late->lasts);
      }
      const Fault* const fault = fault_at(step);
      const FaultKind kind = fault != nullptr ? fault->kind : FaultKind::none;
      if (fault != nullptr) happened_.befallen = operation_at(step, kind);
      if (kind == FaultKind::quit) return;
      if (fault != nullptr) around_.befall(*fault);
      slow_ = kind == FaultKind::slow ? fault->lasts : 0ns;
      if (step == plan_.steps.size()) return;
      if (choice_at(step).chance(0.3)) settle(-1);
      if (kind == FaultKind::swap && step != early_ && may_swap(step)) {
        early_ = step + 1;
        goes_on = take_and_go_on(*early_, FaultKind::none);
      }
      if (goes_on && step != early_) goes_on = take_and_go_on(step, kind);
    }
  }

  /// Messages of a tag are in order.
  bool may_swap(std::size_t number) const {
    if (number + 1 >= plan_.steps.size()) return false;
    const PlanStep& step = plan_.steps[number];
    const PlanStep& next = plan_.steps[number + 1];
    const bool are_messages = step.kind == StepKind::message && next.kind == step.kind;
    return !are_messages || step.group != next.group || step.tag != next.tag;
  }

  bool take_and_go_on(std::size_t number, FaultKind fault) {
    return take(number, fault) || plan_.goes_on[static_cast<std::size_t>(rank_)];
  }

  bool is_member(const PlanStep& step) const {
    const auto& members = plan_.groups[static_cast<std::size_t>(step.group)].world_ranks;
    return std::find(members.begin(), members.end(), rank_) != members.end();
  }

  /// The group of which a step is asked.
  int asked_of(const PlanStep& step) const {
    return step.kind == StepKind::make ? plan_.groups[static_cast<std::size_t>(step.group)].parent
                                       : step.group;
  }

  /// What this rank does in a step; empty: nothing that such a fault would change.
  std::string_view operation_at(std::size_t number, FaultKind fault) const {
    if (number >= plan_.steps.size()) return "end";
    const PlanStep& step = plan_.steps[number];
    if (!is_member(step) || !may_ask(step)) return {};
    if (fault == FaultKind::swap && !may_swap(number)) return {};
    if (step.kind == StepKind::make) return fault != FaultKind::slow ? "make" : "";
    const bool has_words = fault != FaultKind::slow && fault != FaultKind::disagree;
    if (step.kind == StepKind::close) return has_words ? "close" : "";
    const int me = groups_.at(step.group).me;
    const bool receives = step.kind == StepKind::message && me == step.to;
    if (step.kind == StepKind::message && !is_end(step, me)) return {};
    if (fault == FaultKind::slow && (receives ? step.how_to : step.how) != How::callback) return {};
    if (step.kind == StepKind::collective) return name_of(step.op);
    return receives ? "recv" : "send";
  }

  bool take(std::size_t number, FaultKind fault) {
    const PlanStep& step = plan_.steps[number];
    if (!is_member(step) || !may_ask(step)) return true;
    Group& group = groups_[asked_of(step)];
    if (fault == FaultKind::abort) {
      group.group.abort("as planned");
      group.failed = true;
      return false;
    }
    if (fault == FaultKind::skip) return true;
    const bool disagrees = fault == FaultKind::disagree;
    if (step.kind == StepKind::make) return make(step.group, disagrees);
    if (step.kind == StepKind::close) return close(step.group);
    if (step.kind == StepKind::message && !is_end(step, group.me)) return true;
    auto task = std::make_unique<Task>(plan_, number, group.me, disagrees);
    const bool receives = step.kind == StepKind::message && group.me == step.to;
    return carry_out(std::move(task), receives ? step.how_to : step.how);
  }

  const Fault* late_at(std::size_t step) const { return fault_at(step, true); }

  /// What befalls this rank there once it has come, however late.
  const Fault* fault_at(std::size_t step, bool is_late = false) const {
    for (const Fault& fault : plan_.faults)
      if (fault.who == rank_ && fault.at == step && is_at_step(fault) &&
          (fault.kind == FaultKind::late) == is_late)
        return &fault;
    return nullptr;
  }

  /// What the program does there by chance: the same in every interleaving.
  Random choice_at(std::size_t step) const {
    Random of_rank(plan_.seed * 1000 + static_cast<std::uint64_t>(rank_));
    return Random(of_rank.next() + step);
  }

  /// Members of a failed group that have been told may make another one of it.
  bool may_ask(const PlanStep& step) const {
    const auto found = groups_.find(asked_of(step));
    const bool is_open =
        found != groups_.end() && !found->second.closed && found->second.group.is_member();
    return is_open && (step.kind == StepKind::make || !found->second.failed);
  }

  bool is_well(int group) const {
    const auto found = groups_.find(group);
    return found != groups_.end() && !found->second.failed && !found->second.closed &&
           found->second.group.is_member();
  }

  template <class Body>
  bool call(std::string_view what, int group, Body&& body, std::optional<std::size_t> step = {}) {
    return ended(timed({what, group, step}, body));
  }

  /// While a rank is in a call. Noted where all ranks are seen: there threads are fibers.
  class Inside {
   public:
    explicit Inside(Program& program) : program_(program) {
      if (seen().sees_all) place_ = seen().inside.insert(program.rank_);
    }
    ~Inside() {
      if (!seen().sees_all) return;
      seen().inside.erase(place_);
      seen().came_out[program_.rank_] = program_.around_.now();
    }

   private:
    Happened& seen() const { return program_.happened_; }
    Program& program_;
    std::multiset<int>::iterator place_ = {};
  };

  /// Of a thread of its own: `ended` is for the program's first one.
  template <class Body>
  Call timed(Call call, Body&& body) {
    call.began = around_.now();
    {
      const Inside inside(*this);
      try {
        body();
      } catch (const Error& error) {
        call.failure = error;
      }
    }
    call.ended = around_.now();
    return call;
  }

  /// It must have ended in time, and have said what its group has failed with, if it has.
  bool ended(const Call& call) {
    const auto& [what, group, step, began, until, failure] = call;
    if (failure) {
      happened_.has_failed_call = true;
      note(what, group, *failure);
      hear_of_others(group);
      const std::set<ErrorCode> possible = {
          ErrorCode::kTimeout,   ErrorCode::kPeerLost, ErrorCode::kCollectiveMismatch,
          ErrorCode::kClosed,    ErrorCode::kAborted,  ErrorCode::kSystem,
          ErrorCode::kCancelled, ErrorCode::kDeadlock};
      if (!possible.contains(failure->code()))
        violated(fmt::format("{}: {}", what, failure->what()));
    }
    ++happened_.tally.calls;
    ++happened_.tally
          .outcomes[fmt::format("{} {}", what, failure ? name_of(failure->code()) : "well")];
    if (happened_.told != nullptr) tell(call);
    if (until - began > 5 * plan_.timeout + happened_.pauses() + 6s)
      violated(fmt::format("{} of group {} took {} ms", what, group, (until - began) / 1ms));
    return !failure;
  }

  void tell(const Call& call) {
    const auto group = static_cast<std::size_t>(call.group);
    if (call.what == "start" && !call.failure) return;  // how it ends is told later
    told().calls[call.step ? fmt::format("step {}", *call.step)
                           : fmt::format("{} of group {}", call.what, group)] = {
        group, text_of(call.what, call.group, call.failure)};
  }

  /// "kPeerLost [0 3]": with ranks of the world.
  std::string text_of(std::string_view what, int index, const std::optional<Error>& error) const {
    if (!error) return "well";
    const auto of = [&](int group) -> const PlannedGroup& {
      return plan_.groups[static_cast<std::size_t>(group)];
    };
    const bool is_of_parent = what == "make" && index > 0;
    const std::vector<int>& ranks = of(is_of_parent ? of(index).parent : index).world_ranks;
    std::set<int> culprits;
    for (const int culprit : error->context().culprits)
      culprits.insert(ranks.at(static_cast<std::size_t>(culprit)));
    return fmt::format("{} [{}]", name_of(error->code()), fmt::join(culprits, " "));
  }

  Told& told() { return (*happened_.told)[static_cast<std::size_t>(rank_)]; }

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

  /// Who is told in one group of a verdict finds all groups failed that it fails.
  void hear_of_others(int index) {
    const auto found = groups_.find(index);
    if (found == groups_.end() || !found->second.failed) return;
    for (const auto& [verdict, when] : happened_.log) {
      if (!verdict.fails(found->second.id)) continue;
      for (const GroupId each : verdict.groups) told_by_others_.emplace(each, around_.now());
      return;
    }
  }

  void violated(const std::string& what) {
    happened_.violated(fmt::format("rank {}: {}", rank_, what));
  }

  // ---- groups

  bool make(int index, bool disagrees = false) {
    const PlannedGroup& planned = plan_.groups[static_cast<std::size_t>(index)];
    Group& group = groups_[index];
    group.me =
        static_cast<int>(std::find(planned.world_ranks.begin(), planned.world_ranks.end(), rank_) -
                         planned.world_ranks.begin());
    happened_.made_last[rank_] = 0;
    const Clock::time_point began = around_.now();
    const bool well = call("make", index, [&] {
      try {
        group.group = planned.parent < 0 ? around_.make_world(rank_) : make_of(planned, disagrees);
      } catch (const Error& error) {
        failed_to_make(planned, group.me, error);
        throw;
      }
    });
    if (well && index == 0) happened_.joined.insert(rank_);
    group.id = happened_.sees_all ? happened_.made_last[rank_] : static_cast<GroupId>(index) + 1;
    if (well) check_came_in_time(group.id, began);
    return well;
  }

  /// Who comes once the others have given up, as its host knows, gets no group.
  void check_came_in_time(GroupId id, Clock::time_point began) {
    for (const auto& [verdict, when] : happened_.logs[plan_.host_of(rank_)])
      if (verdict.fails(id) && when < began)
        violated(fmt::format("got group {}, which had failed before it was asked for", id));
  }

  /// `disagrees`: of the same ranks in another order, unless the plan has a group of these.
  ProcessGroup make_of(const PlannedGroup& planned, bool disagrees) {
    std::vector<int> members = planned.world_ranks;
    if (disagrees) std::rotate(members.begin(), members.begin() + 1, members.end());
    const bool is_planned =
        std::any_of(plan_.groups.begin(), plan_.groups.end(), [&](const PlannedGroup& each) {
          return each.parent == planned.parent && each.world_ranks == members;
        });
    if (is_planned) members = planned.world_ranks;
    const auto& parents = plan_.groups[static_cast<std::size_t>(planned.parent)].world_ranks;
    std::vector<int> ranks;
    for (const int world_rank : members)
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
    if (!happened_.sees_all) return;
    happened_.check_reason(id, rank_, error);
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

  bool close(int index) {
    Group& group = groups_[index];
    settle(index, choice_at(plan_.steps.size() + static_cast<std::size_t>(index)).chance(0.5));
    begins_to_leave(group);
    happened_.doing[rank_] = "close";
    const bool well = call("close", index, [&] { group.group.close(); });
    if (well) happened_.groups[group.id].parted.insert(rank_);
    group.closed = well || !group.failed;
    settle(index);
    if (group.closed && !plan_.keeps[static_cast<std::size_t>(rank_)]) leave(index);
    return well;
  }

  void begins_to_leave(const Group& group) {
    happened_.leaving.insert(rank_);
    happened_.groups[group.id].leaving.insert(rank_);
  }

  /// The group is destroyed; before that it says what it has ended with.
  void leave(int index) {
    const auto found = groups_.find(index);
    if (found == groups_.end()) return;
    Group& group = found->second;
    begins_to_leave(group);
    if (group.group.is_member()) {
      const auto failure = group.group.error();
      if (happened_.told != nullptr)
        told().groups[static_cast<std::size_t>(index)] =
            !failure && !group.closed ? "left" : text_of("leave", index, failure);
      if (failure) {
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
      mail.last_posted = around_.now();
    }
    if (how == How::waits) {
      const bool well =
          carried_out(*task, timed({task->what(), index, task->step()}, [&] { task->run(group); }));
      return well || !groups_[index].failed;
    }
    Pending& pending = pending_.emplace_back();
    pending.task = std::move(task);
    Task& own = *pending.task;
    if (how == How::thread && own.is_message()) {
      pending.join = around_.start_thread([this, index, &own, &pending, &group] {
        pending.call = timed({own.what(), index, own.step()}, [&] { own.run(group); });
      });
      return true;
    }
    const bool started = call(
        "start", index, [&] { pending.work = own.start(group); }, own.step());
    if (!started) {
      pending_.pop_back();
      return !groups_[index].failed;
    }
    if (how == How::callback)
      pending.work = std::move(pending.work).then([this, lasts = slow_](const Error*) {
        if (lasts.count() > 0) around_.pause(lasts);
      });
    if (how == How::cancels) {
      around_.pause(plan_.steps[own.step()].cancel_after);
      pending.is_cancelled = pending.work.cancel();
    }
    return true;
  }

  /// A blocking operation has ended.
  bool carried_out(const Task& task, const Call& call) {
    if (call.failure) {
      taken_back(task, *call.failure);
      note_wait_in_vain(task, call);
    } else {
      check(task);
      const auto told = told_by_others_.find(groups_[call.group].id);
      if (told != told_by_others_.end() && told->second < call.began)
        violated(
            fmt::format("{} of group {} has ended well, and its failure was told before, in "
                        "another group",
                        call.what, call.group));
      const Happened::Mail& mail = mail_of(task, task.step());
      if (task.is_message() && !plan_.steps[task.step()].any && mail.both_posted &&
          plan_.patience == 0ms)
        happened_.check_prompt(mail.last_posted, call.ended,
                               fmt::format("message of step {}", task.step()));
    }
    return ended(call);
  }

  void note_wait_in_vain(const Task& task, const Call& call) {
    if (!task.is_message() || call.failure->code() != ErrorCode::kTimeout) return;
    const PlanStep& step = plan_.steps[task.step()];
    const auto& ranks = plan_.groups[static_cast<std::size_t>(step.group)].world_ranks;
    const int peer = task.is_send() ? step.to : step.from;
    happened_.in_vain.push_back(
        {rank_, ranks[static_cast<std::size_t>(peer)], call.began, call.ended});
  }

  /// Waits for what is under way in a group, or in all (-1); for threads in any case.
  void settle(int group, bool works = true) {
    if (works && random_.chance(0.3)) await_any(group);
    for (auto at = pending_.begin(); at != pending_.end();) {
      Pending& pending = *at;
      const bool is_due = pending.join || works;
      if ((group >= 0 && pending.task->group() != group) || !is_due) {
        ++at;
        continue;
      }
      if (pending.join) {
        pending.join();
        carried_out(*pending.task, pending.call);
      } else {
        settle(pending);
      }
      at = pending_.erase(at);
    }
  }

  /// Until one has ended, whichever that is.
  void await_any(int group) {
    std::vector<Pending*> all;
    std::vector<Work> works;
    for (Pending& pending : pending_) {
      if (pending.join || (group >= 0 && pending.task->group() != group)) continue;
      all.push_back(&pending);
      works.push_back(std::move(pending.work));
    }
    if (works.empty()) return;
    {
      const Inside inside(*this);
      wait_any(works);
    }
    for (std::size_t i = 0; i < works.size(); ++i) all[i]->work = std::move(works[i]);
  }

  void settle(Pending& pending) {
    const Task& task = *pending.task;
    const auto body = [&] {
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
    };
    call(pending.is_cancelled ? "cancelled" : task.what(), task.group(), body, task.step());
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
    around_.pause(kPause);
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
  Surroundings& around_;
  const int rank_;
  Random random_;
  std::map<int, Group> groups_;
  std::map<GroupId, Clock::time_point> told_by_others_;
  std::list<Pending> pending_;
  std::chrono::nanoseconds slow_{0};
  std::optional<std::size_t> early_;  ///< a step that it has taken before the one before
};

}  // namespace

void run_program(Happened& happened, int rank) {
  Program(happened, rank).run();
  happened.done[static_cast<std::size_t>(rank)] = true;
  if (happened.told != nullptr) (*happened.told)[static_cast<std::size_t>(rank)].has_ended = true;
}

}  // namespace tutti::simulate
