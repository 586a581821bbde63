#include "control/host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/rank_list.h"
#include "control/board/describe.h"
#include "control/board/words.h"
#include "control/host_state.h"
#include "control/hosts/peer_sockets.h"
#include "control/judge/decider.h"
#include "control/judge/standing.h"
#include "control/untold.h"
#include "net/process_info.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

std::uint64_t next_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

}  // namespace

Host::State::State(std::shared_ptr<Process> process_in, BoardsMet met, const HostOptions& options)
    : process(std::move(process_in)),
      shared(met.memory),
      roster(std::move(met.roster)),
      remote(std::move(met.remote)),
      others(remote != nullptr ? remote.get() : options.others),
      sockets(remote != nullptr ? remote.get() : options.sockets),
      rank(options.rank),
      number(next_number()),
      first_line_after(options.first_line_after),
      deadlock(options.deadlock),
      deadlock_after(options.deadlock_after),
      own_cores(tutti::own_cores()),
      policy(wait_policy(shared.slot_count(), own_cores.count())),
      own(shared, roster.slot_of(rank), std::move(met.memory)),
      callers(*process, own),
      progress(own.bell()),
      log(shared, own) {
  if (others == nullptr) return;
  own.reserve_relay_area();
  relay.emplace(
      shared, roster, own, *others, [this](WorldRank of) { return is_lost(of); },
      [this] { apply_log(); });
}

std::vector<std::shared_ptr<Membership::State>> Host::State::all_memberships() const {
  const std::lock_guard lock(mutex);
  return memberships;
}

bool Host::State::is_lost(WorldRank of) const noexcept {
  const std::lock_guard lock(mutex);
  return lost.contains(of);
}

std::string Host::State::person(WorldRank of, int shown_as) const {
  const std::string elsewhere =
      of.value != shown_as ? fmt::format("world rank {}, ", of.value) : "";
  const std::string& host = roster.host(roster.host_of(of)).name;
  if (!roster.is_here(of)) {
    const int pid = roster.pid_of(of);
    return fmt::format("rank {} ({}{}on {})", shown_as, elsewhere,
                       pid != 0 ? fmt::format("pid {} ", pid) : "", host);
  }
  const SlotIndex slot = roster.slot_of(of);
  const auto exit = shared.exit_of(slot);
  std::string how = exit ? ", " + describe_wait_status(*exit) : "";
  if (!exit && of != rank && net::is_stopped(shared.pid_of(slot))) how = ", stopped by a signal";
  return fmt::format("rank {} ({}pid {} on {}{})", shown_as, elsewhere, shared.pid_of(slot), host,
                     how);
}

void Host::State::rouse_others() noexcept { control::rouse_others(shared, own.index()); }

// ---- deaths and verdicts -------------------------------------------------------------------

// Each part can be begun anew, and is at the next tick where it finds no memory.
void Host::State::tick(Clock::time_point now, Clock::time_point* next) noexcept {
  with_reserve([&] { look_for_deaths(now); });
  apply_log();
  with_reserve([&] { decide(now, next); });
  if (relay) speak_with_hosts(now, next);
  with_reserve([&] { look_for_deadlocks(now); });
  if (!has_missed_entries.load()) return;
  with_reserve([&] {
    for (const auto& membership : all_memberships())
      if (membership->abort_word.load() == kRunning) membership->adopt_failure();
  });
}

void Host::State::speak_with_hosts(Clock::time_point now, Clock::time_point* next) noexcept {
  with_reserve([&] { show_wish(); });
  relay->tick(now, next);
  with_reserve([&] { hear_while_held_up(); });
  with_reserve([&] { settle_what_is_held_up(now, next); });
}

void Host::State::look_for_deaths(Clock::time_point now) {
  for (const SlotIndex slot : shared.slots()) {
    if (slot == own.index() || ended.contains(slot) || !shared.has_died(slot)) continue;
    const WorldRank dead = roster.rank_in(slot);
    const bool is_loss = !has_left(shared, slot) && !is_lost(dead);  // else nobody needed it
    if (is_loss && undecided.empty()) first_death = now;
    if (is_loss) undecided.insert(dead);
    ended.insert(slot);  // last: whom it holds is looked at no more
  }
}

void Host::State::decide(Clock::time_point now, Clock::time_point* next) {
  std::erase_if(undecided, [this](WorldRank dead) { return is_lost(dead); });
  if (undecided.empty()) return;
  std::vector<RankFacts> ranks;
  for (const SlotIndex slot : shared.slots()) {
    ranks.push_back({.is_running = shared.state_of(slot) == RankState::running,
                     .has_ended = ended.contains(slot),
                     .is_lost = is_lost(roster.rank_in(slot))});
  }
  const Clock::time_point due = due_to_decide(own.index(), ranks, first_death);
  if (now < due) {
    *next = std::min(*next, due);
    return;
  }
  const bool entered = enter([this]() -> std::optional<Verdict> {
    Verdict verdict{.finder = rank};
    for (const WorldRank dead : undecided)
      if (!is_lost(dead)) verdict.culprits.push_back(dead);
    if (verdict.culprits.empty()) return std::nullopt;
    return verdict;
  });
  if (entered) rouse_others();
}

// ---- joining and leaving -------------------------------------------------------------------

namespace {

std::vector<int> absent(const Host::State& host) {
  std::vector<int> ranks;
  for (const SlotIndex slot : host.shared.slots()) {
    const RankState state = host.shared.state_of(slot);
    if (state == RankState::absent || state == RankState::starting)
      ranks.push_back(host.roster.rank_in(slot).value);
  }
  return ranks;
}

/// Waits for the others' marks.
class Gathering final : public Patience {
 public:
  Gathering(const Host::State& host, Deadline& deadline, const std::function<void()>& look) noexcept
      : host_(host),
        deadline_(deadline),
        look_(look),
        next_line_(after(began_, host.first_line_after)) {}
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    if (host_.loss_word.load() != 0) return Verdict::keep_waiting;  // the board knows more
    if (look_) look_();
    if (deadline_.expired(now)) return Verdict::give_up;
    if (now >= next_line_) {
      log(LogLevel::warn,
          fmt::format("joining the world (rank {} of {}): waiting {} for {}", host_.rank.value,
                      host_.roster.world_size(), seconds(now - began_), ranks_text(absent(host_))));
      next_line_ = after(now, now - began_);
    }
    *next = std::min(
        {after(now, deadline_.left(now)), now + std::chrono::milliseconds(100), next_line_});
    return Verdict::keep_waiting;
  }

 private:
  const Host::State& host_;
  Deadline& deadline_;
  const std::function<void()>& look_;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point next_line_;
};

/// A relay tells other hosts that it has left, itself.
void leave(Host::State& state) noexcept {
  if (state.relay) state.own.show_wish({});
  state.own.leave();
  if (state.relay) state.relay->leave();
}

}  // namespace

void Host::State::wait_for_all(Deadline& deadline, const std::function<void()>& look) {
  rouse_others();
  for (const SlotIndex slot : shared.slots()) ring(shared.bell(slot));
  Gathering gathering(*this, deadline, look);
  const Waiter waiter{&loss_word, &own.bell(), policy};
  const WaitResult result = wait(waiter, gathering, [&] { return absent(*this).empty(); });
  if (result == WaitResult::ready) {
    cores = cores_of_all(shared).count();
    policy = wait_policy(shared.slot_count(), cores);
    return;
  }
  if (result == WaitResult::gave_up) {
    const std::vector<int> missing = absent(*this);
    throw Error(
        ErrorCode::kTimeout,
        fmt::format("joining the world (rank {} of {}): {} did not come to the host's "
                    "status board within {}",
                    rank.value, roster.world_size(), ranks_text(missing), budget_text(deadline)),
        {.rank = rank.value, .culprits = missing, .host = roster.own().name});
  }
  ErrorContext context;
  context.rank = rank.value;
  context.host = roster.own().name;
  std::string text;
  const std::lock_guard lock(mutex);
  for (const WorldRank each : lost) {
    context.culprits.push_back(each.value);
    text += fmt::format("{}{}", text.empty() ? "" : ", ", person(each, each.value));
  }
  throw Error(ErrorCode::kPeerLost,
              fmt::format("joining the world (rank {} of {}): {} was lost before all had come",
                          rank.value, roster.world_size(), text),
              context);
}

std::unique_ptr<Host> Host::join(const HostOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} of {} does not exist", options.rank, options.world_size));
  }
  std::shared_ptr<Process> process = Process::get();
  Deadline deadline = Deadline::after(options.timeout);
  BoardsMet met = meet_at_boards(options, deadline);
  if (const Board board(met.memory); board.world_size() != options.world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the host's status board is for {} ranks, the world has {}",
                            board.world_size(), options.world_size));
  }
  const auto until_it_is_taken = std::move(met.agents_slot);
  auto state = std::make_shared<State>(process, std::move(met), options);
  bool settled = false;
  process->watch(*state, [&] { return settled = state->own.take(state->own_cores); });
  if (!settled) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("rank {} of this world is present already (pid {}): every process needs "
                    "a rank of its own",
                    options.rank, state->shared.own_pid_of(state->own.index())));
  }
  std::unique_ptr<Host> host(new Host(state));
  state->wait_for_all(deadline, options.look);
  if (state->remote != nullptr) await_hosts(options, state->roster, deadline);
  show_elsewhere(options);
  return host;
}

Host::Host(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

Host::~Host() {
  if (Process::forked()) {
    leak_in_child(state_);
    return;
  }
  state_->progress.stop();
  state_->process->unwatch(*state_, [this] { leave(*state_); });
  state_->rouse_others();
  if (state_->remote == nullptr) return;
  std::set<WorldRank> lost;
  until_done([&] {
    const std::lock_guard lock(state_->mutex);
    lost = state_->lost;
  });
  state_->remote->leave(lost);  // which waits for other hosts
}

const Board& Host::board() const noexcept { return state_->shared; }
Callers& Host::callers() const noexcept { return state_->callers; }
PeerSockets* Host::sockets() const noexcept { return state_->sockets; }
std::string Host::address() const {
  return state_->remote != nullptr ? state_->remote->address() : std::string();
}

std::optional<OwnLine> Host::State::open_line(GroupId group, GroupId asked_of,
                                              const std::vector<WorldRank>& members) {
  const auto open = [&] { return own.open_line(group, asked_of, members); };
  if (const auto line = open()) return line;
  // Lines of closed groups are kept for members that have not compared yet; take back one that
  // nobody needs.
  const auto free_first = [&](const auto& may_be_freed) {
    const auto found = std::find_if(closed_lines.begin(), closed_lines.end(), may_be_freed);
    if (found == closed_lines.end()) return false;
    own.free_line(found->line);
    closed_lines.erase(found);
    return true;
  };
  if (free_first([this](const ClosedLine& closed) { return !is_needed(closed); })) return open();
  try {
    if (own.add_lines()) return open();
  } catch (const Error&) {
    if (closed_lines.empty()) throw;
  }
  // Of groups that were not made: for members that have not come yet, and may never do.
  if (free_first([](const ClosedLine& closed) { return closed.line.state() == LineState::unmade; }))
    return open();
  return std::nullopt;
}

std::optional<OwnLine> Host::State::try_open_line(const MembershipOptions& options) noexcept try {
  return open_line(options.id, options.asked_of, options.world_ranks);
} catch (const std::exception&) {
  return std::nullopt;
}

bool Host::State::is_needed(const ClosedLine& closed) const {
  GroupFacts facts =
      GroupMembers(shared, roster, others, closed.group, closed.world_ranks, closed.rank).read();
  for (int member = 0; member < facts.size(); ++member) {
    const auto each = static_cast<std::size_t>(member);
    facts.members[each].is_lost = lost.contains(closed.world_ranks[each]);
  }
  return is_line_needed(facts, closed.have_come);
}

std::unique_ptr<Membership> Host::make_membership(MembershipOptions options) {
  State& state = *state_;
  Process::refuse_in_child();
  std::shared_ptr<Membership::State> membership;
  if (state.sockets != nullptr) state.sockets->expect(options.id);
  Untold::of_process().outlive(state.number, state.rank);
  // Without a line of this rank nobody has made the group: what has failed by now never was one.
  const bool is_given_up = state.has_failed(options.id);
  {
    const std::lock_guard lock(state.mutex);
    // Without memory for further lines there is none: `meet` tries again, and tells the others.
    const auto line = state.try_open_line(options);
    membership = std::make_shared<Membership::State>(state_, std::move(options), line);
    membership->is_given_up = is_given_up;
  }
  auto handle = std::make_unique<Membership>(membership);
  state.tell_from_now_on(membership);
  return handle;
}

}  // namespace tutti::control
