#include "control/hosts/remote_hosts.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/signals.h"
#include "control/hosts/vote_frame.h"
#include "control/hosts/vote_place.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

using std::chrono::milliseconds;

/// What a frame on a line is.
enum FrameKind : std::uint32_t { kBeat, kReport, kVote, kQuestion };

constexpr milliseconds kBetweenBeats{500};
/// Between two looks at what takes long, and between two calls.
constexpr milliseconds kSweep{20}, kBetweenCalls{100};
/// How long a rank that closes a group or leaves waits for its relay to say so.
constexpr milliseconds kTellsSoon = kVoteOvertake;
/// How long a relay waits for its own thread for other hosts, before it tells its ranks a verdict.
constexpr milliseconds kSendsSoon{20};
/// Hosts that do not reach each other for so long have parted.
constexpr std::chrono::seconds kLeaving{3};
/// A note that says nothing for so long is dropped: all of it is said at once.
constexpr std::chrono::seconds kNoteSilence{3};
/// Of one rank at a time: when it leaves, and when it looked who is there just before.
constexpr std::size_t kMostNotes = 4;
constexpr std::size_t kMostFrameBytes = std::size_t{4} << 20;

/// How long a call may be without an answer until it is made anew, after `unanswered` such calls. A
/// listener that is being closed may drop a call, and the kernel repeats one only after a second.
milliseconds patience_after(int unanswered) noexcept {
  return std::min<milliseconds>(kBetweenCalls * (1 << std::min(unanswered, 8)), Hearing::kSilence);
}

std::vector<net::Frame> frames_of(const std::vector<Report>& reports) {
  std::vector<net::Frame> frames;
  const auto now = Clock::now();
  for (const Report& report : reports)
    frames.push_back({.type = kReport, .id = 0, .body = encode(report, now)});
  return frames;
}

}  // namespace

RemoteHosts::RemoteHosts(RemoteOptions options)
    : board_(options.memory),
      roster_(std::move(options.roster)),
      rank_(options.rank),
      slot_(roster_.slot_of(rank_)),
      plates_(std::move(options.plates)),
      facts_(static_cast<std::size_t>(roster_.host_count())),
      keys_(std::move(options.keys)),
      reporter_(board_, roster_),
      far_(static_cast<std::size_t>(roster_.world_size())),
      relay_of_(static_cast<std::size_t>(roster_.host_count()), -1),
      data_(
          events_, rank_, shortage_,
          [this](const Hello& hello, Call::OnOutcome on_outcome) {
            return begin_call(hello, milliseconds(0), std::move(on_outcome));
          },
          [this] { ring(board_.bell(slot_)); }),
      notes_(
          events_,
          [this](WorldRank to, Call::OnOutcome on_outcome) {
            return begin_call({.role = Role::note, .from = rank_, .to = to}, Hearing::kSilence,
                              std::move(on_outcome));
          },
          kMostFrameBytes),
      door_(
          events_, std::move(options.listener), keys_.security().level, roster_.world_size(),
          shortage_, [this](const Hello& hello) { return key_for(hello); },
          [this](const Hello& hello) { return on_hello(hello); },
          [this](const Hello& hello, net::Secured socket) { on_guest(hello, std::move(socket)); }) {
  inbox_.kept.resize(facts_.size());
  const SignalsBlocked quiet;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failure) {
    throw net::no_thread_error("cannot start the thread for other hosts", failure.code().value());
  }
}

RemoteHosts::~RemoteHosts() {
  stops_.store(true);
  events_.post([] {});
  thread_.join();
}

// ---- what is known -----------------------------------------------------------------------------

MemberFacts RemoteHosts::facts_of(GroupId group, WorldRank rank) const {
  return view_.facts_of(group, rank);
}

std::optional<LineState> RemoteHosts::state_of(GroupId group, WorldRank rank) const noexcept {
  return view_.state_of(group, rank);
}

bool RemoteHosts::shows_failure(GroupId group, WorldRank rank) const noexcept {
  return view_.shows_failure(group, rank);
}

bool RemoteHosts::has_left(WorldRank rank) const noexcept { return view_.has_left(rank); }

std::vector<GroupId> RemoteHosts::said_goodbye_to(WorldRank rank) const {
  return view_.said_goodbye_to(rank);
}

std::map<GroupId, FailureFacts> RemoteHosts::failures_of(WorldRank rank) const {
  return view_.failures_of(rank);
}

void RemoteHosts::ask(GroupId group, WorldRank rank) noexcept {
  const Question question{
      .rank = rank, .group = group, .asked = Clock::now().time_since_epoch().count()};
  bool is_new = false;
  with_reserve([&] { is_new = view_.add_question(question); });
  if (is_new) until_done([&] { events_.post([this, question] { put(question); }); });
}

WaitFacts RemoteHosts::wait_of(WorldRank rank) const { return view_.wait_of(rank); }

/// Not put again to the next relay: it is asked again as long as it matters.
void RemoteHosts::ask_wait(WorldRank rank) noexcept {
  events_.post([this, rank] { put({.rank = rank, .group = 0, .asked = 0}); });
}

/// On the own thread.
void RemoteHosts::put(const Question& question) {
  const int relay = relay_of_[static_cast<std::size_t>(roster_.host_of(question.rank))];
  if (relay >= 0)
    far(WorldRank(relay)).from->send({.type = kQuestion, .id = 0, .body = encode(question)});
}

/// Whom it is for does not matter: what is new goes to all. Called with every frame of data.
void RemoteHosts::notify(WorldRank) noexcept { rouse_relay(); }

/// To tell what this rank has shown since.
void RemoteHosts::rouse_relay() noexcept {
  const std::uint64_t news = board_.news_of(slot_);
  if (told_news_.load(std::memory_order_relaxed) == news || told_news_.exchange(news) == news)
    return;
  const auto relay = VoteBytes::relay_on(board_);
  rouse_control(board_, relay.value_or(slot_));
}

net::Secured RemoteHosts::try_take(GroupId group, WorldRank peer, std::uint8_t lane) {
  return data_.try_take(group, peer, lane);
}

bool RemoteHosts::has_come(GroupId group, WorldRank peer, std::uint8_t lane) {
  return data_.has_come(group, peer, lane);
}

bool RemoteHosts::has_ended(WorldRank peer) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_.contains(peer)) return true;
  }
  events_.post([this, peer] { probe(peer); });
  return false;
}

/// A note without words: the kernel of a process that is stopped takes it as well.
void RemoteHosts::probe(WorldRank rank) {
  if (far(rank).probe) return;
  try {
    far(rank).probe = begin_call({.role = Role::note, .from = rank_, .to = rank}, Hearing::kSilence,
                                 [this, rank](Call::Outcome outcome) {
                                   Far& other = far(rank);
                                   if (outcome.is_heard) other.hearing.heard(other.probe->began());
                                   events_.discard(std::move(other.probe));
                                   if (outcome.error_number != ECONNREFUSED) return;
                                   const std::lock_guard lock(mutex_);
                                   ended_.insert(rank);
                                 });
  } catch (const Error&) {  // a shortage; it is asked again
  }
}

// ---- as the relay: on the control thread -------------------------------------------------------

void RemoteHosts::open() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.is_relay = true;
    for (int host = 0; host < roster_.host_count(); ++host) {
      auto& kept = inbox_.kept[static_cast<std::size_t>(host)];
      if (kept) inbox_.frames.emplace_back(host, encode(*kept));
      kept.reset();
    }
  }
  events_.post([this] {
    is_relay_ = true;
    const auto now = Clock::now();
    visit_far([&](WorldRank rank, Far& other) {
      other.hearing = Hearing(last_heard(roster_.host_of(rank), now));
    });
    visit_far([&](WorldRank rank, Far&) { call(rank); });  // where this throws the sweep does it
    next_sweep_ = {};
    (void)reporter_.news();
    reporter_.mark_told();  // each rank that is called is told all
  });
}

void RemoteHosts::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    inbox_.is_relay = false;
    // Before any that comes from now on.
    for (; !inbox_.frames.empty(); inbox_.frames.pop_front())
      with_reserve([&] { keep_vote(inbox_.frames.front().first, inbox_.frames.front().second); });
  }
  events_.post([this] {
    with_reserve([&] { tell_news(); });  // else the next relay tells all, or the note of who leaves
    end_lines();
    is_relay_ = false;
    update_facts();
  });
}

std::vector<HostFacts> RemoteHosts::facts() const {
  const std::lock_guard lock(mutex_);
  std::vector<HostFacts> facts = facts_;
  for (const auto& [host, frame] : inbox_.frames) {
    HostFacts& each = facts[static_cast<std::size_t>(host)];
    if (is_over(each.state)) each.state = HostFacts::State::reachable;
  }
  return facts;
}

std::optional<std::pair<int, std::string>> RemoteHosts::receive() {
  const std::lock_guard lock(mutex_);
  if (inbox_.frames.empty()) return std::nullopt;
  auto first = std::move(inbox_.frames.front());
  inbox_.frames.pop_front();
  return first;
}

void RemoteHosts::send(int host, std::string frame) {
  events_.post([this, host, frame = net::Frame{.type = kVote, .id = 0, .body = std::move(frame)}] {
    for (const WorldRank rank : roster_.host(host).ranks)
      if (far(rank).line) far(rank).line->send(frame);
  });
}

void RemoteHosts::await_sent() noexcept {
  const std::uint64_t mark = ++marks_set_;
  const auto post_mark = [&] {
    events_.post([this, mark] {
      const std::lock_guard passing(mutex_);
      marks_passed_ = mark;
      changed_.notify_all();
    });
  };
  if (!with_reserve(post_mark)) return;
  Deadline deadline = Deadline::after(kSendsSoon);
  std::unique_lock lock(mutex_);
  while (marks_passed_ < mark && changed_.wait(lock, deadline)) {
  }
}

void RemoteHosts::report() {
  std::uint64_t news = 0;
  for (const SlotIndex slot : board_.slots())
    news += board_.news_of(slot) + (board_.is_known_dead(slot) ? 1 : 0);
  if (std::exchange(reported_news_, news) != news) events_.post([this] { tell_news(); });
}

void RemoteHosts::part_from(const HostSet& hosts) {
  if (!hosts.empty()) events_.post([this, hosts] { parted_ = hosts; });
}

// ---- leaving -----------------------------------------------------------------------------------

bool RemoteHosts::is_last_of_host() const noexcept {
  for (const SlotIndex slot : board_.slots())
    if (slot != slot_ && board_.is_running(slot)) return false;
  return true;
}

bool RemoteHosts::are_told_soon() const noexcept {
  const std::uint64_t news = board_.news_of(slot_);
  return wait_until(board_.bell(slot_), Clock::now() + kTellsSoon,
                    [&] { return board_.told_of(slot_) >= news; });
}

void RemoteHosts::await_told() noexcept {
  rouse_relay();
  (void)are_told_soon();
}

/// Whether another rank has told the others, the relay or the last of this host; or is the last,
/// and does so, as no other one is left.
bool RemoteHosts::has_another_told() const noexcept {
  if (is_last_of_host()) return false;
  if (are_told_soon()) return true;
  for (const SlotIndex slot : board_.slots())
    if (board_.state_of(slot) != RankState::left) return false;
  return true;
}

void RemoteHosts::leave(const std::set<WorldRank>& lost) noexcept {
  if (lost.contains(rank_)) return;  // who has been left out is heard by nobody
  const bool is_told = has_another_told();
  until_done([&] {
    events_.post([this, is_told, lost] {
      is_leaving_ = true;
      if (!is_told) persist([&] { leave_note(lost); });
      next_sweep_ = {};
    });
  });
  Deadline deadline = Deadline::after(kLeaving);
  std::unique_lock lock(mutex_);
  while (!has_told_all_ && changed_.wait(lock, deadline)) {
  }
}

// ---- the own thread ----------------------------------------------------------------------------

void RemoteHosts::run() noexcept {
  pthread_setname_np(pthread_self(), "tutti-hosts");
  constexpr std::chrono::seconds kWell{1};
  Clock::time_point well_from = {};
  const auto has_done = [&](auto&& step) {  // told once, until all has been well for a while
    const auto tell = [&](const char* what) {
      if (Clock::now() >= well_from) log(LogLevel::error, what);
      well_from = Clock::now() + kWell;
    };
    try {
      step();
      return true;
    } catch (const std::bad_alloc&) {
      give_back_memory_reserve();
      tell("the thread for other hosts was refused memory, and goes on");
    } catch (const std::exception& error) {
      tell(error.what());
    }
    return false;
  };
  while (!stops_.load()) {
    const bool has_run = has_done([&] { events_.run(next_sweep_); });
    const auto now = Clock::now();
    const bool has_swept = now < next_sweep_ || has_done([&] { sweep(now); });
    if (has_run && has_swept) continue;
    pause_for_memory();  // the socket whose call has thrown is armed again
    next_sweep_ = {};
  }
  for (Far& other : far_) other = {};
}

template <class Part>
void RemoteHosts::persist(Part&& part) noexcept {
  while (!stops_.load() && !with_reserve(part)) pause_for_memory();
}

template <class Visit>
void RemoteHosts::visit_far(Visit&& visit) {
  for (int rank = 0; rank < roster_.world_size(); ++rank) {
    if (!roster_.is_here(WorldRank(rank))) {
      visit(WorldRank(rank), far_[static_cast<std::size_t>(rank)]);
    }
  }
}

void RemoteHosts::sweep(Clock::time_point now) {
  door_.sweep(now);
  const auto next_call = data_.sweep(now);
  const bool beats = now >= next_beat_;
  if (beats) next_beat_ = now + kBetweenBeats;
  bool is_waiting = is_leaving_, has_told_all = is_leaving_;
  auto next = std::min(next_beat_, next_call);
  visit_far([&](WorldRank rank, Far& other) {
    listen_for(other);
    for (auto note = other.notes.begin(); note != other.notes.end();) {
      const auto each = note++;
      if (now >= each->heard + kNoteSilence) drop_note(other, each);
    }
    if (other.line && beats) beat(rank, now);
    if (other.call && other.call->is_connecting() &&
        now >= other.call->began() + patience_after(other.unanswered)) {
      other.call->give_up();
      on_outcome(rank, {.error_number = ETIMEDOUT});
    }
    if (has_refused(other)) mark_gone(other);
    if (now >= other.next_call) call(rank);
    if (lacks_line(other)) next = std::min(next, other.next_call);
    is_waiting = is_waiting || other.call || has_refused(other);
    has_told_all = has_told_all && (!other.line || has_parted(rank) || other.line->has_delivered());
    if (now < other.hearing.silent_from()) next = std::min(next, other.hearing.silent_from());
  });
  if (is_leaving_) has_told_all = notes_.sweep(now) && has_told_all;
  update_facts();
  next_sweep_ = is_waiting ? std::min(next, now + kSweep) : next;
  if (has_told_all) {
    if (has_left_note_) reporter_.show_told();
    const std::lock_guard lock(mutex_);
    has_told_all_ = true;
    changed_.notify_all();
  }
  if (owes_news_) tell_news();
  show_told();
}

/// A new relay goes by what came from the other one: it has asked for nothing yet.
Clock::time_point RemoteHosts::last_heard(int host, Clock::time_point now) {
  const int relay = relay_of_[static_cast<std::size_t>(host)];
  return relay < 0 ? now : now - far(WorldRank(relay)).from->since_heard();
}

/// A process that is stopped may have let the window of its line fill: its kernel then takes no
/// more beats, but calls.
void RemoteHosts::beat(WorldRank rank, Clock::time_point now) {
  Far& other = far(rank);
  other.line->send({.type = kBeat, .id = 0, .body = {}});
  other.hearing.ask(now);
  if (!other.beat) {
    other.beat = {now, other.line->sent_bytes()};
    return;
  }
  if (other.probe) {  // it asks no more once it was heard, or its packet was lost
    other.probe->give_up();
    events_.discard(std::move(other.probe));
  }
  probe(rank);
}

/// The kernel of its host acknowledges, even where the rank is stopped. What comes from there says
/// nothing of it.
void RemoteHosts::listen_for(Far& other) {
  if (other.beat && other.line->acknowledged_bytes() >= other.beat->end) {
    other.hearing.heard(other.beat->sent);
    other.beat.reset();
  }
  for (const Call* const call : {other.call.get(), other.probe.get()})
    if (call && !call->is_connecting()) other.hearing.heard(call->began());
}

std::unique_ptr<Call> RemoteHosts::begin_call(const Hello& hello, milliseconds silence,
                                              Call::OnOutcome on_outcome) try {
  const DoorPlate& plate = plates_[hello.to.index()];
  auto call = std::make_unique<Call>(
      events_, plate.address, hello, keys_.security().level, keys_.with(hello.to, plate.public_key),
      silence, [this, on_outcome = std::move(on_outcome)](Call::Outcome outcome) {
        const bool is_due_again = !outcome.socket;
        on_outcome(std::move(outcome));
        if (is_due_again) next_sweep_ = {};
      });
  shortage_.is_over();
  return call;
} catch (const Error& error) {
  shortage_.note(error, Clock::now());
  throw;
}

/// Whether this rank is to call that one, as the relay.
bool RemoteHosts::lacks_line(const Far& other) const noexcept {
  return is_relay_ && !other.call && !other.line && !other.is_gone && !has_refused(other);
}

/// Whether nobody is at its door, where it cannot be told yet whether all from there was heard.
bool RemoteHosts::has_refused(const Far& other) const noexcept {
  return other.refused_since != Clock::time_point{} && !other.is_gone;
}

void RemoteHosts::call(WorldRank rank) {
  Far& other = far(rank);
  if (!lacks_line(other)) return;
  other.next_call = Clock::now() + kBetweenCalls;
  try {
    other.call =
        begin_call({.role = Role::relay, .from = rank_, .to = rank}, Hearing::kSilence,
                   [this, rank](Call::Outcome outcome) { on_outcome(rank, std::move(outcome)); });
    other.hearing.ask(other.call->began());
  } catch (const Error&) {  // a shortage; it is tried again
  }
}

void RemoteHosts::on_outcome(WorldRank rank, Call::Outcome outcome) {
  Far& other = far(rank);
  if (outcome.is_heard) other.hearing.heard(other.call->began());
  events_.discard(std::move(other.call));
  other.unanswered = outcome.error_number == ETIMEDOUT ? other.unanswered + 1 : 0;
  if (!outcome.distrust.empty() && !std::exchange(other.is_distrusted, true))
    log(LogLevel::error, outcome.distrust);
  if (outcome.error_number == ECONNREFUSED) mark_gone(other);
  // A process that ends closes its lines first and its door last: whoever calls between is reset.
  if (outcome.error_number == ECONNRESET) other.next_call = Clock::now() + kSweep;
  if (outcome.socket && is_relay_) {
    const std::vector<net::Frame> reports =
        has_parted(rank) ? std::vector<net::Frame>() : all_reports();  // before there is a line
    other.line = std::make_unique<Connection>(
        events_, std::move(outcome.socket), kMostFrameBytes,
        [this, rank](const net::Frame& frame) { hear_question(rank, frame); },
        [this, rank](int error_number) { on_line_end(rank, error_number); });
    other.line_id = ++last_line_id_;
    for (const net::Frame& report : reports) other.line->send(report);
  }
  show_told();
  update_facts();
}

void RemoteHosts::on_line_end(WorldRank rank, int error_number) {
  Far& other = far(rank);
  listen_for(other);
  drop(std::move(other.line));
  other.line_id = 0;
  other.beat.reset();
  if (error_number == ECONNREFUSED) mark_gone(other);
  if (error_number == ENOMEM) {
    next_sweep_ = {};  // which calls, but not at every turn
  } else {
    call(rank);
  }
  update_facts();
}

/// Nobody is at its door any more. What was left here before that stands at the own one, where all
/// are let in first, if that can be done in the time that a note is worth.
void RemoteHosts::mark_gone(Far& other) {
  const bool are_heard = door_.hear_waiting();
  const auto now = Clock::now();
  if (other.refused_since == Clock::time_point{}) other.refused_since = now;
  other.is_gone = are_heard || now >= other.refused_since + kNoteSilence;
}

/// Not at once: it may be the one that speaks. Another one may stand in its place by then.
void RemoteHosts::drop(std::unique_ptr<Connection> connection) {
  connection->give_up();
  events_.discard(std::move(connection));
}

// ---- who calls ---------------------------------------------------------------------------------

std::optional<net::Key> RemoteHosts::key_for(const Hello& hello) {
  if (hello.to != rank_ || roster_.is_here(hello.from)) return std::nullopt;
  return keys_.with(hello.from, plates_[hello.from.index()].public_key);
}

Answer RemoteHosts::on_hello(const Hello& hello) {
  return hello.role == Role::relay ? Answer::welcome : data_.on_hello(hello);
}

void RemoteHosts::on_guest(const Hello& hello, net::Secured socket) {
  if (hello.role == Role::data) return data_.on_guest(hello, std::move(socket));
  if (hello.role == Role::note) return hear_note(hello.from, std::move(socket));
  const WorldRank rank = hello.from;
  Far& other = far(rank);
  net::end_if_silent(socket.socket.get(), Hearing::kSilence);
  auto from = std::make_unique<Connection>(
      events_, std::move(socket), kMostFrameBytes,
      [this, rank](const net::Frame& frame) { hear_relay(rank, frame); },
      [this, rank](int) { on_relay_end(rank); });
  std::swap(other.from, from);
  const int host = roster_.host_of(rank);
  relay_of_[static_cast<std::size_t>(host)] = rank.value;
  if (from) drop(std::move(from));
  ask_again(host);
  update_facts();
}

void RemoteHosts::on_relay_end(WorldRank rank) {
  drop(std::move(far(rank).from));
  int& relay = relay_of_[static_cast<std::size_t>(roster_.host_of(rank))];
  if (relay == rank.value) relay = -1;
  update_facts();
}

void RemoteHosts::hear_note(WorldRank rank, net::Secured socket) {
  Far& other = far(rank);
  std::list<Note> fresh(1);
  const auto note = fresh.begin();
  note->heard = Clock::now();
  note->connection = std::make_unique<Connection>(
      events_, std::move(socket), kMostFrameBytes,
      [this, rank, note](const net::Frame& frame) {
        note->heard = Clock::now();
        if (frame.type != kReport) return;
        persist([&] { hear_report(rank, frame); });  // who leaves says it once
      },
      [this, rank, note](int) {
        drop_note(far(rank), note);
        update_facts();
      });
  if (other.notes.size() == kMostNotes) drop_note(other, other.notes.begin());
  other.notes.splice(other.notes.end(), fresh);
}

void RemoteHosts::drop_note(Far& other, std::list<Note>::iterator note) {
  auto connection = std::move(note->connection);
  other.notes.erase(note);
  drop(std::move(connection));
}

/// What the relay of a host was asked that is no more is asked of the next one.
void RemoteHosts::ask_again(int host) {
  for (const Question& question : view_.open_questions(roster_.host(host).ranks)) put(question);
}

void RemoteHosts::hear_relay(WorldRank rank, const net::Frame& frame) {
  if (frame.type == kReport) return hear_report(rank, frame);
  if (frame.type != kVote) return;
  take_vote(roster_.host_of(rank), frame.body);
  rouse();
}

void RemoteHosts::hear_report(WorldRank rank, const net::Frame& frame) {
  const int host = roster_.host_of(rank);
  std::optional<Report> report = decode_report(frame.body, roster_.world_size());
  if (!report || roster_.host_of(report->rank) != host) {
    return log(LogLevel::error, "rank " + std::to_string(rank.value) + " on " +
                                    roster_.host(host).name + " sent what is no report: dropped");
  }
  view_.take(*std::move(report));
  ring(board_.bell(slot_));
}

void RemoteHosts::hear_question(WorldRank rank, const net::Frame& frame) {
  if (frame.type != kQuestion || !far(rank).line) return;
  const std::optional<Question> question = decode_question(frame.body, roster_.world_size());
  if (!question || !roster_.is_here(question->rank) || has_parted(rank)) return;
  far(rank).line->send(
      {.type = kReport, .id = 0, .body = encode(reporter_.answer(*question), Clock::now())});
}

void RemoteHosts::take_vote(int host, const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  if (inbox_.is_relay) {
    inbox_.frames.emplace_back(host, bytes);
  } else {
    keep_vote(host, bytes);
  }
}

/// Any thread, with mutex_.
void RemoteHosts::keep_vote(int host, const std::string& bytes) {
  auto frame = decode_vote_frame(bytes, roster_.host_count());
  if (!frame) return;
  auto& kept = inbox_.kept[static_cast<std::size_t>(host)];
  if (kept) frame = merged(*kept, *std::move(frame));  // where this throws it is there still
  kept = std::move(frame);
}

// ---- as the relay ------------------------------------------------------------------------------

std::vector<net::Frame> RemoteHosts::all_reports() const { return frames_of(reporter_.all()); }

void RemoteHosts::tell_news() {
  owes_news_ = is_relay_;  // where this throws the sweep does it
  if (!is_relay_) return;
  const std::vector<net::Frame> frames = frames_of(reporter_.news());
  visit_far([&](WorldRank rank, Far& other) {
    if (!other.line || has_parted(rank)) return;
    for (const net::Frame& frame : frames) other.line->send(frame);
  });
  reporter_.mark_told();
  owes_news_ = false;
  show_told();
}

/// If our kernel has all of it for each rank of another host that is there.
void RemoteHosts::show_told() noexcept {
  if (!is_relay_ || owes_news_) return;
  bool are_told = true;
  visit_far([&](WorldRank rank, const Far& other) {
    const bool is_told = other.line && other.line->has_sent();
    are_told = are_told && (is_told || other.is_gone || has_parted(rank));
  });
  if (are_told) return reporter_.show_told();
  next_sweep_ = std::min(next_sweep_, Clock::now() + kSweep);
}

void RemoteHosts::end_lines() {
  visit_far([&](WorldRank, Far& other) {
    if (other.call) {
      other.call->give_up();
      events_.discard(std::move(other.call));
    }
    if (other.line) other.line->finish();
  });
}

void RemoteHosts::leave_note(const std::set<WorldRank>& lost) {
  std::vector<WorldRank> to;
  visit_far([&](WorldRank rank, const Far&) {
    if (!lost.contains(rank) && !has_parted(rank)) to.push_back(rank);
  });
  (void)reporter_.news();
  reporter_.mark_told();
  notes_.leave(to, all_reports());
  has_left_note_ = true;
}

void RemoteHosts::rouse() noexcept { rouse_control(board_, slot_); }

HostFacts RemoteHosts::facts_of_host(int host, Clock::time_point now) {
  HostFacts facts;
  std::uint64_t newest_line = 0;
  bool is_heard = false, is_doubtful = true, is_read = true, is_gone = true, has_left = true;
  for (const WorldRank rank : roster_.host(host).ranks) {
    Far& other = far(rank);
    // What was acknowledged while this thread did not run counts as well.
    if (other.hearing.is_doubtful(now)) listen_for(other);
    // Only the relay asks; what is open from the time when this rank was it says nothing.
    const bool is_silent = is_relay_ && other.hearing.is_silent(now);
    is_heard = is_heard || (!other.is_gone && !is_silent);
    is_doubtful = is_doubtful && (other.is_gone || (is_relay_ && other.hearing.is_doubtful(now)));
    is_read = is_read && !other.line && !other.from && other.notes.empty();
    is_gone = is_gone && other.is_gone;
    has_left = has_left && view_.has_left(rank);
    newest_line = std::max(newest_line, other.line_id);
    if (!other.is_gone) facts.heard = std::max(facts.heard, other.hearing.last());
  }
  const int relay = relay_of_[static_cast<std::size_t>(host)];
  if (relay >= 0) facts.connection = far(WorldRank(relay)).line_id;
  // Its next relay keeps what comes until then.
  if (facts.connection == 0) facts.connection = newest_line;
  // What it has said may still have to be read.
  if (is_gone && is_read) facts.state = has_left ? HostFacts::State::left : HostFacts::State::dead;
  if (!is_gone && is_doubtful) facts.state = HostFacts::State::doubtful;
  if (!is_gone && !is_heard) facts.state = HostFacts::State::cut;
  return facts;
}

void RemoteHosts::update_facts() {
  const auto now = Clock::now();
  bool is_news = false;
  {
    const std::lock_guard lock(mutex_);
    for (int host = 0; host < roster_.host_count(); ++host) {
      if (host == roster_.own_host()) continue;
      HostFacts& there = facts_[static_cast<std::size_t>(host)];
      const HostFacts facts = facts_of_host(host, now);
      is_news = is_news || facts.state != there.state || facts.connection != there.connection;
      there = facts;
    }
  }
  if (is_relay_ && is_news) rouse();
}

}  // namespace tutti::control
