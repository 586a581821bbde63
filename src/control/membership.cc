#include "control/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/rank_list.h"
#include "control/host_state.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

using Clock = Deadline::Clock;
using std::chrono::nanoseconds;

constexpr nanoseconds kLongestBackoff = std::chrono::milliseconds(100);

std::string seconds(nanoseconds duration) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(duration).count());
}

std::string budget_text(const Deadline& deadline) {
  const bool unknown = deadline.budget() == nanoseconds::max();
  return unknown ? "the time it was given" : seconds(deadline.budget());
}

std::string call_site(const Where& where) {
  const std::string_view path = where.file;
  if (path.empty()) return {};
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line);
}

Clock::time_point after(Clock::time_point now, nanoseconds duration) {
  return duration > Clock::time_point::max() - now ? Clock::time_point::max() : now + duration;
}

Shown describe_request(const Request& request, std::uint8_t site) noexcept {
  const Request& shown = request.stands_for != nullptr ? *request.stands_for : request;
  Shown value;
  value.seq = request.seq;
  value.chain = request.chain;
  value.count = shown.count;
  value.factor = shown.reduce.factor();
  value.op = static_cast<std::uint8_t>(shown.op);
  value.dtype = static_cast<std::uint8_t>(shown.dtype);
  value.reduce = static_cast<std::uint8_t>(shown.reduce.kind());
  value.site = site;
  value.root_or_peer = shown.root_or_peer;
  return value;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", format_ranks(ranks));
}

}  // namespace

Membership::State::State(std::shared_ptr<Host::State> host_in, MembershipOptions options,
                         Line* line_in)
    : host(std::move(host_in)),
      id(options.id),
      name(std::move(options.name)),
      world_ranks(std::move(options.world_ranks)),
      rank(options.rank),
      line(*line_in),
      waiter{&abort_word, &host->own.slot().bell, host->policy},
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

std::string Membership::State::doing(int member) const {
  return describe_doing(host->shared, world_ranks[static_cast<std::size_t>(member)], id);
}

// ---- failing
// --------------------------------------------------------------------------------------

bool Membership::State::fail(Cause cause, Tell tell) noexcept {
  if (Process::forked()) return false;
  RankSet culprits;
  for (const int member : cause.culprits)
    if (member >= 0 && member < size())
      culprits.set(static_cast<std::size_t>(world_ranks[static_cast<std::size_t>(member)]));
  {
    const std::lock_guard lock(mutex);
    if (first_cause) return false;
    if (cause.host.empty() && !cause.culprits.empty()) cause.host = host->host_name;
    first_cause = cause;
  }
  // On the board first: whoever finds that this rank has gone away must also find why.
  host->own.publish_failure(line, cause.code, culprits,
                            tell == Tell::everybody ? cause.text : std::string());
  std::uint64_t running = kRunning;
  abort_word.compare_exchange_strong(running, kFailed);
  ring(host->own.slot().bell);
  if (tell == Tell::everybody)
    for (const int slot : world_ranks)
      if (slot != host->rank) rouse_control(host->shared, slot);
  host->process->post([self = shared_from_this()] { self->announce(); });
  return true;
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
  if (first) log(LogLevel::error, error.what());
  for (auto& callback : due) {
    try {
      callback(error);
    } catch (const std::exception& thrown) {
      log(LogLevel::error, fmt::format("a failure callback threw: {}", thrown.what()));
    } catch (...) {
      log(LogLevel::error, "a failure callback threw something that is not an exception");
    }
  }
}

void Membership::State::peers_lost(const RankSet& lost) noexcept {
  Cause cause;
  cause.code = ErrorCode::kPeerLost;
  for (int member = 0; member < size(); ++member) {
    const int slot = world_ranks[static_cast<std::size_t>(member)];
    if (!lost.test(static_cast<std::size_t>(slot))) continue;
    if (!cause.culprits.empty()) cause.text += "; ";
    cause.culprits.push_back(member);
    cause.text += fmt::format("{} was lost: {}", person(member), doing(member));
  }
  if (cause.culprits.empty()) return;
  cause.text += ". The group is closed: make a group or a world without it, or start the job again";
  fail(std::move(cause), Tell::nobody);
}

bool Membership::State::adopt_failure() noexcept {
  int found = -1;
  std::string text;
  for (int member = 0; member < size() && text.empty(); ++member) {
    if (member == rank) continue;
    const Line* theirs = line_of(member);
    if (theirs == nullptr || theirs->failure.load(std::memory_order_acquire) == 0) continue;
    if (found < 0) found = member;
    for (const Notice& notice : slot_of(member).notices) {
      const std::uint64_t version = notice.version.load(std::memory_order_acquire);
      if (version == 0 || version % 2 != 0 || notice.group.load(std::memory_order_acquire) != id)
        continue;
      std::string read = notice.text.read();
      if (notice.version.load(std::memory_order_relaxed) != version) continue;
      text = std::move(read);
      found = member;
    }
  }
  if (found < 0) return false;
  const Line* theirs = line_of(found);
  const RankSet culprits = read_set(theirs->culprits);
  const auto code = static_cast<ErrorCode>(theirs->failure.load(std::memory_order_acquire) - 1);
  if (code == ErrorCode::kPeerLost && text.empty()) {
    peers_lost(culprits);
    return true;
  }
  Cause cause;
  cause.code = code;
  cause.text =
      text.empty() ? fmt::format("{} has failed ({})", person(found), name_of(code)) : text;
  for (int member = 0; member < size(); ++member)
    if (culprits.test(static_cast<std::size_t>(world_ranks[static_cast<std::size_t>(member)])))
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
  ErrorContext context;
  context.rank = rank;
  context.culprits = cause.culprits;
  context.host = cause.host;
  std::string who = fmt::format("group {} (rank {})", name, rank);
  if (request != nullptr) {
    const Request& shown = request->stands_for != nullptr ? *request->stands_for : *request;
    context.op = name_of(shown.op);
    context.seq = request->seq;
    context.call_site = call_site(shown.where);
    who = request->seq == 0 ? fmt::format("{} (rank {})", context.op, rank)
                            : fmt::format("{} #{} (rank {})", context.op, context.seq, rank);
  }
  return Error(cause.code, fmt::format("{}: {}", who, cause.text), std::move(context));
}

// ---- disagreement
// ---------------------------------------------------------------------------------

namespace {

/// Those members that have the same chain at a seq.
struct Side {
  std::uint64_t chain;
  std::vector<int> members;
  std::string what;
  std::optional<Shown> description = {};

  /// The same operation, called on top of different pasts.
  bool same_as(const Side& other) const {
    return description && other.description &&
           describe(*description) == describe(*other.description);
  }
};

}  // namespace

bool Membership::State::find_mismatch(std::uint64_t seq, int peer,
                                      const Description* seen) noexcept {
  std::vector<Side> sides;
  for (int member = 0; member < size(); ++member) {
    const Line* theirs = line_of(member);
    if (theirs == nullptr) continue;
    std::optional<Shown> there = theirs->history[seq % kHistory].read();
    if (there && there->seq != seq) there.reset();
    if (!there && member == peer && seen != nullptr && seen->seq == seq) there = Shown{*seen};
    std::uint64_t chain = 0;
    if (there) {
      chain = there->chain;
    } else if (theirs->state.load(std::memory_order_acquire) != LineState::open &&
               theirs->goodbye_seq.load(std::memory_order_acquire) == seq) {
      chain = theirs->goodbye_chain.load(std::memory_order_acquire);
    } else {
      continue;
    }
    auto side =
        std::find_if(sides.begin(), sides.end(), [&](const Side& s) { return s.chain == chain; });
    if (side == sides.end()) side = sides.insert(sides.end(), Side{chain, {}, {}});
    side->members.push_back(member);
    if (!side->description && there) {
      side->description = there;
      side->what = describe(slot_of(member), *there);
    }
  }
  if (sides.size() < 2) return false;

  Cause cause;
  cause.code = ErrorCode::kCollectiveMismatch;
  cause.text = fmt::format("the ranks disagree about operation #{}", seq);
  bool all_equal = true;
  std::size_t biggest = 0;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    Side& side = sides[i];
    if (side.what.empty()) side.what = "an operation that the board no longer shows";
    cause.text +=
        fmt::format("{} {} called {}", i == 0 ? ":" : ";", ranks_text(side.members), side.what);
    all_equal = all_equal && side.same_as(sides[0]);
    if (side.members.size() > sides[biggest].members.size()) biggest = i;
  }
  for (std::size_t i = 0; i < sides.size(); ++i)
    if (i != biggest)
      cause.culprits.insert(cause.culprits.end(), sides[i].members.begin(), sides[i].members.end());
  std::sort(cause.culprits.begin(), cause.culprits.end());
  if (all_equal) cause.text += fmt::format(" (they differ in an operation before #{})", seq);
  cause.text += ". Every rank must call the same operations in the same order";
  return fail(std::move(cause), Tell::everybody) || abort_word.load() != kRunning;
}

bool Membership::State::find_mismatch() noexcept {
  const std::uint64_t entered = line.entered.load(std::memory_order_relaxed);
  const std::uint64_t first = entered >= kHistory ? entered - kHistory + 1 : 1;
  for (std::uint64_t seq = first; seq <= entered; ++seq)
    if (find_mismatch(seq, -1, nullptr)) return true;
  return false;
}

// ---- the slow path of a wait
// ----------------------------------------------------------------------

/// One look of a wait that has become long; the order of its questions is the order of blame.
class Membership::State::Look {
 public:
  Look(State& state, const Request& request, int awaited, WaitClock& clock, Clock::time_point now)
      : state_(state), request_(request), awaited_(awaited), clock_(clock), now_(now) {
    if (clock_.began == Clock::time_point{}) {
      clock_.began = now;
      clock_.arrive = request.arrive;
      clock_.stall = request.stall;
      clock_.next_line = after(now, state.host->first_line_after);
    }
    next_ = now + clock_.backoff;
    clock_.backoff = std::min(clock_.backoff * 2, kLongestBackoff);
  }

  Patience::Verdict run() {
    publish();
    if (state_.adopt_failure()) return Patience::Verdict::keep_waiting;
    return is_message(request_.op) && request_.stands_for == nullptr ? message() : collective();
  }
  Clock::time_point next() const noexcept { return next_; }

 private:
  /// Says on the board who is awaited.
  void publish() noexcept {
    if (request_.seq == 0) return;
    state_.line.since.store(clock_.began.time_since_epoch().count(), std::memory_order_relaxed);
    state_.line.waiting.store(request_.seq << 16 | static_cast<std::uint64_t>(awaited_ + 1),
                              std::memory_order_release);
  }

  Patience::Verdict collective() {
    if (state_.find_mismatch() || left()) return Patience::Verdict::keep_waiting;
    find_missing();
    if (!missing_.empty()) {
      late();
    } else {
      stalled(/*message_peer=*/-1);
    }
    return Patience::Verdict::keep_waiting;
  }

  Patience::Verdict message() {
    const int peer = request_.root_or_peer;
    if (left()) return Patience::Verdict::keep_waiting;
    if (clock_.matched) {
      stalled(peer);
      return Patience::Verdict::keep_waiting;
    }
    if (clock_.arrive.expired(now_)) {
      if (request_.op == Op::recv) return Patience::Verdict::give_up;
      fail_timeout({peer},
                   fmt::format("{} has posted no recv for it in {}; it {}", state_.person(peer),
                               budget_text(clock_.arrive), state_.doing(peer)));
      return Patience::Verdict::keep_waiting;
    }
    until(clock_.arrive);
    say_who_is_awaited({peer});
    return Patience::Verdict::keep_waiting;
  }

  /// Whether somebody who is needed has left in order. Twice seen, since what he left behind may
  /// have come between the wait's last look at the data and this one.
  bool left() {
    for (int member = 0; member < state_.size(); ++member) {
      if (member == state_.rank || (awaited_ >= 0 && member != awaited_)) continue;
      if (is_message(request_.op) && member != request_.root_or_peer) continue;
      const Line* theirs = state_.line_of(member);
      const bool open = theirs != nullptr
                            ? theirs->state.load(std::memory_order_acquire) == LineState::open
                            : state_.slot_of(member).state.load() != RankState::left;
      if (open) continue;
      const std::uint64_t last = theirs != nullptr ? theirs->goodbye_seq.load() : 0;
      if (request_.seq != 0 && last >= request_.seq) continue;
      if (!std::exchange(clock_.peer_left, true)) {
        next_ = now_ + std::chrono::milliseconds(1);
        return true;
      }
      Cause cause;
      cause.code = ErrorCode::kClosed;
      cause.culprits = {member};
      cause.text = last == 0
                       ? fmt::format("rank {} left the group before its first operation", member)
                       : fmt::format("rank {} left the group after #{}", member, last);
      state_.fail(std::move(cause), Tell::everybody);
      return true;
    }
    return false;
  }

  /// Members that have not entered; the latest of them first found are those with the smallest seq.
  void find_missing() {
    least_ = request_.seq;
    for (int member = 0; member < state_.size(); ++member) {
      if (member == state_.rank) continue;
      const Line* theirs = state_.line_of(member);
      const std::uint64_t entered =
          theirs != nullptr ? theirs->entered.load(std::memory_order_acquire) : 0;
      if (entered >= request_.seq || entered > least_) continue;
      if (entered < least_) missing_.clear();
      least_ = entered;
      missing_.push_back(member);
    }
  }

  void late() {
    Deadline arrive;
    {
      // The clock belongs to the operation, which may wait several times.
      const std::lock_guard lock(state_.mutex);
      if (state_.arrive_seq != request_.seq) {
        state_.arrive_seq = request_.seq;
        state_.arrive = request_.arrive;
      }
      state_.arrive.start(clock_.began);
      arrive = state_.arrive;
    }
    if (arrive.expired(now_)) {
      std::string text;
      for (const int member : missing_)
        text += fmt::format("{}{} has not entered; it {}", text.empty() ? "" : "; ",
                            state_.person(member), state_.doing(member));
      fail_timeout(missing_, fmt::format("after {}: {}. If it is only slow, give a longer timeout",
                                         budget_text(arrive), text));
      return;
    }
    clock_.stall = request_.stall;  // counts from when all are in
    until(arrive);
    say_who_is_awaited(missing_);
  }

  void stalled(int message_peer) {
    std::uint64_t progress = 0;
    for (int member = 0; member < state_.size(); ++member)
      if (const Line* theirs = state_.line_of(member))
        progress += theirs->progress.load(std::memory_order_relaxed);
    if (progress != clock_.progress_seen) {
      clock_.progress_seen = progress;
      clock_.stall = request_.stall;
    }
    if (!clock_.stall.expired(now_)) {
      until(clock_.stall);
      return;
    }
    std::vector<int> culprits;
    for (int member = 0; member < state_.size(); ++member) {
      if (member == state_.rank) continue;
      const Line* theirs = state_.line_of(member);
      const int only = message_peer >= 0 ? message_peer : awaited_;
      if (only >= 0 ? member == only : theirs == nullptr || theirs->completed.load() < request_.seq)
        culprits.push_back(member);
    }
    std::string text;
    for (const int member : culprits)
      text += fmt::format("; {} {}", state_.person(member), state_.doing(member));
    fail_timeout(culprits, fmt::format("all are in, but no byte moved for {}{}",
                                       budget_text(clock_.stall), text));
  }

  void fail_timeout(std::vector<int> culprits, std::string text) {
    Cause cause;
    cause.code = ErrorCode::kTimeout;
    cause.culprits = std::move(culprits);
    cause.text = std::move(text);
    state_.fail(std::move(cause), Tell::everybody);
  }

  void say_who_is_awaited(const std::vector<int>& awaited) {
    if (now_ >= clock_.next_line) {
      const nanoseconds waited = now_ - clock_.began;
      std::string text;
      for (const int member : awaited)
        text += fmt::format("{}{}, which {}", text.empty() ? "" : "; ", state_.person(member),
                            state_.doing(member));
      const std::string number = request_.seq == 0 ? "" : fmt::format(" #{}", request_.seq);
      log(LogLevel::warn, fmt::format("{}{} (rank {}): waiting {} for {}", name_of(request_.op),
                                      number, state_.rank, seconds(waited), text));
      clock_.next_line = after(now_, waited);
    }
    next_ = std::min(next_, clock_.next_line);
  }

  void until(Deadline& deadline) { next_ = std::min(next_, after(now_, deadline.left(now_))); }

  State& state_;
  const Request& request_;
  const int awaited_;
  WaitClock& clock_;
  const Clock::time_point now_;
  Clock::time_point next_;
  std::vector<int> missing_;
  std::uint64_t least_ = 0;
};

// ---- the handle
// -----------------------------------------------------------------------------------

Membership::Membership(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

Membership::~Membership() {
  if (Process::forked()) {
    // The control thread is not in this process: what it would have to know is left as it is.
    new std::shared_ptr<State>(state_);
    return;
  }
  State& state = *state_;
  if (state.line.state.load() == LineState::open) {
    const std::uint64_t last = state.line.completed.load();
    const auto entry = state.line.history[last % kHistory].read();
    state.line.goodbye_seq.store(last);
    state.line.goodbye_chain.store(entry && entry->seq == last ? entry->chain : 0);
    state.line.state.store(LineState::gone);
    notify_all();
  }
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
  const Request& shown = request.stands_for != nullptr ? *request.stands_for : request;
  const std::uint8_t site = state.host->own.site(shown.where);
  Shown description = describe_request(request, site);
  if (request.seq != 0) {
    state.line.history[request.seq % kHistory].write(description);
    state.line.entered.store(request.seq, std::memory_order_release);
    return;
  }
  if (state.message_busy.test_and_set(std::memory_order_acquire)) return;
  description.seq = ++state.messages;
  description.chain = static_cast<std::uint64_t>(request.tag);
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

Patience::Verdict Membership::ask(const Request& request, int awaited, WaitClock& clock,
                                  Clock::time_point now, Clock::time_point* next) {
  if (state_->abort_word.load() != kRunning) {
    *next = now + kLongestBackoff;
    return Patience::Verdict::keep_waiting;
  }
  State::Look look(*state_, request, awaited, clock, now);
  const Patience::Verdict verdict = look.run();
  *next = look.next();
  return verdict;
}

void Membership::throw_gave_up(const Request& request) const {
  const int peer = request.root_or_peer;
  ErrorContext context;
  context.op = name_of(request.op);
  context.rank = state_->rank;
  context.culprits = {peer};
  context.host = state_->host->host_name;
  context.call_site = call_site(request.where);
  const std::string text = fmt::format(
      "{} (rank {}): nothing came from {} with tag {} for {}; it {}. Nothing was received and the "
      "group stays usable",
      context.op, state_->rank, state_->person(peer), request.tag, budget_text(request.arrive),
      state_->doing(peer));
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

void Membership::fail_mismatch(const Request& own, int peer, const Description* seen) noexcept {
  if (state_->find_mismatch() || state_->find_mismatch(own.seq, peer, seen)) return;
  Cause cause;
  cause.code = ErrorCode::kCollectiveMismatch;
  cause.culprits = {peer};
  cause.text = fmt::format(
      "the ranks disagree about operation #{}: rank {} called {}; rank {} called {}. Every rank "
      "must "
      "call the same operations in the same order",
      own.seq, state_->rank,
      describe(state_->host->own.slot(), describe_request(own, state_->host->own.site(own.where))),
      peer,
      seen != nullptr ? describe(state_->slot_of(peer), Shown{*seen})
                      : std::string("another one, earlier"));
  fail(std::move(cause));
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
  bool failed = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->callbacks.push_back(std::move(callback));
    failed = state_->announced;
  }
  if (failed) state_->host->process->post([state = state_] { state->announce(); });
}

// ---- leaving
// --------------------------------------------------------------------------------------

/// Waits for the goodbyes of all; compares each as soon as it is there.
class Membership::State::Farewell final : public Patience {
 public:
  Farewell(State& state, Deadline deadline) : state_(state), deadline_(deadline) {}
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    if (state_.adopt_failure() || compare()) {
      *next = now + kLongestBackoff;
      return Verdict::keep_waiting;
    }
    if (deadline_.expired(now)) return Verdict::give_up;
    *next = std::min(after(now, deadline_.left(now)), now + std::chrono::milliseconds(20));
    return Verdict::keep_waiting;
  }
  bool all_have_left() const noexcept {
    for (int member = 0; member < state_.size(); ++member)
      if (!has_left(member)) return false;
    return true;
  }
  bool has_left(int member) const noexcept {
    const Line* theirs = state_.line_of(member);
    if (theirs == nullptr) return state_.slot_of(member).state.load() == RankState::left;
    return theirs->state.load(std::memory_order_acquire) != LineState::open;
  }
  /// True: a disagreement was found and the group has failed.
  bool compare() {
    const std::uint64_t own_seq = state_.line.goodbye_seq.load();
    for (int member = 0; member < state_.size(); ++member) {
      const Line* theirs = state_.line_of(member);
      if (member == state_.rank || theirs == nullptr || !has_left(member)) continue;
      const std::uint64_t seq = theirs->goodbye_seq.load();
      if (seq == own_seq && theirs->goodbye_chain.load() == state_.line.goodbye_chain.load())
        continue;
      for (std::uint64_t s = std::min(seq, own_seq); s > 0 && s + kHistory > std::min(seq, own_seq);
           --s)
        first_different_ = state_.differ(s, member) ? s : first_different_;
      if (first_different_ != 0) return state_.find_mismatch(first_different_, -1, nullptr);
      return fail_count(member, seq, own_seq);
    }
    return false;
  }

 private:
  /// One side has done more operations than the other.
  bool fail_count(int member, std::uint64_t seq, std::uint64_t own_seq) {
    const int more = seq > own_seq ? member : state_.rank;
    const int fewer = seq > own_seq ? state_.rank : member;
    const Line* line = state_.line_of(more);
    const std::uint64_t extra = std::min(seq, own_seq) + 1;
    const auto entry = line->history[extra % kHistory].read();
    Cause cause;
    cause.code = ErrorCode::kCollectiveMismatch;
    cause.culprits = {fewer};
    cause.text = fmt::format(
        "the ranks disagree at the end: rank {} closed the group after #{}, rank {} after #{}{}. "
        "Every "
        "rank must call the same operations in the same order",
        fewer, std::min(seq, own_seq), more, std::max(seq, own_seq),
        entry && entry->seq == extra
            ? fmt::format(", #{} was {}", extra, describe(state_.slot_of(more), *entry))
            : "");
    return state_.fail(std::move(cause), Tell::everybody) || state_.abort_word.load() != kRunning;
  }

  State& state_;
  Deadline deadline_;
  std::uint64_t first_different_ = 0;
};

bool Membership::State::differ(std::uint64_t seq, int member) const noexcept {
  const auto chain_at = [&](const Line& of) -> std::optional<std::uint64_t> {
    const auto entry = of.history[seq % kHistory].read();
    if (entry && entry->seq == seq) return entry->chain;
    if (of.goodbye_seq.load() == seq && of.state.load() != LineState::open)
      return of.goodbye_chain.load();
    return std::nullopt;
  };
  const Line* theirs = line_of(member);
  const auto own_chain = chain_at(line);
  const auto their_chain = theirs != nullptr ? chain_at(*theirs) : std::nullopt;
  return own_chain && their_chain && *own_chain != *their_chain;
}

void Membership::close(std::uint64_t last_seq, std::uint64_t chain, Deadline deadline) {
  State& state = *state_;
  if (state.abort_word.load() != kRunning) throw state.make_error(nullptr);
  state.line.goodbye_seq.store(last_seq);
  state.line.goodbye_chain.store(chain);
  state.line.state.store(LineState::goodbye);
  notify_all();

  State::Farewell farewell(state, deadline);
  const WaitResult result = wait(state.waiter, farewell, [&] { return farewell.all_have_left(); });
  if (result == WaitResult::ready && !state.adopt_failure()) farewell.compare();
  if (state.abort_word.load() != kRunning) throw state.make_error(nullptr);
  if (result == WaitResult::ready) return;

  ErrorContext context;
  context.rank = state.rank;
  std::string text;
  for (int member = 0; member < state.size(); ++member) {
    if (farewell.has_left(member)) continue;
    context.culprits.push_back(member);
    text += fmt::format("; {} {}", state.person(member), state.doing(member));
  }
  context.host = state.host->host_name;
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("close of group {} (rank {}): {} not left after {}{}", state.name, state.rank,
                  ranks_text(context.culprits) + (context.culprits.size() == 1 ? " has" : " have"),
                  budget_text(deadline), text),
      context);
}

}  // namespace tutti::control
