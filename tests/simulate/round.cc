#include "simulate/round.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "control/board/board.h"
#include "control/board/log.h"
#include "control/host.h"
#include "tutti/error.h"

namespace tutti::simulate {

using control::Host;
using control::Membership;
using namespace std::chrono_literals;

namespace {

/// What a rank's group has ended with, with ranks of the world.
struct Outcome {
  ErrorCode code = ErrorCode::kInternal;
  std::vector<int> culprits;
  bool operator==(const Outcome&) const = default;
};

std::string text_of(const Outcome& outcome) {
  return fmt::format("{} culprits [{}]", name_of(outcome.code), fmt::join(outcome.culprits, " "));
}

/// The program and the data of all ranks; what moves data in the product is not here yet: a
/// collective is done when all members have arrived with the same chain, a message when both ends
/// have met.
class Round {
 public:
  Round(const Plan& plan, Tally& tally)
      : plan_(plan), tally_(tally), kernel_(plan.seed, plan.put_aside, plan.hiccup) {}

  std::string run();
  /// A verdict has become an entry of the log.
  void entered(const control::Verdict& verdict);

  static Round* running;

 private:
  struct Rank;
  void rank_body(int rank);
  void check_end();
  void check_untold(int group, int rank);
  bool has_parted_from_all(int rank) const;
  void check_meeting(const control::Verdict& verdict, const std::string& text);
  void check_late(const control::Verdict& verdict, const std::string& text);
  void check_deadlock(const control::Verdict& verdict, const std::string& text);
  void check_stalled(const control::Verdict& verdict, const std::string& text);
  std::uint64_t last_of(int group, std::size_t member, Clock::time_point until) const;
  bool has_fault(std::initializer_list<FaultKind> kinds) const;
  std::chrono::nanoseconds all_pauses() const;
  Proc& process_of(int rank) {
    return kernel_.process(plan_.process_of[static_cast<std::size_t>(rank)]);
  }
  GroupId id_of(int group) const noexcept { return 1000 + static_cast<GroupId>(group); }
  void violated(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }

  struct Arrival {
    std::uint64_t chain = 0;  // 0: its data are not there yet
    Clock::time_point entered = {};
  };
  const Plan& plan_;
  Tally& tally_;
  Kernel kernel_;
  net::Fd memory_;
  std::string violation_;
  std::map<std::tuple<int, std::uint64_t>, std::vector<Arrival>> arrivals_;
  struct Mail {
    int posted = 0, taken = 0;
  };
  std::map<std::tuple<int, int, int>, Mail> mail_;
  std::map<int, std::vector<std::optional<Outcome>>> outcomes_;  // group -> by member
  std::map<int, Clock::time_point> left_;
  std::map<int, std::set<int>> made_;     // rank of the world -> groups it has begun to make
  std::set<int> leaving_;                 // ranks of the world that may have said a goodbye
  std::set<std::pair<int, int>> parted_;  // group, rank of the world: has closed it well
  struct Waiting {
    int group = -1;
    std::uint64_t seq = 0;
    Clock::time_point since = {};
  };
  std::map<int, Waiting> waiting_;  // by rank of the world: the collective it is in
  /// By rank of the world that is in a call: for whose calls it waits; all of them are needed.
  std::map<int, std::function<std::vector<int>()>> awaits_;
  std::vector<std::pair<control::Verdict, Clock::time_point>> log_;
  std::vector<bool> done_;
};

Round* Round::running = nullptr;

// ---- one rank's program ------------------------------------------------------------------------

struct Round::Rank {
  Rank(Round& round_in, int rank_in) : round(round_in), plan(round_in.plan_), rank(rank_in) {}

  struct Group {
    std::unique_ptr<Membership> membership;
    int me = 0;  // rank in the group
    std::uint64_t seq = 0, chain = 0;
    bool failed = false, closed = false;
  };

  void run() {
    control::HostOptions options;
    options.board_fd = round.memory_.get();
    options.rank = rank;
    options.world_size = plan.ranks();
    options.timeout = 5s;
    options.first_line_after = 24h;
    options.deadlock_after = plan.timeout / 4;
    const bool joined = call("join", -1, [&] { host = Host::join(options); });
    if (joined) follow();
    // As the destructor of a process group does: goodbye, or an abort for one that has failed.
    while (!groups.empty()) {
      const int group = groups.rbegin()->first;
      if (is_well(group)) close(group);
      leave(group);
    }
    host.reset();
    round.left_[rank] = round.kernel_.now();
  }

  void follow() {
    bool goes_on = make(0);
    for (std::size_t step = 0; step <= plan.steps.size() && goes_on; ++step) {
      const Fault* const fault = fault_at(step);
      if (fault != nullptr && fault->kind == FaultKind::late) pause(fault->lasts);
      if (fault != nullptr && fault->kind == FaultKind::quit) return;
      if (step == plan.steps.size()) return;
      goes_on = take(plan.steps[step], fault) || plan.goes_on[static_cast<std::size_t>(rank)];
    }
  }

  bool take(const PlanStep& step, const Fault* fault) {
    const FaultKind kind = fault != nullptr ? fault->kind : FaultKind::none;
    const auto& members = plan.groups[static_cast<std::size_t>(step.group)].world_ranks;
    if (std::find(members.begin(), members.end(), rank) == members.end()) return true;
    if (step.kind == StepKind::make) {
      const int parent = plan.groups[static_cast<std::size_t>(step.group)].parent;
      return is_well(parent) && make(step.group, kind == FaultKind::error);
    }
    if (!is_well(step.group)) return true;
    if (kind == FaultKind::abort) return abort(step.group);
    if (kind == FaultKind::skip && step.kind == StepKind::collective) return true;
    switch (step.kind) {
      case StepKind::collective:
        return collective(step, kind == FaultKind::disagree ? 7 : 0);
      case StepKind::message:
        return message(step);
      case StepKind::close:
        return close(step.group);
      case StepKind::make:
        break;
    }
    return true;
  }

  const Fault* fault_at(std::size_t step) const {
    for (const Fault& fault : plan.faults)
      if (fault.who == rank && fault.at == step && fault.kind != FaultKind::die &&
          fault.kind != FaultKind::stop)
        return &fault;
    return nullptr;
  }

  bool is_well(int group) const {
    const auto found = groups.find(group);
    return found != groups.end() && !found->second.failed && !found->second.closed &&
           found->second.membership;
  }

  void pause(std::chrono::nanoseconds lasts) {
    round.kernel_.block(nullptr, round.kernel_.now() + lasts);
  }

  /// A call of the program: it must end in time.
  template <class Call>
  bool call(const char* what, int group, Call&& body) {
    const auto began = round.kernel_.now();
    bool well = true;
    ErrorCode code = ErrorCode::kInternal;
    try {
      body();
    } catch (const Error& error) {
      well = false;
      code = error.code();
      if (group >= 0 && groups.contains(group)) groups[group].failed = true;
    }
    round.awaits_.erase(rank);
    const auto lasted = round.kernel_.now() - began;
    ++round.tally_.calls;
    ++round.tally_.outcomes[fmt::format("{} {}", what, well ? "well" : name_of(code))];
    if (lasted > 5 * plan.timeout + round.all_pauses() + 6s)
      round.violated(
          fmt::format("rank {}: {} of group {} took {} ms", rank, what, group, lasted / 1ms));
    return well;
  }

  bool make(int index, bool cannot = false) {
    const PlannedGroup& planned = plan.groups[static_cast<std::size_t>(index)];
    const auto me =
        static_cast<int>(std::find(planned.world_ranks.begin(), planned.world_ranks.end(), rank) -
                         planned.world_ranks.begin());
    Membership* const parent =
        planned.parent >= 0 ? groups[planned.parent].membership.get() : nullptr;
    return call("make", index, [&] {
      control::MembershipOptions options{round.id_of(index), fmt::format("g{}", index),
                                         tutti::world_ranks(planned.world_ranks), me};
      if (parent != nullptr) options.asked_of = parent->id();
      Group& group = groups[index];
      round.made_[rank].insert(index);
      group.me = me;
      group.membership = host->make_membership(options);
      if (cannot) throw group.membership->blame(Error(ErrorCode::kSystem, "no memory"), parent);
      round.awaits_[rank] = [this, index] {
        return of_group(index, [&](int, int each) { return !round.made_[each].contains(index); });
      };
      group.membership->meet(parent, Where{}, Deadline::after(plan.timeout));
    });
  }

  bool abort(int index) {
    groups[index].membership->fail(
        {ErrorCode::kAborted, fmt::format("rank {} aborted", rank), {groups[index].me}, {}});
    groups[index].failed = true;
    return false;
  }

  bool collective(const PlanStep& step, std::uint64_t other) {
    const int index = step.group;
    Group& group = groups[index];
    const std::uint64_t seq = ++group.seq;
    group.chain = group.chain * 31 + seq + other;
    Request request;
    request.op = other == 0 ? Op::all_reduce : Op::broadcast;
    request.root = step.root;
    request.seq = seq;
    request.chain = group.chain;
    request.count = 10;
    request.arrive = Deadline::after(plan.timeout);
    request.stall = Deadline::after(plan.timeout);
    Membership& membership = *group.membership;
    return call("collective", index, [&] {
      round.waiting_[rank] = {index, seq, round.kernel_.now()};
      membership.enter(request);
      arrival_of(index, request).entered = round.kernel_.now();
      round.awaits_[rank] = [this, index, request] {
        return of_group(index, [&](int member, int) {
          const bool is_needed = request.root < 0 || request.root == member;
          const auto& all = round.arrivals_[{index, request.seq}];
          return is_needed && all[static_cast<std::size_t>(member)].entered == Clock::time_point{};
        });
      };
      round.kernel_.step();
      arrival_of(index, request).chain = request.chain;
      membership.notify_all();
      control::OpPatience patience(membership, request, step.root);
      const bool is_root = step.root == group.me;
      const WaitResult result = is_root ? WaitResult::ready
                                        : wait(membership.waiter(), patience,
                                               [&] { return have_arrived(index, request); });
      if (result != WaitResult::ready) throw membership.error(&request);
      membership.leave(request);
      round.waiting_[rank] = {};
    });
  }

  Arrival& arrival_of(int index, const Request& request) {
    auto& all = round.arrivals_[{index, request.seq}];
    all.resize(plan.groups[static_cast<std::size_t>(index)].world_ranks.size());
    return all[static_cast<std::size_t>(groups[index].me)];
  }

  bool have_arrived(int index, const Request& request) {
    const auto& all = round.arrivals_[{index, request.seq}];
    for (std::size_t member = 0; member < all.size(); ++member) {
      const bool is_needed = request.root < 0 || request.root == static_cast<int>(member);
      if (!is_needed || all[member].chain == request.chain) continue;
      if (all[member].chain != 0 && plan.data_tells &&
          groups[index].membership->abort_word().load() == 0)
        groups[index].membership->fail_mismatch(request, static_cast<int>(member), nullptr);
      return false;
    }
    return !all.empty();
  }

  bool message(const PlanStep& step) {
    Group& group = groups[step.group];
    if (group.me != step.from && group.me != step.to) return true;
    Request request;
    const bool sends = group.me == step.from;
    request.op = sends ? Op::send : Op::recv;
    request.message.peer = sends ? step.to : step.from;
    request.arrive = Deadline::after(plan.timeout);
    request.stall = Deadline::after(plan.timeout);
    Membership& membership = *group.membership;
    return call("message", step.group, [&] {
      membership.enter(request);
      // A message counts once; both ends look at how many there have been.
      Mail& mail = round.mail_[{step.group, step.from, step.to}];
      const int number = sends ? ++mail.posted : ++mail.taken;
      membership.notify(request.message.peer);
      if (sends && step.buffered) return membership.leave(request);
      round.awaits_[rank] = [this, index = step.group, peer = request.message.peer, sends, &mail,
                             number] {
        const bool has_met = (sends ? mail.taken : mail.posted) >= number;
        return of_group(index, [&](int member, int) { return member == peer && !has_met; });
      };
      control::OpPatience patience(membership, request, request.message.peer);
      const WaitResult result = wait(membership.waiter(), patience,
                                     [&] { return (sends ? mail.taken : mail.posted) >= number; });
      if (result == WaitResult::gave_up) {
        --(sends ? mail.posted : mail.taken);
        membership.leave(request);
        return;  // the group goes on
      }
      if (result != WaitResult::ready) throw membership.error(&request);
      membership.leave(request);
    });
  }

  /// The ranks of the world of those members for which `is_one(member, rank)`.
  template <class IsOne>
  std::vector<int> of_group(int index, IsOne&& is_one) const {
    const auto& ranks = plan.groups[static_cast<std::size_t>(index)].world_ranks;
    std::vector<int> found;
    for (std::size_t member = 0; member < ranks.size(); ++member)
      if (is_one(static_cast<int>(member), ranks[member])) found.push_back(ranks[member]);
    return found;
  }

  bool close(int index) {
    Group& group = groups[index];
    round.leaving_.insert(rank);
    const bool well = call("close", index, [&] {
      group.membership->close(group.seq, group.chain, Deadline::after(plan.timeout), Where{});
    });
    if (well) {
      round.parted_.insert({index, rank});
      group.closed = true;
      if (!plan.keeps[static_cast<std::size_t>(rank)]) leave(index);
    }
    return well;
  }

  void leave(int index) {
    Group& group = groups[index];
    round.leaving_.insert(rank);
    if (group.membership) {
      const auto& ranks = plan.groups[static_cast<std::size_t>(index)].world_ranks;
      if (const auto cause = group.membership->cause()) {
        Outcome outcome{cause->code, {}};
        for (const int culprit : cause->culprits)
          outcome.culprits.push_back(ranks[static_cast<std::size_t>(culprit)]);
        std::sort(outcome.culprits.begin(), outcome.culprits.end());
        auto& all = round.outcomes_[index];
        all.resize(ranks.size());
        all[static_cast<std::size_t>(group.me)] = outcome;
      } else if (!group.closed) {
        round.check_untold(index, rank);
      }
      group.membership.reset();
    }
    groups.erase(index);
  }

  Round& round;
  const Plan& plan;
  const int rank;
  std::unique_ptr<Host> host;
  std::map<int, Group> groups;
};

void Round::rank_body(int rank) {
  Rank(*this, rank).run();
  done_[static_cast<std::size_t>(rank)] = true;
}

// ---- what must hold ----------------------------------------------------------------------------

bool Round::has_fault(std::initializer_list<FaultKind> kinds) const {
  return std::any_of(plan_.faults.begin(), plan_.faults.end(), [&](const Fault& fault) {
    return std::find(kinds.begin(), kinds.end(), fault.kind) != kinds.end();
  });
}

std::chrono::nanoseconds Round::all_pauses() const {
  std::chrono::nanoseconds sum{0};
  for (const Fault& fault : plan_.faults)
    if (fault.kind == FaultKind::stop || fault.kind == FaultKind::late) sum += fault.lasts;
  return sum + kernel_.hiccups();
}

/// Whether what was entered was true, and may be the first thing that went wrong.
void Round::entered(const control::Verdict& verdict) {
  const bool is_first = log_.empty();
  log_.emplace_back(verdict, kernel_.now());
  std::vector<int> named;
  for (const auto [culprit] : verdict.culprits) named.push_back(culprit);
  const std::string text = fmt::format(
      "verdict #{} by rank {}: {} group {} culprits [{}]: {}", log_.size(), verdict.finder.value,
      name_of(verdict.code), fmt::join(verdict.groups, " "), fmt::join(named, " "), verdict.text);
  if (verdict.is_loss())
    for (const auto [culprit] : verdict.culprits) {
      if (!process_of(culprit).dead) violated(fmt::format("{}: rank {} lives", text, culprit));
      if (has_parted_from_all(culprit))
        violated(fmt::format("{}: rank {} had closed all its groups", text, culprit));
    }
  if (verdict.text.starts_with("not called after ")) check_meeting(verdict, text);
  if (verdict.text.starts_with("after ")) check_late(verdict, text);
  if (verdict.text.starts_with("deadlock: ")) check_deadlock(verdict, text);
  if (verdict.text.starts_with("no byte ")) check_stalled(verdict, text);
  if (!is_first) return;
  using enum FaultKind;
  const auto explained = [&](std::initializer_list<FaultKind> kinds) {
    if (!has_fault(kinds)) violated(text + ": nothing of the kind has happened");
  };
  switch (verdict.code) {
    case ErrorCode::kPeerLost:
      explained({die});
      break;
    case ErrorCode::kTimeout:
      if (!has_fault({die, skip, quit, error, abort, disagree}) && all_pauses() < plan_.timeout / 2)
        violated(text + ": nobody was late for so long");
      break;
    case ErrorCode::kCollectiveMismatch:
      // A close that times out ends a program early, whatever it waited for.
      if (verdict.text.find("disagree about operation") != std::string::npos) {
        explained({disagree, skip});
      } else {
        explained({quit, skip, late, stop, die, disagree, error, abort});
      }
      break;
    case ErrorCode::kClosed:
      explained({quit, skip, late, stop, die, disagree, error, abort});
      break;
    case ErrorCode::kAborted:
      explained({abort});
      break;
    case ErrorCode::kSystem:
      explained({error});
      break;
    case ErrorCode::kDeadlock:
      break;  // checked wherever it is found
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kUnauthenticated:
    case ErrorCode::kInternal:
    case ErrorCode::kCancelled:
      violated(text + ": no part of a simulation fails so");
  }
  for (const Fault& fault : plan_.faults)
    ++tally_.answers[fmt::format("{} -> {}", name_of(fault.kind), name_of(verdict.code))];
}

/// Who stays in a group is told of its failure soon.
void Round::check_untold(int group, int rank) {
  constexpr auto kSoon = 100ms;
  const auto& ranks = plan_.groups[static_cast<std::size_t>(group)].world_ranks;
  for (const auto& [verdict, when] : log_) {
    const bool is_old = when + kSoon + all_pauses() < kernel_.now();
    const bool is_lost =
        verdict.is_loss() &&
        std::any_of(verdict.culprits.begin(), verdict.culprits.end(), [&](WorldRank lost) {
          return std::find(ranks.begin(), ranks.end(), lost.value) != ranks.end() &&
                 !leaving_.contains(lost.value);
        });
    if (is_old && (verdict.fails(id_of(group)) || is_lost))
      violated(fmt::format("rank {} was never told that group {} has failed", rank, group));
  }
}

/// Who waits for members of a new group is told at once why they do not come.
void Round::check_meeting(const control::Verdict& verdict, const std::string& text) {
  const auto began = kernel_.now() - plan_.timeout;
  for (const auto [culprit] : verdict.culprits)
    if (left_.contains(culprit) && left_[culprit] + all_pauses() < began)
      violated(fmt::format("{}: rank {} had left the world", text, culprit));
  const int group = static_cast<int>(verdict.groups.front() - id_of(0));
  const int parent = plan_.groups[static_cast<std::size_t>(group)].parent;
  for (const auto& [earlier, when] : log_)
    if (parent >= 0 && earlier.fails(id_of(parent)) && when + all_pauses() < began)
      violated(text + ": the group that was asked for it had failed");
}

bool Round::has_parted_from_all(int rank) const {
  const auto found = made_.find(rank);
  if (found == made_.end()) return false;
  return std::all_of(found->second.begin(), found->second.end(), [&](int group) {
    return parted_.contains({group, rank});
  });
}

/// The latest collective that a member has entered until then.
std::uint64_t Round::last_of(int group, std::size_t member, Clock::time_point until) const {
  std::uint64_t last = 0;
  for (const auto& [key, all] : arrivals_) {
    const bool counts = std::get<0>(key) == group && member < all.size() &&
                        all[member].entered != Clock::time_point{} && all[member].entered <= until;
    if (counts) last = std::max(last, std::get<1>(key));
  }
  return last;
}

/// Those who are said to be late must be, and nobody may be further behind.
void Round::check_late(const control::Verdict& verdict, const std::string& text) {
  const Waiting& wait = waiting_[verdict.finder.value];
  if (!verdict.fails(id_of(wait.group))) return;
  const auto due = wait.since + plan_.timeout;
  const auto& ranks = plan_.groups[static_cast<std::size_t>(wait.group)].world_ranks;
  std::uint64_t most = 0;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    const bool is_named = std::find(verdict.culprits.begin(), verdict.culprits.end(),
                                    WorldRank(ranks[member])) != verdict.culprits.end();
    if (is_named) most = std::max(most, last_of(wait.group, member, due));
  }
  if (most >= wait.seq) violated(text + ": it had");
  for (std::size_t member = 0; member < ranks.size(); ++member)
    if (last_of(wait.group, member, Clock::time_point::max()) < most)
      violated(fmt::format("{}: rank {} is further behind", text, ranks[member]));
}

/// Those who are said to wait for each other do, and none of them will ever go on.
void Round::check_deadlock(const control::Verdict& verdict, const std::string& text) {
  std::map<int, std::vector<int>> stuck;
  for (const auto& [rank, awaits] : awaits_)
    if (!process_of(rank).dead) stuck[rank] = awaits();
  const auto can_end = [&](const auto& each) {
    return std::none_of(each.second.begin(), each.second.end(),
                        [&](int rank) { return stuck.contains(rank); });
  };
  while (std::erase_if(stuck, can_end) > 0) {
  }
  for (const auto [culprit] : verdict.culprits)
    if (!stuck.contains(culprit)) violated(fmt::format("{}: rank {} is not stuck", text, culprit));
}

/// Nothing is stalled while somebody has not entered.
void Round::check_stalled(const control::Verdict& verdict, const std::string& text) {
  const Waiting& wait = waiting_[verdict.finder.value];
  if (wait.seq == 0 || !verdict.fails(id_of(wait.group))) return;  // a message
  const auto& ranks = plan_.groups[static_cast<std::size_t>(wait.group)].world_ranks;
  for (std::size_t member = 0; member < ranks.size(); ++member)
    if (last_of(wait.group, member, Clock::time_point::max()) < wait.seq)
      violated(fmt::format("{}: rank {} has not entered", text, ranks[member]));
}

void Round::check_end() {
  for (int rank = 0; rank < plan_.ranks(); ++rank)
    if (!process_of(rank).dead && !done_[static_cast<std::size_t>(rank)])
      violated(fmt::format("rank {} never ends", rank));
  for (const auto& [group, all] : outcomes_) {
    const Outcome* first = nullptr;
    for (std::size_t member = 0; member < all.size(); ++member) {
      if (!all[member]) continue;
      if (first == nullptr) first = &*all[member];
      for (const int culprit : all[member]->culprits)
        if (all[member]->code == ErrorCode::kPeerLost && parted_.contains({group, culprit}))
          violated(fmt::format("group {}: rank {} was lost to it after it had closed it", group,
                               culprit));
      if (*first != *all[member])
        violated(fmt::format("group {}: member {} ended with {}, others with {}", group, member,
                             text_of(*all[member]), text_of(*first)));
    }
  }
  const bool is_harmless =
      plan_.faults.empty() || (!has_fault({FaultKind::die, FaultKind::disagree, FaultKind::skip,
                                           FaultKind::abort, FaultKind::quit, FaultKind::error}) &&
                               all_pauses() < plan_.timeout / 2);
  if (is_harmless && !outcomes_.empty()) violated("a group failed though nothing was wrong");
}

std::string Round::run() {
  running = this;
  memory_ = control::Board::make(plan_.ranks());
  const control::Board board(memory_);
  const std::size_t byte_count = board.byte_count();
  kernel_.share(board.data(), byte_count);
  done_.resize(static_cast<std::size_t>(plan_.ranks()));
  for (int rank = 0; rank < plan_.ranks(); ++rank) {
    const int id = plan_.process_of[static_cast<std::size_t>(rank)];
    Proc& process = rank == 0 || id != plan_.process_of[static_cast<std::size_t>(rank) - 1]
                        ? kernel_.add_process()
                        : kernel_.process(id);
    kernel_.spawn(&process, [this, rank] { rank_body(rank); });
  }
  for (const Fault& fault : plan_.faults) {
    if (fault.kind == FaultKind::die) kernel_.process(fault.who).die_at = fault.at;
    if (fault.kind == FaultKind::stop) {
      kernel_.process(fault.who).stop_at = fault.at;
      kernel_.process(fault.who).stop_for = fault.lasts;
    }
  }
  if (!kernel_.run(kernel_.now() + 120s)) violated("it does not end");
  check_end();
  ++tally_.rounds;
  tally_.steps += kernel_.steps();
  // What dead processes have mapped is never unmapped: at least it holds nothing.
  ::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(byte_count));
  running = nullptr;
  return violation_;
}

}  // namespace

std::string run_round(const Plan& plan, Tally& tally) { return Round(plan, tally).run(); }

using control::BoardLog;

bool real_propose(BoardLog* log, std::uint64_t number, const control::Verdict& verdict) noexcept
    asm("__real__ZN5tutti7control8BoardLog7proposeEmRKNS0_7VerdictE");
bool watched_propose(BoardLog* log, std::uint64_t number, const control::Verdict& verdict) noexcept
    asm("__wrap__ZN5tutti7control8BoardLog7proposeEmRKNS0_7VerdictE");
bool watched_propose(BoardLog* log, std::uint64_t number,
                     const control::Verdict& verdict) noexcept {
  if (!real_propose(log, number, verdict)) return false;
  if (Round::running != nullptr) Round::running->entered(verdict);
  return true;
}

}  // namespace tutti::simulate
