#include "control/board/describe.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>

#include "control/board/layout.h"
#include "control/board/words.h"
#include "control/judge/clock.h"
#include "control/judge/deadlock.h"

namespace tutti::control {

std::string describe_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* name = sigabbrev_np(WTERMSIG(wait_status));
    return name != nullptr ? fmt::format("killed by SIG{}", name)
                           : fmt::format("killed by signal {}", WTERMSIG(wait_status));
  }
  return fmt::format("exit code {}", WEXITSTATUS(wait_status));
}

namespace {

std::string name_of_call(const Shown& shown) {
  Request request;
  request.op = static_cast<Op>(op_index(shown.op));
  request.uneven = (shown.op & kUnevenBit) != 0 && !is_message(request.op);
  request.monitored = (shown.op & kMonitoredBit) != 0;
  return call_name(request);
}

/// " at train.cc:88"; "" if the site is not known.
std::string at(const std::string& site) { return site.empty() ? site : " at " + site; }
std::string at_site(const Slot& slot, std::uint32_t site) { return at(read_site(slot, site)); }

/// "f32 x 1000"; "" if it has none.
std::string elements_of(const Shown& shown, Op op) {
  if (op == Op::barrier) return {};
  const std::string_view dtype = name_of(static_cast<DType>(shown.dtype));
  const bool is_of_any_count = is_message(op) && (shown.op & kUnevenBit) != 0;
  return is_of_any_count ? fmt::format("{}, any count", dtype)
                         : fmt::format("{} x {}", dtype, shown.count);
}

}  // namespace

std::string describe(const Shown& shown, std::string_view whose) {
  if (op_index(shown.op) >= kOpCount || shown.dtype >= kDTypeCount ||
      shown.reduce >= kReduceKindCount)
    return "unknown operation";
  const Op op = static_cast<Op>(op_index(shown.op));
  const std::string text = name_of_call(shown);
  std::string details = elements_of(shown, op);
  switch (op) {
    case Op::all_reduce:
    case Op::reduce:
    case Op::reduce_scatter:
    case Op::scan:
    case Op::exclusive_scan: {
      const auto kind = static_cast<ReduceOp::Kind>(shown.reduce);
      details += fmt::format(", {}", name_of(kind));
      if (kind == ReduceOp::Kind::premul_sum) details += fmt::format("({})", shown.factor);
      break;
    }
    case Op::send:
    case Op::recv:
    case Op::broadcast:
    case Op::gather:
    case Op::all_gather:
    case Op::scatter:
    case Op::all_to_all:
    case Op::barrier:
      break;
  }
  switch (op) {
    case Op::send:
      details += fmt::format(", to {}{}, tag {}{}", shown.root_or_peer, whose,
                             static_cast<std::int64_t>(shown.chain),
                             (shown.op & kBufferedBit) != 0 ? ", buffered" : "");
      break;
    case Op::recv:
      details += fmt::format(
          ", from {}{}, tag {}",
          shown.root_or_peer == kAnyRank ? "any rank" : std::to_string(shown.root_or_peer),
          shown.root_or_peer == kAnyRank ? "" : whose, static_cast<std::int64_t>(shown.chain));
      break;
    case Op::broadcast:
    case Op::reduce:
    case Op::gather:
    case Op::scatter:
      details += fmt::format(", root {}{}", shown.root_or_peer, whose);
      break;
    case Op::all_reduce:
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_to_all:
    case Op::barrier:
    case Op::scan:
    case Op::exclusive_scan:
      break;
  }
  return details.empty() ? text : text + "(" + details + ")";
}

KnownCall known_call(const Slot& slot, const Shown& shown) {
  KnownCall call = shown;
  const std::size_t op = op_index(shown.op);
  const bool has_purpose = op >= kOpCount || !is_message(static_cast<Op>(op));
  if (has_purpose) call.purpose_text = read_purpose(slot, shown.chain);
  call.site_text = read_site(slot, shown.site);
  return call;
}

std::string describe(const KnownCall& call, std::string_view whose) {
  const std::string& purpose = call.purpose_text;
  return describe(static_cast<const Shown&>(call), whose) +
         (purpose.empty() ? "" : " for " + purpose) + at(call.site_text);
}

std::string describe(const Slot& slot, const Shown& shown, std::string_view whose) {
  return describe(known_call(slot, shown), whose);
}

std::string describe_making(const Board& board, SlotIndex owner, GroupId group) {
  const Line* const line = board.find_line(owner, group);
  return line != nullptr ? describe_making(board.slot(owner), *line) : "another group";
}

std::string describe_making(const Slot& slot, const Line& line) {
  const bool is_world = line.asked_of.load(std::memory_order_relaxed) == 0;
  std::string call = read_purpose(slot, line.group.load(std::memory_order_relaxed));
  if (call.empty()) call = is_world ? "init_process_group" : "new_group";
  return call + at_site(slot, line.site.load(std::memory_order_acquire));
}

std::string describe_numbered(const KnownCall& call, std::string_view whose) {
  std::string text = describe(call, whose);
  const std::string name = name_of_call(call);
  if (call.seq != 0 && text.starts_with(name))
    text.insert(name.size(), fmt::format(" #{}", call.seq));
  return text;
}

std::string describe_numbered(const Slot& slot, const Shown& shown, std::string_view whose) {
  return describe_numbered(known_call(slot, shown), whose);
}

namespace {

/// Whose ranks a text speaks of: those of the line's group, or those of the world; and whether it
/// says that a call is of the world, since it has spoken of another group before.
enum class Names { of_group, of_world, of_world_too };

/// What follows the ranks in an operation of the line's group, where a text speaks of the world.
std::string_view whose_ranks(const Line& line, Names names) {
  const bool is_of_world = line.asked_of.load(std::memory_order_relaxed) == 0;
  return names == Names::of_group || is_of_world ? "" : " of the group";
}

/// " of the group made by new_group({0, 1}) at role.cc:5", in a text that otherwise speaks of the
/// world. Of the second group of the same ranks it says " (#2)" as well, as its name does.
std::string group_text(const Slot& slot, const Line& line, Names names) {
  if (names == Names::of_group) return {};
  if (line.asked_of.load(std::memory_order_relaxed) == 0)
    return names == Names::of_world_too ? " of the world" : "";
  if (line.site.load(std::memory_order_acquire) == 0) return " of another group";
  const std::uint32_t times = line.times.load(std::memory_order_acquire);
  return fmt::format(" of the group made by {}{}", describe_making(slot, line),
                     times > 1 ? fmt::format(" (#{})", times) : "");
}

/// ", waiting 3 s for rank 2", of the operation `seq`; "" if nobody is awaited yet. Of a group that
/// has failed without the time: nobody waits there any more.
std::string waiting_text(const Line& line, std::uint64_t seq, Names names) {
  const Awaited awaited = Awaited::unpack(line.waiting.load(std::memory_order_acquire));
  if (awaited.seq != static_cast<std::uint32_t>(seq)) return {};
  // Garbage may lie so far back that no difference says how far.
  const auto since = std::max<std::int64_t>(line.since.load(std::memory_order_relaxed), 0);
  const auto waited = Clock::now().time_since_epoch() - Clock::duration(since);
  std::string text = since != 0 && waited > std::chrono::seconds(1) && !shows_failure(line)
                         ? ", waiting " + seconds(waited) + " for "
                         : ", waiting for ";
  if (awaited.member < 0) return text + "others";
  const bool is_of_world = line.asked_of.load(std::memory_order_relaxed) == 0;
  return text + (names == Names::of_group || is_of_world
                     ? fmt::format("rank {}", awaited.member)
                     : fmt::format("world rank {}", awaited.rank.value));
}

std::string describe_closing(const Slot& slot, const Line& line, Names names) {
  const std::string call = read_purpose(slot, closing_key(line.group.load()));
  return (call.empty() ? "close" : call) + group_text(slot, line, names);
}

/// In which calls the owner is in the line's group, or was when that failed: "barrier #1 at
/// role.cc:9, waiting for rank 0"; "" if in none.
std::string calls_in(const Slot& slot, const Line& line, Names names) {
  const LineState state = line.state.load(std::memory_order_acquire);
  if (state == LineState::meeting) return describe_making(slot, line);
  if (state == LineState::closing) return describe_closing(slot, line, names);
  const std::uint64_t completed = line.completed.load(std::memory_order_acquire);
  const std::uint64_t entered = line.entered.load(std::memory_order_acquire);
  std::string text;
  const std::string_view whose = whose_ranks(line, names);
  if (const auto message = line.message.read())
    text = describe(slot, *message, whose) + group_text(slot, line, names);
  if (entered <= completed) return text;
  const auto current = line.history[entered % kHistory].read();
  if (!text.empty()) text += " and in ";
  text += current ? describe_numbered(slot, *current, whose) : fmt::format("#{}", entered);
  return text + group_text(slot, line, names) + waiting_text(line, entered, names);
}

/// "is in barrier #1 ...", or "was in barrier #1 ..., when that failed": the program may have gone
/// on since; "" if in nothing.
std::string doing_now(const Slot& slot, const Line& line, Names names) {
  std::string calls = calls_in(slot, line, names);
  if (calls.empty()) return calls;
  return shows_failure(line) ? "was in " + calls + ", when that failed" : "is in " + calls;
}

std::string doing(const Slot& slot, const Line& line, Names names) {
  std::string text = doing_now(slot, line, names);
  if (line.state.load(std::memory_order_acquire) == LineState::meeting) return text;
  const std::uint64_t completed = line.completed.load(std::memory_order_acquire);
  if (completed == 0) return text.empty() ? "has completed no collective yet" : text;
  if (!text.empty()) text += ", ";
  const auto last = line.history[completed % kHistory].read();
  text += last && last->seq == completed
              ? "last completed " + describe_numbered(slot, *last, whose_ranks(line, names))
              : fmt::format("last completed #{}", completed);
  return text + group_text(slot, line, names);
}

bool is_busy(const Line& line) {
  const LineState state = line.state.load(std::memory_order_acquire);
  return state == LineState::meeting || state == LineState::closing ||
         line.entered.load(std::memory_order_acquire) >
             line.completed.load(std::memory_order_acquire) ||
         line.message.read().has_value();
}

/// The first line in which the owner does something, and that has not failed; null if there is
/// none.
const Line* busy_line(const Board& board, SlotIndex owner) {
  for (const Line& line : Lines(board, owner)) {
    const bool is_running = line.group.load(std::memory_order_acquire) != 0 && !shows_failure(line);
    if (is_running && is_busy(line)) return &line;
  }
  return nullptr;
}

/// What the owner began in the line's group that did not end well: "was in barrier #1 at role.cc:9
/// of the group made at role.cc:5, when that failed"; "" if nothing.
std::string failed_in(const Slot& slot, const Line& line) {
  const LineState state = line.state.load(std::memory_order_acquire);
  if (state == LineState::unmade) return "was in " + describe_making(slot, line) + ", which failed";
  if (gave_up(state)) return "gave up " + describe_closing(slot, line, Names::of_world);
  return is_busy(line) ? doing_now(slot, line, Names::of_world) : "";
}

/// The first failure that shows such a thing, unless the owner has outlived it; else what it gave
/// up; null if there is neither.
const Line* failed_line(const Board& board, SlotIndex owner) {
  const Slot& slot = board.slot(owner);
  const auto shows_it = [&](const Line& line) {
    return line.group.load(std::memory_order_acquire) != 0 && !failed_in(slot, line).empty();
  };
  for (const Line* const line : failed_lines(board, owner))
    if (shows_it(*line)) return line;
  for (const Line& line : Lines(board, owner))
    if (gave_up(line.state.load()) && shows_it(line)) return &line;
  return nullptr;
}

/// Why the line's group failed, for whoever is in no group with its owner.
std::optional<std::string> failure_for_all(const Board& board, SlotIndex owner, const Line& line) {
  const GroupId group = line.group.load(std::memory_order_acquire);
  const ErrorCode code = failure_code(line.failure.load(std::memory_order_acquire));
  const std::vector<WorldRank> culprits = read_set(line.ranks, board.world_size());
  const bool names_world =
      line.asked_of.load(std::memory_order_relaxed) == 0 || code == ErrorCode::kDeadlock;
  for (const SlotIndex finder : board.slots()) {
    const auto text = read_failure_text(board, finder, group, code, culprits);
    if (!text) continue;
    return names_world ? *text
                       : fmt::format("{} (ranks of the group made by {})", *text,
                                     describe_making(board.slot(owner), line));
  }
  return std::nullopt;
}

}  // namespace

std::string describe_wait(const Board& board, SlotIndex owner, const WaitPart& part) {
  if (part.makes_group) return describe_making(board, owner, part.group);
  const Slot& slot = board.slot(owner);
  const std::size_t op = op_index(part.what.op);
  const bool is_message = op < kOpCount && tutti::is_message(static_cast<Op>(op));
  const Line* const line = board.find_line(owner, part.group);
  const auto whose = line != nullptr ? whose_ranks(*line, Names::of_world) : std::string_view();
  const std::string text =
      is_message ? describe(slot, part.what, whose) : describe_numbered(slot, part.what, whose);
  return line != nullptr ? text + group_text(slot, *line, Names::of_world) : text;
}

std::optional<std::string> disagreement_of(const Board& board, SlotIndex owner) {
  for (const Line* line : failed_lines(board, owner)) {
    const ErrorCode code = failure_code(line->failure.load(std::memory_order_acquire));
    if (code != ErrorCode::kCollectiveMismatch && code != ErrorCode::kClosed &&
        code != ErrorCode::kDeadlock)
      continue;
    if (auto text = failure_for_all(board, owner, *line)) return text;
  }
  return std::nullopt;
}

std::string describe_failure(const Board& board, SlotIndex owner) {
  const std::vector<const Line*> failed = failed_lines(board, owner);
  return failed.empty() ? "" : failure_for_all(board, owner, *failed.front()).value_or("");
}

bool is_world(const Board& board, SlotIndex owner, GroupId group) {
  const Line* const line = board.find_line(owner, group);
  return line != nullptr && line->asked_of.load(std::memory_order_relaxed) == 0;
}

std::string describe_doing(const Board& board, SlotIndex owner, GroupId group) {
  const Slot& slot = board.slot(owner);
  const Line* line = board.find_line(owner, group);
  std::string text =
      line != nullptr ? doing(slot, *line, Names::of_group) : "has not made this group";
  const bool is_there =
      line != nullptr && !shows_failure(*line) && !doing_now(slot, *line, Names::of_group).empty();
  if (is_there) return text;
  const Line* const elsewhere = busy_line(board, owner);
  if (elsewhere != nullptr && elsewhere != line)
    return text + " and meanwhile " + doing_now(slot, *elsewhere, Names::of_world_too);
  const Line* const failed = failed_line(board, owner);
  return failed != nullptr && failed != line ? text + " and " + failed_in(slot, *failed) : text;
}

std::string describe_doing(const Board& board, SlotIndex owner) {
  const Slot& slot = board.slot(owner);
  if (const Line* const busy = busy_line(board, owner)) return doing(slot, *busy, Names::of_world);
  if (const Line* const failed = failed_line(board, owner))
    return is_busy(*failed) ? doing(slot, *failed, Names::of_world) : failed_in(slot, *failed);
  const Line* latest = nullptr;
  for (const Line& line : Lines(board, owner)) {
    if (line.group.load(std::memory_order_acquire) == 0) continue;
    if (latest == nullptr || line.entered.load(std::memory_order_acquire) >
                                 latest->entered.load(std::memory_order_acquire))
      latest = &line;
  }
  return latest != nullptr ? doing(slot, *latest, Names::of_world) : "was in no group";
}

}  // namespace tutti::control
