// What is known of a group's members, and what a judge has found, in words for people.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/rank_list.h"
#include "control/board/describe.h"
#include "control/board/words.h"
#include "control/host_state.h"

namespace tutti::control {

namespace {

/// What a rank elsewhere did so long ago is told with its age.
constexpr std::chrono::seconds kRecent{2};

}  // namespace

std::string Membership::State::person(int member) const {
  return host->person(members.world_rank_of(member), member);
}

std::string Membership::State::old_news(const std::vector<int>& silent,
                                        std::chrono::nanoseconds lasting) const {
  std::string text;
  for (const int member : silent) {
    text += fmt::format("; {} has not answered for {}: what is said of it may be old",
                        person(member), seconds(lasting));
  }
  return text;
}

std::string Membership::State::host_of_first(const std::vector<int>& culprits) const {
  if (culprits.empty()) return {};
  const WorldRank first = members.world_rank_of(culprits.front());
  return host->roster.host(host->roster.host_of(first)).name;
}

std::string Membership::State::for_the_world(const Cause& cause) const {
  const std::vector<WorldRank>& ranks = members.world_ranks();
  const bool is_same = std::all_of(ranks.begin(), ranks.end(), [&](const WorldRank& each) {
    return each.index() == static_cast<std::size_t>(&each - ranks.data());
  });
  if (is_same || cause.code == ErrorCode::kDeadlock) return cause.text;
  constexpr std::size_t kMost = 16;
  std::string list;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    list += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i].value);
  return fmt::format("{} (in group {}, whose ranks 0 to {} are the world ranks {}{})", cause.text,
                     name, ranks.size() - 1, list, ranks.size() > kMost ? ", ..." : "");
}

std::string Membership::State::of_group() const {
  return asked_of == 0 ? std::string() : " of group " + name;
}

std::string Membership::State::own(const Request& request) const {
  return fmt::format("rank {}'s {}", rank, in_words(request));
}

std::string Membership::State::in_words(const Request& request) const {
  return describe_numbered(host->own.slot(), shown_of(request, host->own.site(request.where)));
}

std::string Membership::State::doing(int member) const {
  if (!members.is_here(member)) return doing_elsewhere(member);
  return describe_doing(host->shared, members.here().slot_index_of(member), id);
}

/// The latest collective of all members that this rank has completed, so that each has called it;
/// null where none of the last ones is.
const KnownCall* Membership::State::called_by_all(const LineFacts& own) {
  for (std::uint64_t seq = own.completed; seq > 0; --seq) {
    const KnownCall* const shown = shown_at(own, seq);
    if (shown == nullptr) break;
    const std::size_t op = op_index(shown->op);
    if (op < kOpCount && needs_all(static_cast<Op>(op))) return shown;
  }
  return nullptr;
}

std::string Membership::State::doing_elsewhere(int member) const {
  const MemberFacts facts = members.facts_of(member);
  const auto& theirs = facts.line;
  if (!theirs) return "has not made this group";
  const LineFacts own = members.facts_of(rank).line.value_or(LineFacts{});
  const KnownCall* const done = called_by_all(own);
  if (done != nullptr && theirs->entered < done->seq)
    return fmt::format("has called {}, which this rank has completed", describe_numbered(*done));
  if (theirs->entered == 0) {
    const bool was_asked = facts.asked != Clock::time_point{};
    return was_asked ? "has completed no collective yet" : "has not said what it did";
  }
  // It may have gone on since.
  const auto age = Clock::now() - facts.heard;
  const std::string when = age < kRecent ? "" : fmt::format(" (as it was {} ago)", seconds(age));
  const KnownCall* const shown = shown_at(*theirs, theirs->entered);
  const std::string what =
      shown != nullptr ? describe_numbered(*shown) : fmt::format("#{}", theirs->entered);
  if (theirs->entered <= theirs->completed) return fmt::format("last completed {}{}", what, when);
  // Its program may have gone on since the group failed.
  return theirs->failure ? fmt::format("was in {}, when that failed", what)
                         : fmt::format("is in {}{}", what, when);
}

std::string Membership::State::doings(const std::vector<int>& awaited, std::string_view link,
                                      std::string_view link_elsewhere) const {
  std::string text;
  for (const int member : awaited) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", person(member),
                        members.is_here(member) ? link : link_elsewhere, doing(member));
  }
  return text;
}

std::string Membership::State::doings_anywhere(const std::vector<int>& awaited) const {
  std::string text;
  for (const int member : awaited) {
    text += fmt::format("{}{}, which {}", text.empty() ? "" : "; ", person(member),
                        members.is_here(member)
                            ? describe_doing(host->shared, members.here().slot_index_of(member))
                            : doing_elsewhere(member));
  }
  return text;
}

std::string Membership::State::call_of(int member, const Request& request) const {
  const auto theirs = members.facts_of(member).line;
  const KnownCall* const shown = theirs ? shown_at(*theirs, request.seq) : nullptr;
  const std::string site = shown != nullptr ? with_texts(member, *shown).site_text : "";
  return fmt::format("{} #{}{}{}", call_name(request), request.seq, site.empty() ? "" : " at ",
                     site);
}

KnownCall Membership::State::with_texts(int member, const KnownCall& known) const {
  return members.is_here(member) ? known_call(members.here().slot_of(member), known) : known;
}

ErrorContext Membership::State::context_of(const Request& request) const {
  return {.op = call_name(request),
          .seq = request.seq,
          .rank = rank,
          .culprits = {},
          .host = {},
          .call_site = name_of(request.where)};
}

std::string Membership::State::heading_of(const Request& request) const {
  return heading(context_of(request), asked_of == 0 ? std::string() : name,
                 purpose_of(request.where));
}

// ---- findings ----------------------------------------------------------------------------------

namespace {

constexpr std::string_view kSameCalls =
    "Every rank must call the same operations in the same order";

/// How many collectives each member has called: "2 by ranks 0, 2, 1 by rank 1".
std::string calls_text(const CallCounts& calls) {
  // Descending, and those that nothing is known of behind.
  std::map<std::optional<std::uint64_t>, std::vector<int>, std::greater<>> by_count;
  for (std::size_t member = 0; member < calls.size(); ++member)
    by_count[calls[member]].push_back(static_cast<int>(member));
  std::string text;
  for (const auto& [count, ranks] : by_count) {
    const std::string number = count ? std::to_string(*count) : "not known yet how many";
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", number, ranks_text(ranks));
  }
  return text;
}

/// In what operations that look alike differ.
std::string_view hidden_difference(const Side& side) noexcept {
  const std::uint8_t op = side.shown ? side.shown->op : 0;
  if ((op & kUnevenBit) != 0) return "their counts differ";
  if (op_index(op) == static_cast<std::size_t>(Op::all_reduce))
    return "they differ in the buffers of a list";
  return {};
}

/// A finding about a group, in words.
class Words {
 public:
  Words(const Membership::State& group, const Finding& finding, const Request* request) noexcept
      : group_(group), finding_(finding), request_(request) {}

  std::string operator()(const Disagreement& found) const {
    std::string text =
        fmt::format("the ranks{} disagree about operation #{}", group_.of_group(), found.seq);
    bool look_alike = true;
    for (std::size_t i = 0; i < found.sides.size(); ++i) {
      text += fmt::format("{} {} called {}", i == 0 ? ":" : ";", ranks_text(found.sides[i].members),
                          call_of(found.sides[i]));
      look_alike = look_alike && alike(found.sides[i], found.sides[0]);
    }
    if (look_alike) text += fmt::format(" ({})", hidden_reason(found));
    return fmt::format("{}. {}", text, kSameCalls);
  }

  std::string operator()(const UnequalCalls& found) const {
    const std::string what =
        found.shown ? fmt::format(", on rank {} {}", found.more,
                                  describe(group_.with_texts(found.more, *found.shown)))
                    : "";
    return fmt::format(
        "the ranks did not call the same number of collectives: {}. Rank {} left without #{}{}. {}",
        calls_text(found.calls), found.fewer, found.extra, what, kSameCalls);
  }

  std::string operator()(const LeftEarly& found) const {
    return fmt::format(
        "{} left the group {}, while rank {} is in {}. Collectives called so far: {}. Every rank "
        "must call the same operations before it leaves",
        group_.person(found.member),
        found.last == 0 ? "before its first collective"
                        : "after " + times_text(found.last, "collective"),
        group_.rank, group_.in_words(*request_), calls_text(found.calls));
  }

  std::string operator()(const LeftUnmatched& found) const {
    return fmt::format(
        "{} left the group, while {} was unmatched. {} before any rank closes, or take it "
        "back with Work::cancel",
        found.member < 0 ? "every other rank" : group_.person(found.member), group_.own(*request_),
        request_->op == Op::send ? "Receive it" : "Send what it waits for");
  }

  std::string operator()(const NotEntered& found) const {
    return fmt::format("after {} in {}: {}. If it is only slow, give a longer timeout",
                       budget_text(found.given), group_.own(*request_),
                       group_.doings(finding_.culprits, " had not entered; it "));
  }

  std::string operator()(const Stalled& found) const {
    const std::string doings = group_.doings(finding_.culprits, " ");
    return fmt::format("no byte has moved for {} (setting stall_timeout) in {}{}{}",
                       budget_text(found.given), group_.own(*request_), doings.empty() ? "" : "; ",
                       doings);
  }

  std::string operator()(const AskedOtherwise& found) const {
    return fmt::format(
        "{} is in {} while {} is in {}, and each awaits the other. All ranks must make the same "
        "groups, of the same ranks in the same order",
        of_world(group_.rank), making_by(group_.rank, group_.id), of_world(found.member),
        making_by(found.member, found.group));
  }

  std::string operator()(const NotCome& found) const {
    return fmt::format(
        "not called after {} by {}. If it is only slow, give the world a longer timeout "
        "(InitOptions::timeout)",
        budget_text(found.given), group_.doings_anywhere(finding_.culprits));
  }

  std::string operator()(const LeftWorld&) const { return have("left the world"); }

  std::string operator()(const LeftParent&) const {
    return have(
        "closed, or could not make, the parent of this group. Make it from a group that all of its "
        "members are still in");
  }

 private:
  /// "rank 1 (pid 77 on host) has left the world".
  std::string have(std::string_view done) const {
    std::vector<std::string> persons;
    for (const int culprit : finding_.culprits) persons.push_back(group_.person(culprit));
    return fmt::format("{} {} {}", fmt::join(persons, ", "), persons.size() == 1 ? "has" : "have",
                       done);
  }

  /// Members of several groups read it.
  std::string of_world(int member) const {
    const Host::State& host = *group_.host;
    const WorldRank rank = group_.members.world_rank_of(member);
    return (is_world(host.shared, host.own.index(), group_.asked_of) ? "" : "world ") +
           host.person(rank, rank.value);
  }

  std::string call_of(const Side& side) const {
    if (!side.shown) return "an operation that the board no longer shows";
    return describe(group_.with_texts(side.shown_by, *side.shown));
  }

  /// Wherever it was called from.
  std::string what(const Side& side) const {
    KnownCall call = group_.with_texts(side.shown_by, *side.shown);
    call.site_text.clear();
    return describe(call);
  }

  std::string making_by(int member, GroupId group) const {
    if (group_.members.is_here(member)) {
      const SlotIndex slot = group_.members.here().slot_index_of(member);
      return describe_making(group_.host->shared, slot, group);
    }
    const GroupFacts facts = group_.members.read_meetings();
    for (const MeetingFacts& other : facts.of(member).meetings)
      if (other.group == group && !other.words.empty()) return other.words;
    return "another group";
  }

  /// The same operation, called on top of different pasts.
  bool alike(const Side& one, const Side& other) const {
    return one.shown && other.shown && what(one) == what(other);
  }

  static std::string hidden_reason(const Disagreement& found) {
    const std::string_view here = hidden_difference(found.sides[0]);
    std::string before = fmt::format("they differ in an operation before #{}", found.seq);
    if (here.empty()) return before;
    return found.same_past ? std::string(here) : fmt::format("{}, or {}", here, before);
  }

  const Membership::State& group_;
  const Finding& finding_;
  const Request* const request_;
};

}  // namespace

std::string Membership::State::words_of(const Finding& finding, const Request* request) const {
  std::string text = std::visit(Words(*this, finding, request), finding.what);
  return text + old_news(finding.silent, kAnswerComes);
}

// ---- deadlocks ---------------------------------------------------------------------------------

namespace {

constexpr std::string_view kNobodyGoesOn = ". None of them can go on by itself: ";
constexpr std::string_view kOfOperations =
    "change the order of the calls, or use sendrecv, batch or tutti::async";
constexpr std::string_view kOfNewGroups =
    "all members of a new group must call new_group, and all ranks make their calls in one order";
constexpr std::string_view kOfThreads =
    ". If another thread was about to help, see the setting deadlock";

/// A knot in words.
class KnotWords {
 public:
  KnotWords(const Host::State& host, const Knot& knot, const std::vector<WaitFacts>& facts)
      : host_(host), knot_(knot), facts_(facts), rank_(has_groups() ? "world rank" : "rank") {}

  std::string operator()() const {
    const bool is_circle = knot_.is_circle();
    std::string text = "deadlock: ";
    const std::string end = fmt::format("{}{}{}{}{}", full_buffers(), unequal_tags(), kNobodyGoesOn,
                                        makes_groups() ? kOfNewGroups : kOfOperations, kOfThreads);
    for (std::size_t link = 0; link < knot_.links.size(); ++link) {
      const std::string more = text_of(link, is_circle && link > 0);
      const std::string_view between = link == 0 ? "" : is_circle ? ", which " : "; ";
      if (text.size() + between.size() + more.size() + kRest + end.size() >= kVerdictBytes)
        return fmt::format("{}{}{}", text, rest(link), end);
      text += fmt::format("{}{}", between, more);
    }
    return text + end;
  }

 private:
  static constexpr std::size_t kRest = 64;

  /// Of two ranks, one of which sends to the other, which receives with another tag; where all
  /// send, what they receive is not shown. Else "".
  std::string unequal_tags() const {
    if (all_send())
      return ". Where they receive as well (batch, sendrecv, async), compare the tags of both ends";
    for (const Knot::Link& link : knot_.links) {
      for (const WaitPart& send : facts_[link.rank.index()].parts) {
        if (op_index(send.what.op) != static_cast<std::size_t>(Op::send)) continue;
        const WorldRank to = send.awaited.front();
        for (const WaitPart& receive : facts_[to.index()].parts) {
          if (misses(receive, send, link.rank)) {
            return fmt::format(
                ". Their tags differ: {0} {1} sends with {2}, {0} {3} receives with {4}; a message "
                "is received with the tag that it was sent with",
                rank_, link.rank.value, static_cast<std::int32_t>(send.what.chain), to.value,
                static_cast<std::int32_t>(receive.what.chain));
          }
        }
      }
    }
    return {};
  }

  template <class Is>
  bool any_part(Is&& is) const {
    return std::any_of(knot_.links.begin(), knot_.links.end(), [&](const auto& link) {
      const auto& parts = facts_[link.rank.index()].parts;
      return std::any_of(parts.begin(), parts.end(), is);
    });
  }

  bool makes_groups() const {
    return any_part([](const WaitPart& part) { return part.makes_group; });
  }

  std::string full_buffers() const {
    const bool waits =
        any_part([](const WaitPart& part) { return (part.what.op & kBufferedBit) != 0; });
    return waits ? ". A buffered send waits, too, where it and what its receiver has not received "
                   "yet are more than 64 MiB"
                 : "";
  }

  bool all_send() const {
    return std::all_of(knot_.links.begin(), knot_.links.end(), [&](const Knot::Link& link) {
      const auto& parts = facts_[link.rank.index()].parts;
      return std::all_of(parts.begin(), parts.end(), [](const WaitPart& part) {
        return !part.makes_group && op_index(part.what.op) == static_cast<std::size_t>(Op::send);
      });
    });
  }

  static bool misses(const WaitPart& receive, const WaitPart& send, WorldRank from) {
    const auto& awaited = receive.awaited;
    return op_index(receive.what.op) == static_cast<std::size_t>(Op::recv) &&
           receive.group == send.group && receive.what.chain != send.what.chain &&
           std::find(awaited.begin(), awaited.end(), from) != awaited.end();
  }

  bool has_groups() const {
    return any_part([this](const WaitPart& part) {
      return !is_world(host_.shared, host_.own.index(), part.group);
    });
  }

  std::string text_of(std::size_t index, bool is_named) const {
    const Knot::Link& link = knot_.links[index];
    std::string what;
    const std::vector<WaitPart>& parts = facts_[link.rank.index()].parts;
    for (const WaitPart& part : parts) {
      what += (what.empty() ? "" : " and ") +
              (host_.roster.is_here(link.rank)
                   ? describe_wait(host_.shared, host_.roster.slot_of(link.rank), part)
                   : part.words);
    }
    const std::string who = is_named ? "" : fmt::format("{} {} ", rank_, link.rank.value);
    return fmt::format("{}waits in {}{} for {}", who, parts.size() > 1 ? "wait_any of " : "", what,
                       awaited_by(link));
  }

  std::string awaited_by(const Knot::Link& link) const {
    if (link.awaited.size() == 1) {
      return link.awaited.front() == link.rank
                 ? "itself"
                 : fmt::format("{} {}", rank_, link.awaited.front().value);
    }
    std::vector<int> ranks;
    for (const auto [rank] : link.awaited) ranks.push_back(rank);
    return fmt::format("any of the {}{}", has_groups() ? "world " : "", ranks_text(ranks));
  }

  /// In place of what there is no room for.
  std::string rest(std::size_t first) const {
    const std::size_t more = knot_.links.size() - first;
    if (!knot_.is_circle()) return fmt::format("; and {} more of them", more);
    return fmt::format(", and so on over {} more of them back to {} {}", more, rank_,
                       knot_.links.front().rank.value);
  }

  const Host::State& host_;
  const Knot& knot_;
  const std::vector<WaitFacts>& facts_;
  const std::string_view rank_;
};

}  // namespace

std::string Host::State::words_of(const Knot& knot, const std::vector<WaitFacts>& facts) const {
  return KnotWords(*this, knot, facts)();
}

}  // namespace tutti::control
