// Facts in words for people.
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/rank_list.h"
#include "control/words.h"

namespace tutti::control {

std::string seconds(std::chrono::nanoseconds duration) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(duration).count());
}

std::string budget_text(const Deadline& deadline) {
  const bool unknown = deadline.budget() == std::chrono::nanoseconds::max();
  return unknown ? "the time it was given" : seconds(deadline.budget());
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", format_ranks(ranks));
}

std::string times_text(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

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
  const bool uneven = (shown.op & kUnevenBit) != 0;
  return fmt::format("{}{}", name_of(static_cast<Op>(shown.op & ~kUnevenBit)), uneven ? "v" : "");
}

}  // namespace

std::string describe(const Shown& shown) {
  const int op_index = shown.op & ~kUnevenBit;
  if (op_index >= static_cast<int>(kOpCount) || shown.dtype >= kDTypeCount ||
      shown.reduce >= kReduceKindCount)
    return "unknown operation";
  const Op op = static_cast<Op>(op_index);
  const std::string text = name_of_call(shown);
  std::string details;
  if (op != Op::barrier)
    details = fmt::format("{} x {}", name_of(static_cast<DType>(shown.dtype)), shown.count);
  switch (op) {
    case Op::all_reduce:
    case Op::reduce:
    case Op::reduce_scatter:
    case Op::scan:
    case Op::exscan: {
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
      details += fmt::format(", to {}, tag {}", shown.root_or_peer,
                             static_cast<std::int64_t>(shown.chain));
      break;
    case Op::recv:
      details += fmt::format(
          ", from {}, tag {}",
          shown.root_or_peer == kAnyRank ? "any rank" : std::to_string(shown.root_or_peer),
          static_cast<std::int64_t>(shown.chain));
      break;
    case Op::broadcast:
    case Op::reduce:
    case Op::gather:
    case Op::scatter:
      details += fmt::format(", root {}", shown.root_or_peer);
      break;
    case Op::all_reduce:
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_to_all:
    case Op::barrier:
    case Op::scan:
    case Op::exscan:
      break;
  }
  return details.empty() ? text : text + "(" + details + ")";
}

std::string describe_purpose(const Slot& slot, const Shown& shown) {
  const int op = shown.op & ~kUnevenBit;
  if (op < static_cast<int>(kOpCount) && is_message(static_cast<Op>(op))) return {};
  const std::string purpose = read_purpose(slot, shown.chain);
  return purpose.empty() ? purpose : " for " + purpose;
}

std::string describe(const Slot& slot, const Shown& shown) {
  std::string text = describe(shown) + describe_purpose(slot, shown);
  if (shown.site != 0 && shown.site < kSites) text += " at " + slot.sites[shown.site].read();
  return text;
}

std::string describe_making(const Slot& slot, const Line& line) {
  const bool is_world = line.asked_of.load(std::memory_order_relaxed) == 0;
  const std::uint32_t site = line.site.load(std::memory_order_acquire);
  std::string call = read_purpose(slot, line.group.load(std::memory_order_relaxed));
  if (call.empty()) call = is_world ? "init_process_group" : "new_group";
  return fmt::format("is in {}{}", call,
                     site != 0 && site < kSites ? " at " + slot.sites[site].read() : "");
}

std::string describe_numbered(const Slot& slot, const Shown& shown) {
  std::string text = describe(slot, shown);
  const std::string name = name_of_call(shown);
  if (shown.seq != 0 && text.starts_with(name))
    text.insert(name.size(), fmt::format(" #{}", shown.seq));
  return text;
}

namespace {

std::string doing(const Slot& slot, const Line& line) {
  if (line.state.load(std::memory_order_acquire) == LineState::meeting)
    return describe_making(slot, line);
  const std::uint64_t completed = line.completed.load(std::memory_order_acquire);
  const std::uint64_t entered = line.entered.load(std::memory_order_acquire);
  std::string text;
  if (const auto message = line.message.read()) text = "is in " + describe(slot, *message);
  if (entered > completed) {
    const auto current = line.history[entered % kHistory].read();
    if (!text.empty()) text += " and ";
    text +=
        current ? "is in " + describe_numbered(slot, *current) : fmt::format("is in #{}", entered);
    const std::uint64_t waiting = line.waiting.load(std::memory_order_acquire);
    if (waiting >> 16 == entered) {
      const auto since = line.since.load(std::memory_order_relaxed);
      const auto waited = Clock::now().time_since_epoch() - Clock::duration(since);
      text += since != 0 && waited > std::chrono::seconds(1)
                  ? ", waiting " + seconds(waited) + " for "
                  : ", waiting for ";
      text += (waiting & 0xffff) == 0 ? "others" : fmt::format("rank {}", (waiting & 0xffff) - 1);
    }
  }
  if (completed == 0) return text.empty() ? "has not called anything yet" : text;
  if (!text.empty()) text += ", ";
  const auto last = line.history[completed % kHistory].read();
  text += last && last->seq == completed ? "last completed " + describe_numbered(slot, *last)
                                         : fmt::format("last completed #{}", completed);
  return text;
}

}  // namespace

std::string describe_doing(const Board& board, int rank, GroupId group) {
  const Slot& slot = board.slot(rank);
  const Line* line = board.find_line(rank, group);
  if (line == nullptr) return "has not made this group";
  return doing(slot, *line);
}

std::string describe_doing(const Board& board, int rank) {
  const Slot& slot = board.slot(rank);
  const Line* busiest = nullptr;
  bool any = false;
  for (const Line& line : slot.lines) {
    if (line.group.load(std::memory_order_acquire) == 0) continue;
    any = true;
    const std::uint64_t entered = line.entered.load(std::memory_order_acquire);
    const bool busy = line.state.load(std::memory_order_acquire) == LineState::meeting ||
                      entered > line.completed.load(std::memory_order_acquire) ||
                      line.message.read().has_value();
    if (busy) return doing(slot, line);
    if (busiest == nullptr || entered > busiest->entered.load(std::memory_order_acquire))
      busiest = &line;
  }
  if (!any) return "was in no group";
  return doing(slot, *busiest);
}

}  // namespace tutti::control
