#include "control/membership.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/untold.h"
#include "control/words.h"
#include "tutti/error.h"

namespace tutti::control {

Membership::State::State(std::shared_ptr<Host::State> host_in, MembershipOptions options,
                         Line* line_in)
    : host(std::move(host_in)),
      id(options.id),
      name(std::move(options.name)),
      is_world(options.asked_of == 0),
      call(std::move(options.call)),
      world_ranks(std::move(options.world_ranks)),
      rank(options.rank),
      line(*line_in),
      waiter{&abort_word, &host->own.slot().bell, host->policy, &account},
      lines(world_ranks.size()) {
  host->process->guard(abort_word);
}

Membership::State::~State() { host->process->unguard(abort_word); }

const Line* Membership::State::line_of(int member) const noexcept {
  auto& known = lines[static_cast<std::size_t>(member)];
  const Line* found = known.load(std::memory_order_relaxed);
  if (found != nullptr && found->group.load(std::memory_order_acquire) == id) return found;
  found = host->shared.find_line(world_ranks[static_cast<std::size_t>(member)], id);
  known.store(found, std::memory_order_relaxed);
  return found;
}

int Membership::State::member_of(int slot) const noexcept {
  const auto place = std::find(world_ranks.begin(), world_ranks.end(), slot);
  return place == world_ranks.end() ? -1 : static_cast<int>(place - world_ranks.begin());
}

std::string Membership::State::person(int member) const {
  return host->person(world_ranks[static_cast<std::size_t>(member)], member);
}

std::string Membership::State::of_group() const {
  return is_world ? std::string() : " of group " + name;
}

std::string Membership::State::own(const Request& request) const {
  return fmt::format("rank {}'s {}", rank, in_words(request));
}

std::string Membership::State::in_words(const Request& request) const {
  return describe_numbered(host->own.slot(), shown_of(request, host->own.site(request.where)));
}

std::string Membership::State::doing(int member) const {
  return describe_doing(host->shared, world_ranks[static_cast<std::size_t>(member)], id);
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
  return heading(context_of(request), is_world ? std::string() : name, purpose_of(request.where));
}

// ---- failing -----------------------------------------------------------------------------------

void Membership::State::fail(Cause cause, Tell tell) noexcept {
  if (Process::forked()) return;
  // What looks like a cause may be what a failure left behind, of a member that failed and went
  // since failures were last looked for.
  if (tell == Tell::everybody && adopt_failure()) return;
  RankSet culprits;
  for (const int member : cause.culprits)
    if (member >= 0 && member < size())
      culprits.set(static_cast<std::size_t>(world_ranks[static_cast<std::size_t>(member)]));
  {
    const std::lock_guard lock(mutex);
    if (first_cause) return;
    if (cause.host.empty() && !cause.culprits.empty()) cause.host = host->host_name;
    first_cause = cause;
  }
  Untold::of_process().add({id, rank, cause.code, culprits, host->rank_count, cause.text, false});
  // On the board first: whoever finds that this rank has gone away must also find why.
  host->own.publish_failure(line, cause.code, culprits,
                            tell == Tell::everybody ? cause.text : std::string());
  if (comes_too_late(cause)) Untold::of_process().keep(id, rank);
  std::uint64_t running = kRunning;
  abort_word.compare_exchange_strong(running, kFailed);
  ring(host->own.slot().bell);
  if (tell == Tell::everybody)
    for (const int slot : world_ranks)
      if (slot != host->rank) rouse_control(host->shared, slot);
  host->process->post([self = shared_from_this()] { self->announce(); });
}

bool Membership::State::comes_too_late(const Cause& cause) const noexcept {
  if (cause.code != ErrorCode::kCollectiveMismatch && cause.code != ErrorCode::kClosed)
    return false;
  for (int member = 0; member < size(); ++member) {
    const Line* theirs = line_of(member);
    if (theirs != nullptr ? is_gone(theirs->state.load()) && theirs->failure.load() == 0
                          : has_left(slot_of(member)))
      return true;
  }
  return false;
}

void Membership::State::announce() noexcept {
  std::vector<std::function<void(const Error&)>> due;
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    first = !std::exchange(announced, true);
    due.swap(callbacks);
  }
  const Error error = make_error(nullptr);
  // The program first: a line may have to wait for whoever reads it.
  for (auto& callback : due) {
    try {
      callback(error);
    } catch (const std::exception& thrown) {
      log(LogLevel::error, fmt::format("a failure callback threw: {}", thrown.what()));
    } catch (...) {
      log(LogLevel::error, "a failure callback threw something that is not an exception");
    }
  }
  if (first) log(LogLevel::error, error.what());
}

void Membership::State::peers_lost(const RankSet& lost) noexcept {
  Cause cause;
  cause.code = ErrorCode::kPeerLost;
  for (int member = 0; member < size(); ++member) {
    const int slot = world_ranks[static_cast<std::size_t>(member)];
    if (!lost.test(static_cast<std::size_t>(slot))) continue;
    const Line* theirs = line_of(member);
    if (theirs != nullptr && has_left(theirs->state.load())) continue;
    if (!cause.culprits.empty()) cause.text += "; ";
    cause.culprits.push_back(member);
    cause.text += fmt::format("{} was lost: {}", person(member), doing(member));
  }
  if (cause.culprits.empty()) return;
  cause.text += ". The group is closed: make a group or a world without it, or start the job again";
  fail(std::move(cause), Tell::nobody);
}

bool Membership::State::adopt_failure() noexcept {
  struct Found {
    int member;
    std::uint32_t failure;
    RankSet culprits;
  };
  std::optional<Found> found;
  std::string text;
  for (int member = 0; member < size() && text.empty(); ++member) {
    const Line* theirs = member != rank ? line_of(member) : nullptr;
    const std::uint32_t failure =
        theirs != nullptr ? theirs->failure.load(std::memory_order_acquire) : 0;
    if (failure == 0) continue;
    const RankSet culprits = read_set(theirs->ranks);
    if (theirs->group.load() != id) continue;  // its owner has just made room for another group
    auto notice = read_notice(slot_of(member), id);
    if (!found || notice) found = Found{member, failure, culprits};
    if (notice) text = std::move(*notice);
  }
  if (!found) return false;
  const auto code = static_cast<ErrorCode>(found->failure - 1);
  if (code == ErrorCode::kPeerLost && text.empty()) {
    peers_lost(found->culprits);
    return true;
  }
  Cause cause;
  cause.code = code;
  cause.text =
      text.empty() ? fmt::format("{} has failed ({})", person(found->member), name_of(code)) : text;
  for (int member = 0; member < size(); ++member)
    if (found->culprits.test(
            static_cast<std::size_t>(world_ranks[static_cast<std::size_t>(member)])))
      cause.culprits.push_back(member);
  fail(std::move(cause), Tell::nobody);
  return true;
}

Error Membership::State::make_error(const Request* request) const {
  Cause cause;
  if (abort_word.load() == kForked) {
    cause.code = ErrorCode::kInvalidArgument;
    cause.text =
        "used in a forked child; groups belong to the process that made them. Start the child with "
        "exec, or fork before the first init_process_group";
  } else {
    const std::lock_guard lock(mutex);
    if (first_cause) cause = *first_cause;
  }
  ErrorContext context = request != nullptr ? context_of(*request) : ErrorContext{.rank = rank};
  context.culprits = cause.culprits;
  context.host = cause.host;
  const std::string who =
      request != nullptr ? heading_of(*request) : fmt::format("group {} (rank {})", name, rank);
  // A backend's own error begins with the operation, for all to read.
  const bool is_told = cause.text.starts_with(who + ": ");
  return Error(cause.code, is_told ? cause.text : fmt::format("{}: {}", who, cause.text),
               std::move(context));
}

// ---- the handle --------------------------------------------------------------------------------

Membership::Membership(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

Membership::~Membership() {
  if (Process::forked()) {
    // The control thread is not in this process: what it would have to know is left as it is.
    leak_in_child(state_);
    return;
  }
  State& state = *state_;
  if (!has_left(state.line.state.load())) {
    const std::uint64_t last = state.line.completed.load();
    const auto entry = state.line.history[last % kHistory].read();
    state.line.goodbye_seq.store(last);
    state.line.goodbye_chain.store(entry && entry->seq == last ? entry->chain : 0);
  }
  state.line.state.store(gone_after(state.line.state.load()));
  notify_all();
  // Either a member that finds a failure now sees that this one has gone, or this one sees it.
  if (state.abort_word.load() == kRunning) state.adopt_failure();
  // Callbacks that are under way or due belong to this life.
  if (!state.host->process->on_control_thread()) state.host->process->run([] {});
  const std::lock_guard lock(state.host->mutex);
  std::erase(state.host->memberships, state_);
  state.host->closed_lines.push_back({&state.line, state.id, state.world_ranks});
}

int Membership::rank() const noexcept { return state_->rank; }
int Membership::group_size() const noexcept { return state_->size(); }
GroupId Membership::id() const noexcept { return state_->id; }

void Membership::enter(const Request& request) noexcept {
  State& state = *state_;
  state.line.core.store(::sched_getcpu() + 1, std::memory_order_relaxed);
  const std::uint8_t site = state.host->own.site(request.where);
  Shown description = shown_of(request, site);
  if (request.seq != 0) {
    const Purpose* const purpose = request.where.purpose;
    if (purpose != nullptr) state.host->own.publish_purpose(description.chain, purpose->text);
    state.line.history[request.seq % kHistory].write(description);
    state.line.entered.store(request.seq, std::memory_order_release);
    return;
  }
  if (state.message_busy.test_and_set(std::memory_order_acquire)) return;
  description.seq = ++state.messages;
  state.line.message.write(description);
  state.message_busy.clear(std::memory_order_release);
}

void Membership::leave(const Request& request) noexcept {
  State& state = *state_;
  if (request.seq != 0) {
    state.line.completed.store(request.seq, std::memory_order_release);
    return;
  }
  if (state.message_busy.test_and_set(std::memory_order_acquire)) return;
  state.line.message.clear();
  state.message_busy.clear(std::memory_order_release);
}

void Membership::progressed() noexcept {
  auto& progress = state_->line.progress;
  progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

const Waiter& Membership::waiter() const noexcept { return state_->waiter; }

bool Membership::is_on_core(int core, int member) const noexcept {
  const auto is_there = [&](int each) {
    const Line* theirs = state_->line_of(each);
    return theirs != nullptr && theirs->core.load(std::memory_order_relaxed) == core + 1;
  };
  if (member >= 0) return is_there(member);
  for (int each = 0; each < state_->size(); ++each)
    if (each != state_->rank && is_there(each)) return true;
  return false;
}

int Membership::cores() const noexcept { return state_->host->cores; }

std::uint8_t Membership::site(const Where& where) noexcept { return state_->host->own.site(where); }

std::string Membership::site_of(int member, std::uint8_t site) const {
  return site != 0 && site < kSites ? state_->slot_of(member).sites[site].read() : "";
}

void Membership::throw_gave_up(const Request& request, const std::string& detail) const {
  const int peer = request.message.peer;
  ErrorContext context = state_->context_of(request);
  if (peer != kAnyRank) context.culprits = {peer};
  context.host = state_->host->host_name;
  const std::string waited =
      request.op == Op::send
          ? fmt::format("{} has posted no recv with tag {}", state_->person(peer),
                        request.message.tag)
          : fmt::format("nothing came from {} with tag {}",
                        peer != kAnyRank ? state_->person(peer) : "any rank", request.message.tag);
  const std::string text = fmt::format(
      "{}: {} for {} in {}{}{}. Nothing was {} and the group stays usable",
      state_->heading_of(request), waited, describe(shown_of(request, 0)),
      budget_text(request.arrive), peer != kAnyRank ? "; it " + state_->doing(peer) : "",
      detail.empty() ? "" : "; " + detail, request.op == Op::send ? "sent" : "received");
  throw Error(ErrorCode::kTimeout, text, std::move(context));
}

void Membership::notify(int rank) noexcept {
  ring(state_->host->shared.slot(state_->world_ranks[static_cast<std::size_t>(rank)]).bell);
}

void Membership::notify_all() noexcept {
  for (const int slot : state_->world_ranks)
    if (slot != state_->host->rank) ring(state_->host->shared.slot(slot).bell);
}

void Membership::add_driver(Driver& driver) { state_->host->progress.add(driver); }
void Membership::remove_driver(Driver& driver) noexcept { state_->host->progress.remove(driver); }
void Membership::wake_driver() noexcept { state_->host->progress.wake(); }

const std::atomic<std::uint64_t>& Membership::abort_word() const noexcept {
  return state_->abort_word;
}

void Membership::fail(Cause cause) noexcept {
  state_->fail(std::move(cause), State::Tell::everybody);
}

std::optional<Cause> Membership::cause() const {
  if (state_->abort_word.load() == kForked)
    return Cause{ErrorCode::kInvalidArgument, "used in a forked child", {}, {}};
  const std::lock_guard lock(state_->mutex);
  return state_->first_cause;
}

Error Membership::error(const Request* request) const { return state_->make_error(request); }

void Membership::throw_cause(const Request& request) const { throw state_->make_error(&request); }

void Membership::on_failure(std::function<void(const Error&)> callback) {
  if (Process::forked()) return;  // nobody is here to call it
  bool failed = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->callbacks.push_back(std::move(callback));
    failed = state_->announced;
  }
  if (failed) state_->host->process->post([state = state_] { state->announce(); });
}

}  // namespace tutti::control
