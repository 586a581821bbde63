#include "simulate/round.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "control/board/board.h"
#include "control/board/log.h"
#include "control/host.h"
#include "control/vote/vote.h"
#include "simulate/network.h"
#include "simulate/program.h"
#include "simulate/region.h"
#include "simulate/simulated.h"
#include "simulate/truth.h"

namespace tutti::simulate {

using namespace std::chrono_literals;
using control::Verdict;

namespace {

std::string text_of(const Outcome& outcome) {
  return fmt::format("{} culprits [{}]", name_of(outcome.code), fmt::join(outcome.culprits, " "));
}

std::string text_of(const Verdict& verdict) {
  std::vector<int> culprits;
  for (const auto [culprit] : verdict.culprits) culprits.push_back(culprit);
  return fmt::format("{} groups {} culprits [{}] by rank {}: '{}'", name_of(verdict.code),
                     fmt::join(verdict.groups, " "), fmt::join(culprits, " "), verdict.finder.value,
                     verdict.text);
}

/// A world, what its ranks do, and what must hold.
class Round {
 public:
  Round(const Plan& plan, Tally& tally)
      : plan_(plan),
        kernel_(plan.interleaving != 0 ? plan.interleaving : plan.seed, plan.put_aside,
                plan.hiccup),
        around_(kernel_, plan),
        happened_{.plan = plan, .tally = tally, .around = around_} {}

  /// `told`: by rank; may be null.
  std::string run(std::vector<Told>* told);
  // What happens, as it happens.
  void entered_log(const Verdict& verdict);
  void chosen(std::uint64_t number, const Verdict* verdict);
  void makes(const control::MembershipOptions& options);
  void made(const control::MembershipOptions& options);
  void enters(const control::Membership& membership, const Request& request);
  void entered(const control::Membership& membership, const Request& request);
  void left(const control::Membership& membership, const Request& request);

  static Round* running;

 private:
  void start_ranks();
  void befall();
  void check_end();
  void check_outcomes(GroupId id, const Happened::Group& group);
  void check_mail();
  void check_first(const Verdict& verdict, const std::string& text);
  void count_first(std::string_view answer);
  std::string_view operation_of(const Proc& process);
  bool has_parted_from_all(int rank) const;
  Clock::time_point judged_since() const;
  void check_soon(const Verdict& verdict, const std::string& text);
  void check_deadlock(const Verdict& verdict, const std::string& text);
  Clock::time_point earliest_end(Clock::time_point began) const;
  bool is_early(WorldRank finder, Clock::time_point began) const;
  void check_meeting(const Verdict& verdict, const std::string& text);
  void check_late(const Verdict& verdict, const std::string& text);
  void check_stalled(const Verdict& verdict, const std::string& text);
  bool has_fault(std::initializer_list<FaultKind> kinds) const;
  bool is_harmless() const;
  bool has_circles_only() const;
  bool may_have_failed_unseen() const;
  bool has_all_halves() const;
  const Proc& process_of(int rank) const {
    return kernel_.process(plan_.process_of[static_cast<std::size_t>(rank)]);
  }
  void violated(std::string what) { happened_.violated(std::move(what)); }

  bool is_divided() const;
  bool is_end_of_cut(int host) const;
  std::map<int, Clock::time_point> cut_off(int host, int other) const;
  bool have_parted(int host, int other) const {
    return outlived_.contains(std::minmax(host, other)) || !cut_off(host, other).empty() ||
           !cut_off(other, host).empty();
  }
  void check_parting();
  void check_alone(const Fault& cut);
  void check_bystanders();

  const Plan& plan_;
  Kernel kernel_;
  Simulated around_;
  Happened happened_;
  net::Fd memory_;
  std::optional<Network> network_;
  struct Entry {
    Verdict verdict;
    Clock::time_point entered;
  };
  std::map<std::uint64_t, std::map<int, Entry>> chosen_;  // by number and host
  /// Hosts with different entries, of which one has entered its own once the other was over.
  std::set<std::pair<int, int>> outlived_;
};

Round* Round::running = nullptr;

// ---- what must hold ----------------------------------------------------------------------------

bool Round::has_fault(std::initializer_list<FaultKind> kinds) const {
  return std::any_of(plan_.faults.begin(), plan_.faults.end(), [&](const Fault& fault) {
    return std::find(kinds.begin(), kinds.end(), fault.kind) != kinds.end();
  });
}

/// Whether what was entered was true, and may be the first thing that went wrong.
void Round::entered_log(const Verdict& verdict) {
  const bool is_first = happened_.log.empty();
  happened_.log.emplace_back(verdict, kernel_.now());
  if (plan_.hosts() == 1) happened_.logs[0].push_back(happened_.log.back());
  const std::string text = fmt::format("verdict #{}: {}", happened_.log.size(), text_of(verdict));
  if (verdict.is_loss()) {
    check_soon(verdict, text);
    for (const auto [culprit] : verdict.culprits) {
      if (!process_of(culprit).dead && !is_divided())
        violated(fmt::format("{}: rank {} lives", text, culprit));
      if (plan_.hosts() == 1 && has_parted_from_all(culprit))
        violated(fmt::format("{}: rank {} had closed all its groups", text, culprit));
    }
  }
  if (verdict.code == ErrorCode::kDeadlock) check_deadlock(verdict, text);
  if (const std::string wrong = why_untrue(happened_, verdict, judged_since()); !wrong.empty())
    violated(text + ": " + wrong);
  if (verdict.text.starts_with("not called after ")) check_meeting(verdict, text);
  if (verdict.text.starts_with("after ")) check_late(verdict, text);
  if (verdict.text.starts_with("no byte ")) check_stalled(verdict, text);
  if (is_first) check_first(verdict, text);
}

/// A host has entered what the hosts have chosen: the same on all that are left.
void Round::chosen(std::uint64_t number, const Verdict* verdict) {
  if (verdict == nullptr) return;  // it has slept through it
  const int host = plan_.hosts_of[static_cast<std::size_t>(kernel_.self().id)];
  auto& all = chosen_[number];
  if (all.empty()) entered_log(*verdict);
  happened_.logs[host].emplace_back(*verdict, kernel_.now());
  all.emplace(host, Entry{*verdict, kernel_.now()});
  for (const auto& [other, entry] : all) {
    if (entry.verdict == *verdict) continue;
    if (network_->is_over(other)) outlived_.insert(std::minmax(host, other));
    if (!is_divided() && !network_->is_over(other))
      violated(fmt::format("entry {} of the log is {} on host {} and {} on host {}", number,
                           text_of(entry.verdict), other, text_of(*verdict), host));
  }
}

/// Whether hosts may have parted.
bool Round::is_divided() const {
  for (int host = 0; host < plan_.hosts(); ++host)
    if (is_end_of_cut(host)) return true;
  return false;
}

/// However many faults have kept one of its links down so long.
bool Round::is_end_of_cut(int host) const {
  for (int other = 0; other < plan_.hosts(); ++other)
    if (network_ && network_->was_cut(host, other)) return true;
  return false;
}

/// When `host` entered that ranks of another one are lost that lived then, and which: none, if it
/// has not.
std::map<int, Clock::time_point> Round::cut_off(int host, int other) const {
  std::map<int, Clock::time_point> ranks;
  for (const auto& [number, all] : chosen_) {
    const auto there = all.find(host);
    if (there == all.end() || !there->second.verdict.is_loss()) continue;
    const Entry& entry = there->second;
    for (const auto [culprit] : entry.verdict.culprits) {
      const Proc& process = process_of(culprit);
      if (plan_.host_of(culprit) == other && (!process.dead || process.died > entry.entered))
        ranks.emplace(culprit, entry.entered);
    }
  }
  return ranks;
}

/// Hosts whose logs differ have parted. Who cuts a host off names all of its ranks.
void Round::check_parting() {
  for (const auto& [number, all] : chosen_)
    for (const auto& [one, entry] : all)
      for (const auto& [other, there] : all)
        if (one < other && there.verdict != entry.verdict && !have_parted(one, other))
          violated(fmt::format("hosts {} and {} have different entries {}, and have not parted",
                               one, other, number));
  check_bystanders();
  if (plan_.faults.size() != 1) return;
  check_alone(plan_.faults.front());
  for (int host = 0; host < plan_.hosts(); ++host)
    for (int rank = 0; rank < plan_.ranks(); ++rank) {
      const auto ranks = cut_off(host, plan_.host_of(rank));
      if (ranks.empty() || ranks.contains(rank)) continue;
      const auto left = happened_.left.find(rank);
      if (left == happened_.left.end() || left->second > ranks.begin()->second + 100ms)
        violated(fmt::format("host {} has cut off host {}, and has not named rank {}", host,
                             plan_.host_of(rank), rank));
    }
}

/// Whom a cut parts from all others names them in one entry, however late each was found silent.
void Round::check_alone(const Fault& cut) {
  if (cut.kind != FaultKind::cut || cut.other >= 0) return;
  const int host = cut.is_pinned ? plan_.host_of(cut.who) : cut.who;
  const auto losses = std::count_if(chosen_.begin(), chosen_.end(), [&](const auto& all) {
    const auto own = all.second.find(host);
    return own != all.second.end() && own->second.verdict.is_loss();
  });
  if (losses > 1)
    violated(fmt::format("host {} was cut from all others at once and names them in {} entries",
                         host, losses));
}

/// A host that can be reached is nobody's loss: who is cut off, or has cut off, is an end of a cut.
void Round::check_bystanders() {
  for (int host = 0; host < plan_.hosts(); ++host)
    for (int other = 0; other < plan_.hosts(); ++other) {
      if (is_end_of_cut(host) || is_end_of_cut(other) || cut_off(host, other).empty()) continue;
      violated(fmt::format("host {} has cut off host {}, which it can reach, with rank {}", host,
                           other, cut_off(host, other).begin()->first));
    }
}

/// Something in the plan explains what went wrong first.
void Round::check_first(const Verdict& verdict, const std::string& text) {
  using enum FaultKind;
  const auto explained = [&](std::initializer_list<FaultKind> kinds) {
    if (!has_fault(kinds) && has_all_halves())
      violated(text + ": nothing of the kind has happened");
  };
  switch (verdict.code) {
    case ErrorCode::kPeerLost:
      explained({die, lose, cut});
      break;
    case ErrorCode::kTimeout:
      if (!has_fault({die, lose, skip, swap, quit, error, abort, disagree}) &&
          happened_.pauses() < plan_.timeout / 2)
        violated(text + ": nobody was late for so long");
      break;
    case ErrorCode::kCollectiveMismatch:
      // A close that times out ends a program early, whatever it waited for.
      if (verdict.text.find("disagree about operation") != std::string::npos) {
        explained({disagree, skip, swap});
      } else {
        explained(
            {quit, skip, swap, late, stop, slow, die, lose, cut, freeze, disagree, error, abort});
      }
      break;
    case ErrorCode::kClosed:
      // Who took a message back may leave while its other end still waits.
      if (plan_.patience > 0ms) break;
      explained(
          {quit, skip, swap, late, stop, slow, die, lose, cut, freeze, disagree, error, abort});
      break;
    case ErrorCode::kAborted:
      // Rank 0 may have stopped between that and saying why, or nobody hears it.
      if (verdict.text.find("ended the hand-over") != std::string::npos &&
          has_fault({stop, slow, freeze, cut}))
        break;
      // Between hosts it may be chosen before the failure that it follows from.
      if (plan_.hosts() > 1 && has_fault({error})) break;
      explained({abort});
      break;
    case ErrorCode::kSystem:
      explained({error});
      if (verdict.culprits.empty()) violated(text + ": it names nobody");
      for (const auto [culprit] : verdict.culprits)
        if (!process_of(culprit).has_no_memory)
          violated(fmt::format("{}: rank {} has memory", text, culprit));
      break;
    case ErrorCode::kDeadlock:
      // All ranks follow one plan, so nobody waits in a circle unless a rank leaves its path, or
      // goes on without a call that has failed: however late the others are.
      if (!happened_.has_failed_call && !may_have_failed_unseen())
        explained({skip, swap, disagree, abort, quit, error, die});
      break;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kUnauthenticated:
    case ErrorCode::kInternal:
    case ErrorCode::kCancelled:
      violated(text + ": no part of a simulation fails so");
  }
  count_first(name_of(verdict.code));
}

/// Whether the time of a message may have been over that its program has not looked at since.
bool Round::may_have_failed_unseen() const {
  const bool has_unseen =
      std::any_of(plan_.steps.begin(), plan_.steps.end(), [](const PlanStep& step) {
        return step.kind == StepKind::message &&
               (step.how != How::waits || step.how_to != How::waits);
      });
  return has_unseen && happened_.pauses() >= plan_.timeout / 2;
}

/// What the first rank of a process does.
std::string_view Round::operation_of(const Proc& process) {
  const auto& all = plan_.process_of;
  const auto rank = std::find(all.begin(), all.end(), process.id) - all.begin();
  const std::string_view doing = happened_.doing[static_cast<int>(rank)];
  return doing.empty() ? "join" : doing;
}

/// What a round has answered first to its faults, and what the rank did that the only one befell.
void Round::count_first(std::string_view answer) {
  for (const Fault& fault : plan_.faults)
    ++happened_.tally.answers[fmt::format("{} -> {}", name_of(fault.kind), answer)];
  const bool is_alone = plan_.faults.size() == 1 && plan_.patience == 0ms;
  if (!is_alone || happened_.befallen.empty()) return;
  const std::string row = fmt::format("{} -> {}", name_of(plan_.faults.front().kind), answer);
  ++happened_.tally.alone[row][std::string(happened_.befallen)];
  std::vector<std::uint64_t>& seeds =
      happened_.tally.seeds[fmt::format("{}, {}", row, happened_.befallen)];
  if (seeds.size() < 4) seeds.push_back(plan_.seed);
}

/// P1: a death alone is known soon.
void Round::check_soon(const Verdict& verdict, const std::string& text) {
  constexpr auto kSoon = 100ms;
  const bool is_alone =
      plan_.faults.size() == 1 && plan_.hosts() == 1 && plan_.faults.front().kind == FaultKind::die;
  if (!is_alone) return;
  for (const auto [culprit] : verdict.culprits)
    if (kernel_.now() - process_of(culprit).died > kSoon + happened_.pauses())
      violated(fmt::format("{}: rank {} had died {} ms before", text, culprit,
                           (kernel_.now() - process_of(culprit).died) / 1ms));
}

/// When its judge may have begun to read facts: it may have stopped since, and between hosts an
/// entry comes later than it was wished.
Clock::time_point Round::judged_since() const {
  return kernel_.now() - happened_.soon() - happened_.pauses();
}

/// Whose group has failed already is told of that.
void Round::check_deadlock(const Verdict& verdict, const std::string& text) {
  for (const GroupId id : verdict.groups) {
    const std::vector<int>& ranks = happened_.groups[id].world_ranks;
    const bool is_member =
        std::find(ranks.begin(), ranks.end(), verdict.finder.value) != ranks.end();
    const auto before = happened_.log.end() - 1;  // the last one is this
    if (is_member && std::any_of(happened_.log.begin(), before,
                                 [id](const auto& entry) { return entry.first.fails(id); }))
      violated(text + ": its group had failed");
  }
}

/// When a wait that began then may be over at the earliest. It counts from a look at the clock,
/// after which its thread may have been put aside while another one of its process entered.
Clock::time_point Round::earliest_end(Clock::time_point began) const {
  return began + plan_.timeout - kernel_.hiccups() - 1ms;
}

/// Whether a wait of `finder` that began then is over too early. It may have stopped between its
/// look at the clock and what is known here as the beginning.
bool Round::is_early(WorldRank finder, Clock::time_point began) const {
  const bool has_stopped = process_of(finder.value).stopped_until + 5ms >= began;
  return !has_stopped && kernel_.now() < earliest_end(began);
}

/// Who waits for members of a new group is told at once why they do not come.
void Round::check_meeting(const Verdict& verdict, const std::string& text) {
  // Between hosts an entry comes later than it was wished.
  const auto began = kernel_.now() - plan_.timeout - (plan_.hosts() == 1 ? 0ns : happened_.soon());
  for (const auto [culprit] : verdict.culprits) {
    const auto left = happened_.left.find(culprit);
    if (left != happened_.left.end() && left->second + happened_.pauses() < began)
      violated(fmt::format("{}: rank {} had left the world", text, culprit));
  }
  const Happened::Group& group = happened_.groups[verdict.groups.front()];
  const auto made = group.made.find(verdict.finder.value);
  if (made != group.made.end() && is_early(verdict.finder, made->second))
    violated(text + ": its time had not passed");
  for (const auto& [earlier, when] : happened_.log)
    if (group.parent != 0 && earlier.fails(group.parent) && when + happened_.pauses() < began)
      violated(text + ": the group that was asked for it had failed");
}

bool Round::has_parted_from_all(int rank) const {
  const auto made = happened_.made.find(rank);
  if (made == happened_.made.end()) return false;
  return std::all_of(made->second.begin(), made->second.end(), [&](GroupId group) {
    return happened_.groups.at(group).parted.contains(rank);
  });
}

namespace {

/// The latest collective that a member has entered until then.
std::uint64_t last_of(const Happened::Group& group, std::size_t member, Clock::time_point until) {
  std::uint64_t last = 0;
  for (const auto& [seq, all] : group.entered)
    if (all[member] != Clock::time_point{} && all[member] <= until) last = std::max(last, seq);
  return last;
}

}  // namespace

/// Those who are said to be late must be, and nobody may be further behind.
void Round::check_late(const Verdict& verdict, const std::string& text) {
  const Happened::Group& group = happened_.groups[verdict.groups.front()];
  const auto wait = group.waiting.find(verdict.finder.value);
  if (wait == group.waiting.end()) return;
  const auto [seq, since, names_all] = wait->second;
  // Between hosts an entry comes later than it was wished: its finder may have gone on by then.
  const std::string found =
      verdict.text.substr(0, verdict.text.find('('));  // "after 1 s in ... #2"
  if (plan_.hosts() > 1 && !found.ends_with(fmt::format(" #{}", seq))) return;
  const auto is_named = [&](std::size_t member) {
    const auto& culprits = verdict.culprits;
    return std::find(culprits.begin(), culprits.end(), WorldRank(group.world_ranks[member])) !=
           culprits.end();
  };
  const Clock::time_point due = earliest_end(since);
  if (is_early(verdict.finder, since)) violated(text + ": its time had not passed");
  std::uint64_t most = 0;
  for (std::size_t member = 0; member < group.world_ranks.size(); ++member)
    if (is_named(member)) most = std::max(most, last_of(group, member, due));
  // Of who has not answered it says that it may be old.
  const bool is_cut = verdict.text.size() + 1 >= control::kVerdictBytes;
  const bool is_unanswered = verdict.text.find("has not answered") != std::string::npos;
  using enum FaultKind;
  if (is_unanswered && !has_fault({stop, slow, freeze, cut, die, lose, quit}))
    violated(text + ": its host could answer");
  if (is_cut || is_unanswered) return;
  if (most >= seq) violated(text + ": it had");
  for (std::size_t member = 0; member < group.world_ranks.size(); ++member)
    if (last_of(group, member, Clock::time_point::max()) < most && !(names_all && is_named(member)))
      violated(fmt::format("{}: rank {} is further behind", text, group.world_ranks[member]));
}

/// No collective is stalled while somebody has not entered.
void Round::check_stalled(const Verdict& verdict, const std::string& text) {
  const Happened::Group& group = happened_.groups[verdict.groups.front()];
  // "... in rank 5's all_reduce #1(...": between hosts its finder may have gone on by now.
  const std::size_t number = verdict.text.find(" #");
  const bool is_message =
      text.find("'s send(") != std::string::npos || text.find("'s recv(") != std::string::npos;
  if (number == std::string::npos || is_message) return;
  const std::uint64_t seq = std::stoull(verdict.text.substr(number + 2));
  const auto wait = group.waiting.find(verdict.finder.value);
  if (wait != group.waiting.end() && wait->second.seq == seq &&
      is_early(verdict.finder, wait->second.since))
    violated(text + ": its time had not passed");
  for (std::size_t member = 0; member < group.world_ranks.size(); ++member)
    if (last_of(group, member, Clock::time_point::max()) < seq)
      violated(fmt::format("{}: rank {} has not entered", text, group.world_ranks[member]));
}

// ---- at the end --------------------------------------------------------------------------------

void Round::check_outcomes(GroupId id, const Happened::Group& group) {
  std::map<int, const Outcome*> firsts;  // by host
  for (std::size_t member = 0; member < group.outcomes.size(); ++member) {
    const auto& outcome = group.outcomes[member];
    if (!outcome) continue;
    for (const int culprit : outcome->culprits)
      if (outcome->code == ErrorCode::kPeerLost && group.parted.contains(culprit) &&
          plan_.hosts() == 1)
        violated(
            fmt::format("group {}: rank {} was lost to it after it had closed it", id, culprit));
    const int host = plan_.host_of(group.world_ranks[member]);
    firsts.emplace(host, &*outcome);
    for (const auto& [other, first] : firsts)
      if (*first != *outcome && !happened_.may_be_held_up() && !have_parted(host, other))
        violated(fmt::format("group {}: member {} ended with {}, others with {}", id, member,
                             text_of(*outcome), text_of(*first)));
  }
  if (!firsts.empty() && is_harmless()) violated("a group failed though nothing was wrong");
  if (const std::string wrong = why_unequal(group); !wrong.empty())
    violated(fmt::format("group {}: {}", id, wrong));
}

/// In a group that is well, what a sender was told that it was received has been.
void Round::check_mail() {
  for (const auto& [key, mail] : happened_.mail) {
    const auto& [id, step] = key;
    const Happened::Group& group = happened_.groups[id];
    const PlanStep& sent = plan_.steps[step];
    const auto to = group.world_ranks[static_cast<std::size_t>(sent.to)];
    const bool is_well =
        !process_of(to).dead && std::none_of(group.outcomes.begin(), group.outcomes.end(),
                                             [](const auto& each) { return each.has_value(); });
    if (is_well && mail.is_sent && !sent.buffered && !mail.is_received)
      violated(fmt::format("the message of step {} was sent, and nobody received it", step));
  }
}

/// Ranks wait for each other's messages at once, and for nothing else.
bool Round::has_circles_only() const {
  const bool swaps = !plan_.faults.empty() &&
                     std::all_of(plan_.faults.begin(), plan_.faults.end(),
                                 [](const Fault& fault) { return fault.kind == FaultKind::swap; });
  const bool is_seen = plan_.hosts() == 1 && !plan_.warns && plan_.timeout >= 2s;
  return swaps && is_seen &&
         std::all_of(plan_.steps.begin(), plan_.steps.end(), [](const PlanStep& step) {
           if (step.kind == StepKind::make) return true;
           return step.kind == StepKind::message && !step.buffered && step.how == How::waits &&
                  step.how_to == How::waits;
         });
}

/// Each message that is received in a step of its own is sent in one before.
bool Round::has_all_halves() const {
  std::map<std::array<int, 4>, int> sent;
  return std::all_of(plan_.steps.begin(), plan_.steps.end(), [&](const PlanStep& step) {
    if (step.kind != StepKind::message || step.half == Half::both) return true;
    int& count = sent[{step.group, step.from, step.to, step.tag}];
    return (count += step.half == Half::send ? 1 : -1) >= 0;
  });
}

bool Round::is_harmless() const {
  using enum FaultKind;
  if (!has_all_halves()) return false;
  return !has_fault({die, lose, disagree, skip, swap, abort, quit, error}) &&
         plan_.patience == 0ms && happened_.pauses() < plan_.timeout / 2;
}

void Round::check_end() {
  for (int rank = 0; rank < plan_.ranks(); ++rank)
    if (!process_of(rank).dead && !happened_.done[static_cast<std::size_t>(rank)])
      violated(fmt::format("rank {} never ends", rank));
  for (const auto& [id, group] : happened_.groups) check_outcomes(id, group);
  check_mail();
  if (has_circles_only()) {
    if (const std::string wrong = why_unseen(happened_); !wrong.empty()) violated(wrong);
  }
  check_parting();
  if (happened_.log.empty()) count_first("nothing");
}

// ---- the round ---------------------------------------------------------------------------------

void Round::makes(const control::MembershipOptions& options) {
  const int rank = options.world_ranks[static_cast<std::size_t>(options.rank)].value;
  Happened::Group& group = happened_.groups[options.id];
  group.world_ranks.clear();
  for (const auto [each] : options.world_ranks) group.world_ranks.push_back(each);
  group.parent = options.asked_of;
  group.outcomes.resize(options.world_ranks.size());
  happened_.made[rank].insert(options.id);
  happened_.doing[rank] = "make";
}

void Round::made(const control::MembershipOptions& options) {
  const int rank = options.world_ranks[static_cast<std::size_t>(options.rank)].value;
  happened_.made_last[rank] = options.id;
  happened_.groups[options.id].made.emplace(rank, kernel_.now());
}

void Round::enters(const control::Membership& membership, const Request& request) {
  Happened::Group& group = happened_.groups[membership.id()];
  const int rank = group.world_ranks[static_cast<std::size_t>(membership.rank())];
  happened_.doing[rank] = name_of(request.op);
  if (request.seq == 0) return;
  group.waiting[rank] = {request.seq, kernel_.now(), request.names_all};
  auto& chains = group.chains[request.seq];
  chains.resize(group.world_ranks.size());
  chains[static_cast<std::size_t>(membership.rank())] = request.chain;
}

void Round::entered(const control::Membership& membership, const Request& request) {
  if (request.seq == 0) return;
  auto& all = happened_.groups[membership.id()].entered[request.seq];
  all.resize(static_cast<std::size_t>(membership.group_size()));
  all[static_cast<std::size_t>(membership.rank())] = kernel_.now();
}

void Round::left(const control::Membership& membership, const Request& request) {
  if (request.seq == 0) return;
  Happened::Group& group = happened_.groups[membership.id()];
  const int rank = group.world_ranks[static_cast<std::size_t>(membership.rank())];
  const auto& all = group.entered[request.seq];
  if (std::find(all.begin(), all.end(), Clock::time_point{}) == all.end())
    happened_.check_prompt(*std::max_element(all.begin(), all.end()), kernel_.now(),
                           fmt::format("rank {}: {} #{} of group {}", rank, name_of(request.op),
                                       request.seq, membership.id()));
  auto& ended = group.ended[request.seq];
  ended.resize(group.world_ranks.size());
  ended[static_cast<std::size_t>(membership.rank())] = kernel_.now();
  group.waiting.erase(rank);
}

void Round::start_ranks() {
  for (int rank = 0; rank < plan_.ranks(); ++rank) {
    const int id = plan_.process_of[static_cast<std::size_t>(rank)];
    Proc& process = rank == 0 || id != plan_.process_of[static_cast<std::size_t>(rank) - 1]
                        ? kernel_.add_process()
                        : kernel_.process(id);
    kernel_.spawn(&process, [this, rank] {
      run_program(happened_, rank);
      if (network_) network_->ended(rank);
    });
  }
}

void Round::befall() {
  kernel_.on_death = [this](Proc& process) {
    if (happened_.befallen.empty()) happened_.befallen = operation_of(process);
    for (const Fault& fault : plan_.faults) {
      if (fault.kind != FaultKind::lose || fault.is_pinned ||
          plan_.processes_of(fault.who).front() != process.id)
        continue;
      for (const int id : plan_.processes_of(fault.who)) kernel_.kill(kernel_.process(id));
    }
    if (network_) network_->died(process);
  };
  for (const Fault& fault : plan_.faults) {
    if (fault.is_pinned) continue;
    if (fault.kind == FaultKind::lose)
      kernel_.process(plan_.processes_of(fault.who).front()).die_at = fault.at;
    if (fault.kind == FaultKind::freeze) {
      Proc& first = kernel_.process(plan_.processes_of(fault.who).front());
      first.stop_at = fault.at;
      first.stop_for = fault.lasts;
      first.stop_with = plan_.processes_of(fault.who);
    }
    if (fault.kind == FaultKind::die) kernel_.process(fault.who).die_at = fault.at;
    if (fault.kind == FaultKind::stop) {
      kernel_.process(fault.who).stop_at = fault.at;
      kernel_.process(fault.who).stop_for = fault.lasts;
    }
  }
}

std::string Round::run(std::vector<Told>* told) {
  running = this;
  if (plan_.hosts() == 1) memory_ = control::Board::make(plan_.ranks());
  kernel_.cores = plan_.cores;
  around_.board_fd = memory_.get();
  happened_.done.resize(static_cast<std::size_t>(plan_.ranks()));
  if (told != nullptr) told->assign(static_cast<std::size_t>(plan_.ranks()), {});
  happened_.told = told;
  if (plan_.hosts() > 1) around_.network = &network_.emplace(plan_, kernel_, happened_);
  start_ranks();
  if (network_) network_->start();
  befall();
  if (!kernel_.run(kernel_.now() + 120s)) violated("it does not end");
  check_end();
  ++happened_.tally.rounds;
  happened_.tally.steps += kernel_.steps();
  clear_region();
  running = nullptr;
  return happened_.violation;
}

}  // namespace

std::string run_round(const Plan& plan, Tally& tally, std::vector<Told>* told) {
  return Round(plan, tally).run(told);
}

// ---- what the product does, watched ------------------------------------------------------------

using control::BoardLog;
using control::Host;
using control::Membership;
using control::MembershipOptions;

bool real_propose(BoardLog* log, std::uint64_t number, const Verdict& verdict) noexcept
    asm("__real__ZN5tutti7control8BoardLog7proposeEmRKNS0_7VerdictE");
bool watched_propose(BoardLog* log, std::uint64_t number, const Verdict& verdict) noexcept
    asm("__wrap__ZN5tutti7control8BoardLog7proposeEmRKNS0_7VerdictE");
bool watched_propose(BoardLog* log, std::uint64_t number, const Verdict& verdict) noexcept {
  if (!real_propose(log, number, verdict)) return false;
  if (Round::running != nullptr) Round::running->entered_log(verdict);
  return true;
}

bool real_chosen(BoardLog* log, std::uint64_t number, const Verdict* verdict) noexcept
    asm("__real__ZN5tutti7control8BoardLog12enter_chosenEmPKNS0_7VerdictE");
bool watched_chosen(BoardLog* log, std::uint64_t number, const Verdict* verdict) noexcept
    asm("__wrap__ZN5tutti7control8BoardLog12enter_chosenEmPKNS0_7VerdictE");
bool watched_chosen(BoardLog* log, std::uint64_t number, const Verdict* verdict) noexcept {
  if (!real_chosen(log, number, verdict)) return false;
  if (Round::running != nullptr) Round::running->chosen(number, verdict);
  return true;
}

std::unique_ptr<Membership> real_make(Host* host, MembershipOptions options) asm(
    "__real__ZN5tutti7control4Host15make_membershipENS0_17MembershipOptionsE");
std::unique_ptr<Membership> watched_make(Host* host, MembershipOptions options) asm(
    "__wrap__ZN5tutti7control4Host15make_membershipENS0_17MembershipOptionsE");
std::unique_ptr<Membership> watched_make(Host* host, MembershipOptions options) {
  Round::running->makes(options);
  std::unique_ptr<Membership> membership = real_make(host, options);
  Round::running->made(options);
  return membership;
}

void real_enter(Membership* membership, const Request& request) noexcept
    asm("__real__ZN5tutti7control10Membership5enterERKNS_7RequestE");
void watched_enter(Membership* membership, const Request& request) noexcept
    asm("__wrap__ZN5tutti7control10Membership5enterERKNS_7RequestE");
void watched_enter(Membership* membership, const Request& request) noexcept {
  Round::running->enters(*membership, request);
  real_enter(membership, request);
  Round::running->entered(*membership, request);
}

void real_leave(Membership* membership, const Request& request) noexcept
    asm("__real__ZN5tutti7control10Membership5leaveERKNS_7RequestE");
void watched_leave(Membership* membership, const Request& request) noexcept
    asm("__wrap__ZN5tutti7control10Membership5leaveERKNS_7RequestE");
void watched_leave(Membership* membership, const Request& request) noexcept {
  real_leave(membership, request);
  Round::running->left(*membership, request);
}

}  // namespace tutti::simulate
