#include "control/membership.h"

#include <fmt/format.h>
#include <sched.h>

#include <new>
#include <utility>

#include "base/memory_reserve.h"
#include "control/host_state.h"
#include "control/hosts/peer_sockets.h"
#include "control/untold.h"
#include "tutti/error.h"

namespace tutti::control {

Membership::State::State(std::shared_ptr<Host::State> host_in, MembershipOptions options,
                         std::optional<OwnLine> line_in)
    : host(std::move(host_in)),
      id(options.id),
      asked_of(options.asked_of),
      name(std::move(options.name)),
      call(std::move(options.call)),
      times(options.times),
      rank(options.rank),
      members(host->shared, host->roster, host->others, options.id, std::move(options.world_ranks),
              options.rank),
      no_place(line_in ? std::nullopt : std::optional<PrivateLine>(std::in_place)),
      line(line_in ? *line_in : no_place->line()),
      waiter{&abort_word, &host->own.bell(), host->policy, &account} {
  if (no_place) line.set_state(LineState::meeting);
  host->process->guard(abort_word);
}

Membership::State::~State() { host->process->unguard(abort_word); }

std::set<int> Membership::State::have_come() const {
  std::set<int> seen;
  for (int member = 0; line.state() == LineState::meeting && member < size(); ++member)
    if (members.state_of(member)) seen.insert(member);
  return seen;
}

std::uint64_t Membership::State::activity() {
  const std::lock_guard lock(mutex);
  return line.activity();
}

Membership::Membership(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

Membership::~Membership() {
  if (Process::forked()) {
    // The control thread is not in this process: what it would have to know is left as it is.
    leak_in_child(state_);
    return;
  }
  State& state = *state_;
  // Before others can see that this rank has gone, and make room themselves.
  std::set<int> have_come;
  until_done([&] { have_come = state.have_come(); });
  if (!has_left(state.line.state())) state.line.say_goodbye();
  state.line.set_state(gone_after(state.line.state()));
  notify_all();
  if (state.host->sockets != nullptr) state.host->sockets->forget(state.id);
  // Either a member that finds a failure now sees that this one has gone, or this one sees it.
  if (state.abort_word.load() == kRunning) state.adopt_failure();
  {
    // No verdict is half-way through it, and none comes any more.
    const std::lock_guard of_log(state.host->log_mutex);
    const std::lock_guard lock(state.host->mutex);
    std::erase(state.host->memberships, state_);
  }
  // Callbacks that are under way or due belong to this life.
  if (!state.host->process->on_control_thread())
    until_done([&] { state.host->process->run([] {}); });
  if (state.no_place) return;
  const std::lock_guard lock(state.host->mutex);
  until_done([&] {
    state.host->closed_lines.push_back(
        {state.line, state.id, state.members.world_ranks(), state.rank, have_come});
  });
}

int Membership::rank() const noexcept { return state_->rank; }
Self Membership::self() const noexcept {
  const bool is_world = state_->asked_of == 0;
  return {state_->rank, is_world ? std::string_view() : state_->name};
}
int Membership::group_size() const noexcept { return state_->size(); }
GroupId Membership::id() const noexcept { return state_->id; }
int Membership::host_of(int member) const noexcept {
  return state_->host->roster.host_of(state_->members.world_rank_of(member));
}
bool Membership::is_here(int member) const noexcept { return state_->members.is_here(member); }
const std::string& Membership::host() const noexcept { return state_->host->roster.own().name; }
std::string Membership::person(int member) const { return state_->person(member); }
bool Membership::is_lost(int member) const noexcept {
  return state_->host->is_lost(state_->members.world_rank_of(member));
}
std::string Membership::doing() const { return state_->doing(state_->rank); }

void Membership::enter(const Request& request) noexcept {
  State& state = *state_;
  state.line.set_core(::sched_getcpu());
  const std::uint8_t site = state.host->own.site(request.where);
  Shown description = shown_of(request, site);
  if (request.seq != 0) {
    const Purpose* const purpose = request.where.purpose;
    if (purpose != nullptr) state.host->own.publish_purpose(description.chain, purpose->text);
    state.line.enter(description);
    return;
  }
  if (state.message_busy.test_and_set(std::memory_order_acquire)) return;
  description.seq = ++state.messages;
  state.line.enter_message(description);
  state.message_busy.clear(std::memory_order_release);
}

void Membership::queue(const Request& request) noexcept { state_->line.queue(request.seq); }

void Membership::leave(const Request& request) noexcept {
  State& state = *state_;
  if (request.seq != 0) {
    state.line.leave(request.seq);
    return;
  }
  if (state.message_busy.test_and_set(std::memory_order_acquire)) return;
  state.line.leave_message();
  state.message_busy.clear(std::memory_order_release);
}

void Membership::progressed() noexcept { state_->line.progressed(); }

const Waiter& Membership::waiter() const noexcept { return state_->waiter; }

bool Membership::is_on_core(int core, int member) const noexcept {
  const GroupMembers& members = state_->members;
  return (member < 0 || members.is_here(member)) && members.here().is_on_core(core, member);
}

int Membership::cores() const noexcept { return state_->host->cores; }

std::uint8_t Membership::site(const Where& where) noexcept { return state_->host->own.site(where); }

std::string Membership::site_of(int member, std::uint8_t site) const {
  return state_->members.is_here(member) ? state_->members.here().site_of(member, site) : "";
}

void Membership::notify(int member) noexcept { state_->members.notify(member); }

void Membership::notify_all() noexcept { state_->members.notify_all(); }

void Membership::add_driver(Driver& driver) { state_->host->progress.add(driver); }
void Membership::remove_driver(Driver& driver) noexcept { state_->host->progress.remove(driver); }
void Membership::wake_driver() noexcept { state_->host->progress.wake(); }

const std::atomic<std::uint64_t>& Membership::abort_word() const noexcept {
  return state_->abort_word;
}

void Membership::fail(Cause cause) noexcept {
  const auto state = state_;  // a callback may destroy this meanwhile
  state->fail(std::move(cause));
  state->await_cause();
}

void Membership::fail_with_thrown() noexcept {
  const auto of_this_rank = [rank = rank()](const char* what) {
    return fmt::format("rank {}: {}", rank, what);
  };
  const auto fail_with_it = [&] {
    try {
      throw;
    } catch (const Error& error) {
      const std::vector<int>& culprits = error.context().culprits;
      if (culprits.empty()) {
        fail({error.code(), of_this_rank(error.what()), {rank()}, {}});
      } else {
        fail({error.code(), error.what(), culprits, {}});
      }
    } catch (const std::bad_alloc&) {
      give_back_memory_reserve();  // the failure needs some itself
      fail({ErrorCode::kSystem,
            of_this_rank("the system has refused memory; see its limits (ulimit -a) and what else "
                         "the host runs"),
            {rank()},
            {}});
    } catch (const std::exception& error) {
      fail({ErrorCode::kSystem, of_this_rank(error.what()), {rank()}, {}});
    }
  };
  until_done(fail_with_it);
}

std::optional<Cause> Membership::cause() const {
  if (state_->abort_word.load() == kForked)
    return Cause{ErrorCode::kInvalidArgument, "used in a forked child", {}, {}};
  const std::lock_guard lock(state_->mutex);
  return state_->first_cause;
}

bool Membership::was_disputed(GroupId group, std::span<const GroupId> asked) const noexcept {
  return state_->host->was_disputed(group, asked);
}

std::optional<Cause> Membership::last_told() const {
  const Host::State& host = *state_->host;
  const auto told = Untold::of_process().last_told(host.number, host.rank);
  if (!told) return std::nullopt;
  return Cause{told->code, told->text, state_->members.members_of(told->culprits), {}};
}

bool Membership::is_untold() const noexcept {
  return Untold::of_process().is_untold(state_->host->number, id(), rank());
}

Error Membership::error(const Request* request) const { return state_->make_error(request); }
Error Membership::close_error(const Where& where) const { return state_->close_error(where); }

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
