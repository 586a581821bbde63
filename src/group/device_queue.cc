#include "group/device_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/log.h"
#include "group/check.h"
#include "group/through_aborts.h"
#include "group/under_way.h"

namespace tutti::group {

namespace {

using Clock = Deadline::Clock;
using device::Current;
using device::Event;
using device::Passage;

/// The device rings no bell: whoever waits for it looks again after so long.
constexpr std::chrono::microseconds kLookAgain{30};
/// How long it is looked at without a pause.
constexpr std::chrono::microseconds kSpin{30};
/// How long the thread helps one operation before it looks at the others.
constexpr std::chrono::microseconds kHelp{20};
/// What copies that are under way may still take when their group goes, or a call fails. They may
/// stand behind anything in the program's stream.
constexpr std::chrono::seconds kLastCopies{2};
/// How often copies that nobody waits for are looked at.
constexpr std::chrono::milliseconds kLookAfter{100};

/// A blocking collective that awaits its turn, as the others see it.
class Queued final : public control::ProgramAwaits {
 public:
  Queued(const control::Membership& membership, const Request& request) noexcept
      : membership_(membership), request_(request) {}
  const control::Membership& membership() const noexcept override { return membership_; }
  bool look(std::optional<control::WaitPart>* part) override {
    *part = membership_.awaits(request_, true);
    return true;
  }

 private:
  const control::Membership& membership_;
  const Request& request_;
};

/// Sleeps a little; only the kernel's clock ends it.
void pause_a_little() {
  Doorbell nobody_rings;
  wait_until(nobody_rings, Clock::now() + kLookAgain, [] { return false; });
}

/// What a part that knows of no operation throws gets the heading of one.
Error headed(const Error& failure, const Request& request, const control::Membership& membership) {
  return failure.context().op.empty() ? of_operation(failure, request, membership.self()) : failure;
}

/// Returns once the device `is_over` with the buffers of a call that has failed: the program is
/// about to be told, and may free them then.
template <class IsOver>
void let_go_of(IsOver&& is_over) noexcept {
  const Clock::time_point end = Clock::now() + kLastCopies;
  try {
    while (!is_over() && Clock::now() < end) pause_a_little();
  } catch (const std::exception&) {  // a device that is broken does nothing more
  }
}

/// Throws where the device has been at the copy for too long.
bool is_in(Passage& passage) {
  if (passage.is_in()) return true;
  passage.refuse_stall();
  return false;
}

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool overlaps(const Range& other) const noexcept {
    return begin < other.end && other.begin < end;
  }
};

Range range_of(const ConstBuffer& buffer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data);
  return {begin, begin + buffer.byte_count()};
}

}  // namespace

/// One collective, cut. Used by one thread at a time.
class DeviceQueue::Operation {
 public:
  /// By the thread that calls it: what the program's stream has been given so far comes before.
  Operation(DeviceQueue& queue, const Request& whole, std::vector<Request> pieces)
      : queue_(queue),
        device_(device_of(whole)),
        pieces_(std::move(pieces)),
        input_(range_of(whole.input)),
        output_(range_of(whole.output)) {
    if (!is_on_device(whole)) return;
    is_direct_ = queue.calls_.is_direct(whole);
    lane_ = &queue.lane(device_);
    const Current current(lane_->cuda(), device_.index);
    ready_.emplace(lane_->cuda());
    ready_->record(whole.stream);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool is_direct() const noexcept { return is_direct_; }
  bool is_staged() const noexcept { return lane_ != nullptr && !is_direct_; }
  bool is_done_on_host() const noexcept { return next_ == pieces_.size(); }
  /// Whether it reads and writes nothing that `earlier` writes, and writes nothing that it reads.
  bool is_free_of(const Operation& earlier) const noexcept {
    return !input_.overlaps(earlier.output_) && !output_.overlaps(earlier.output_) &&
           !output_.overlaps(earlier.input_);
  }

  /// Starts to copy in as many pieces as there is memory for. `must`: the next one has to be among
  /// them unless memory of others will come back.
  void begin_copies(bool must) {
    if (!is_staged() || begun_count_ == pieces_.size()) return;
    const Current current(lane_->cuda(), device_.index);
    queue_.reap();
    const bool may_come_back = queue_.is_leaving();
    while (begun_count_ < pieces_.size()) {
      begun_.push_back(queue_.make_passage(*lane_, pieces_[begun_count_]));
      const bool is_next = begun_count_ == next_;
      if (!begun_.back()->begin(*ready_, must && is_next && !may_come_back)) {
        begun_.pop_back();
        return;
      }
      ++begun_count_;
    }
  }
  bool is_next_in() {
    if (!is_staged()) return true;
    return begun_count_ > next_ && is_in(*begun_.front());
  }
  const Request& next() const { return pieces_[next_]; }

  /// Does the next piece, which is in.
  void run_next() {
    queue_.calls_.run(on_host());
    end_next();
  }
  /// The same by steps that do not block; true once it is done. A direct one is queued on the
  /// lane's stream.
  bool step_next() {
    if (!has_started_) {
      under_way_ = queue_.calls_.start(on_host());
      has_started_ = true;
    }
    if (!under_way_.wait_for(kHelp)) return false;
    has_started_ = false;
    end_next();
    return true;
  }
  /// What `stream` is given next comes after the operation, which is done on the host.
  void order(Stream stream) const {
    if (!over_) return;
    const Current current(lane_->cuda(), device_.index);
    over_->order(stream);
  }
  /// Whether the host is at a piece of it.
  bool is_under_way() const noexcept { return has_started_ && !under_way_.done(); }
  /// Starts nothing more. What it has begun to copy in is still read, and then over.
  void give_up() noexcept {
    begun_.clear();
    if (lane_ == nullptr) return;
    waited_for_until_ = Clock::now() + kLastCopies;
    try {
      // Copies in of pieces that are not done any more are over then, too.
      const Current current(lane_->cuda(), device_.index);
      Event read(lane_->cuda());
      read.record(lane_->in());
      read.order(lane_->out());
      mark_over();
    } catch (const std::exception&) {  // a device that is broken does nothing more
      over_.reset();
    }
  }
  /// Whether the device writes nothing more of what is done on the host, or was given up and has
  /// had its time.
  bool is_over() const { return !over_ || over_->done() || Clock::now() > waited_for_until_; }
  void let_go() noexcept {
    give_up();
    let_go_of([this] { return is_over(); });
  }

 private:
  Request on_host() const {
    if (is_staged()) return begun_.front()->on_host();
    Request request = pieces_[next_];
    if (!is_direct_) return request;
    request.stream = lane_->out();
    const Current current(lane_->cuda(), device_.index);
    ready_->order(lane_->out());
    return request;
  }
  void end_next() {
    if (is_staged()) copy_out();
    if (lane_ != nullptr && next_ + 1 == pieces_.size()) mark_over();
    ++next_;
  }
  void copy_out() {
    const Current current(lane_->cuda(), device_.index);
    begun_.front()->copy_out(*ready_);
    begun_.pop_front();
  }
  void mark_over() {
    const Current current(lane_->cuda(), device_.index);
    over_.emplace(lane_->cuda());
    over_->record(lane_->out());
  }

  DeviceQueue& queue_;
  const Device device_;
  const std::vector<Request> pieces_;
  const Range input_, output_;
  bool is_direct_ = false;
  device::Lane* lane_ = nullptr;  // null: host memory
  std::optional<Event> ready_, over_;
  Clock::time_point waited_for_until_ = Clock::time_point::max();
  std::deque<PassageOwner> begun_;  // from the next piece on
  std::size_t begun_count_ = 0, next_ = 0;
  bool has_started_ = false;
  Work under_way_;  // last: it ends before what it uses
};

/// An asynchronous operation. The thread does it; once the host's part is done, what the program's
/// stream is given next can come after it.
class DeviceQueue::Started : public WorkState, public control::ProgramAwaits {
 public:
  Started(DeviceQueue& queue, Request request) : WorkState(std::move(request)), queue_(queue) {}

  bool help(Clock::time_point until) override {
    return wait_through_aborts(
        queue_.membership_, until, [this] { return done(); }, this);
  }
  bool help_in_order(Clock::time_point until) override {
    const bool is_there = wait_through_aborts(
        queue_.membership_, until, [this] { return is_in_order() || done(); }, this);
    if (!is_there || !is_in_order()) return is_there;
    with_heading(request(), queue_.membership_.self(), [this] { order(request().stream); });
    return true;
  }
  bool is_in_order() const noexcept { return is_in_order_.load(); }
  void set_in_order() noexcept { is_in_order_.store(true); }
  /// Of something of this rank's own, unless the group has failed of another.
  void fail_group(const Error& failure) noexcept { queue_.fail(failure, request()); }
  void end_failed(const Error& failure) noexcept {
    fail_group(failure);
    end_failed();
  }
  /// With what the group has failed with.
  void end_failed() noexcept { end(queue_.membership_.error(&request())); }

 protected:
  DeviceQueue& queue() const noexcept { return queue_; }

 private:
  virtual void order(Stream stream) const = 0;
  const control::Membership& membership() const noexcept override { return queue_.membership_; }

  DeviceQueue& queue_;
  std::atomic<bool> is_in_order_{false};
};

class DeviceQueue::Entry final : public Started {
 public:
  Entry(DeviceQueue& queue, Request whole, std::vector<Request> pieces)
      : Started(queue, std::move(whole)),
        operation_(queue, WorkState::request(), std::move(pieces)) {}

  Operation& operation() noexcept { return operation_; }

 private:
  void order(Stream stream) const override { operation_.order(stream); }
  bool look(std::optional<control::WaitPart>* part) override {
    // Once the host's part is done it is the device's.
    if (!done() && !is_in_order()) *part = queue().membership_.awaits(request(), true);
    return true;
  }

  Operation operation_;
};

/// The memory of a message, on its way through the host.
class DeviceQueue::Carried {
 public:
  /// Starts to copy in, after what the program's stream has been given so far.
  Carried(DeviceQueue& queue, const Request& message)
      : queue_(queue),
        lane_(queue.lane(device_of(message))),
        passage_(queue.make_passage(lane_, message)) {
    const Current current(lane_.cuda(), lane_.device());
    ready_.emplace(lane_.cuda());
    ready_->record(message.stream);
    queue_.reap();
    passage_->begin(*ready_, true);
  }
  Carried(const Carried&) = delete;
  Carried& operator=(const Carried&) = delete;
  ~Carried() {
    passage_.reset();
    queue_.reap();
  }

  void wait_in() {
    queue_.wait_for_device(passage_->real(), [this] { return is_in(*passage_); });
  }
  Request on_host() const { return passage_->on_host(); }
  void copy_out() {
    const Current current(lane_.cuda(), lane_.device());
    passage_->copy_out(*ready_);
  }
  /// Throws where the device has been at a copy for too long.
  bool is_over() {
    if (passage_->is_over()) return true;
    passage_->refuse_stall();
    return false;
  }
  void order(Stream stream) const {
    const Current current(lane_.cuda(), lane_.device());
    passage_->order(stream);
  }
  void let_go() noexcept {
    let_go_of([this] { return passage_->is_over(); });
  }

 private:
  DeviceQueue& queue_;
  device::Lane& lane_;
  PassageOwner passage_;
  std::optional<Event> ready_;
};

/// An asynchronous receive into device memory: one into host memory, then a copy.
class DeviceQueue::Received final : public Started {
 public:
  Received(DeviceQueue& queue, const Request& message)
      : Started(queue, unwatched(message)), carried_(queue, message) {}

  /// Once it is shared by those who step it.
  void start() { host_ = queue().calls_.start(carried_.on_host()); }
  bool cancel() override { return host_.cancel(); }

  /// Does what can be done now; true once it has ended.
  bool step(bool* has_moved) noexcept {
    if (!is_in_order()) {
      if (!host_.done()) return false;
      *has_moved = true;
      if (const std::optional<Error> failure = host_.error()) {
        end(headed(*failure, request(), queue().membership_));
        return true;
      }
    }
    try {
      if (!is_in_order()) carried_.copy_out();
      set_in_order();
      if (!carried_.is_over()) return false;
      end();
    } catch (const Error& failure) {
      end_failed(failure);
    }
    return true;
  }

 private:
  /// Its observer is told by the receive into host memory.
  static Request unwatched(Request message) {
    message.observer = nullptr;
    return message;
  }
  void order(Stream stream) const override { carried_.order(stream); }
  bool look(std::optional<control::WaitPart>* part) override {
    if (!host_.done()) *part = queue().membership_.awaits(request(), false);
    return true;
  }

  Carried carried_;
  Work host_;
};

DeviceQueue::DeviceQueue(control::Membership& membership, std::string library,
                         std::size_t staging_bytes, Calls calls)
    : membership_(membership),
      library_(std::move(library)),
      staging_bytes_(staging_bytes),
      calls_(std::move(calls)),
      thread_(*membership.waiter().bell) {}

DeviceQueue::~DeviceQueue() {
  if (pending() + messages_pending_.load() > 0) {
    membership_.fail(destroyed_too_early(membership_.rank()));
    wait_through_aborts(membership_, Clock::time_point::max(), [this] { return pending() == 0; });
  }
  wait_through_aborts(membership_, Clock::now() + kLastCopies,
                      [this] { return unfinished_.load() + messages_pending_.load() == 0; });
  thread_.stop();
  received_.splice(received_.end(), new_received_);
  for (const std::shared_ptr<Received>& received : received_) received->end_failed();
  for (const std::shared_ptr<Entry>& entry : on_device_) {
    entry->end_failed(Error(ErrorCode::kTimeout, "the device does not end what it was given"));
  }
  const Clock::time_point end = Clock::now() + kLastCopies;
  for (reap(); is_leaving() && Clock::now() < end; reap()) pause_a_little();
  if (!is_leaving()) return;
  log(LogLevel::warn,
      fmt::format("rank {}: copies from and to device memory do not end; the memory "
                  "they use is left behind",
                  membership_.rank()));
  (void)new (std::nothrow) std::pair(std::move(leaving_), std::move(lanes_));
}

device::Lane& DeviceQueue::lane(const Device& device) {
  const std::lock_guard lock(lanes_mutex_);
  std::unique_ptr<device::Lane>& lane = lanes_[device.index];
  if (!lane) lane = std::make_unique<device::Lane>(cuda(), device.index, staging_bytes_);
  return *lane;
}

template <class Done>
void DeviceQueue::wait_for_device(const Request& request, Done&& done) {
  const Clock::time_point spin_end = Clock::now() + kSpin;
  while (!done()) {
    if (failed()) membership_.throw_cause(request);
    if (Clock::now() < spin_end) {
      pause_core();
    } else {
      pause_a_little();
    }
  }
}

/// Whatever else is thrown is this rank's alone, and fails the group.
template <class Call>
void DeviceQueue::throwing_errors(const Request& request, Call&& call) {
  try {
    call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    membership_.fail_with_thrown();
    membership_.throw_cause(request);
  }
}

/// What fails there is the end of the group: the others must not wait for this rank.
template <class Call>
void DeviceQueue::at_device(const Request& request, Call&& call) {
  try {
    call();
  } catch (const Error& failure) {
    fail(failure, request);
    throw;
  }
}

DeviceQueue::PassageOwner DeviceQueue::make_passage(device::Lane& lane, const Request& real) {
  return {new Passage(lane, real, membership_.rank()), Leave{this}};
}

void DeviceQueue::leave(std::unique_ptr<Passage> passage) noexcept {
  const std::lock_guard lock(leaving_mutex_);
  leaving_.push_back(std::move(passage));
}

bool DeviceQueue::is_leaving() {
  const std::lock_guard lock(leaving_mutex_);
  return !leaving_.empty();
}

/// A copy that has failed is over, too: its device says so to whoever uses it next.
void DeviceQueue::reap() noexcept {
  const auto is_over = [](Passage& passage) {
    try {
      return passage.is_over();
    } catch (const Error&) {
      return true;
    }
  };
  std::list<std::unique_ptr<Passage>> over;  // goes without the lock: what it owns may take long
  const std::lock_guard lock(leaving_mutex_);
  for (auto passage = leaving_.begin(); passage != leaving_.end();) {
    const auto next = std::next(passage);
    if (is_over(**passage)) over.splice(over.end(), leaving_, passage);
    passage = next;
  }
}

/// Above all copies out of blocking calls, which have returned: this rank may wait for its stream
/// in the device by now, where it is told nothing.
void DeviceQueue::look_after_copies() noexcept {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookAfter;
  if (!is_stuck_ && !is_drained_.load()) fail_stuck();
  reap();
}

void DeviceQueue::fail_stuck() noexcept {
  std::optional<std::pair<Error, Request>> found;
  {
    const std::lock_guard lock(leaving_mutex_);
    for (const std::unique_ptr<Passage>& passage : leaving_) {
      try {
        if (!passage->is_over()) passage->refuse_stall();
      } catch (const Error& failure) {
        found.emplace(failure, passage->real());
        break;
      }
    }
  }
  if (!found) return;
  fail(found->first, found->second);
  is_stuck_ = true;
}

void DeviceQueue::fail(const Error& failure, const Request& request) noexcept {
  if (failed()) return;
  const Error own = headed(failure, request, membership_);
  membership_.fail({own.code(), own.what(), {membership_.rank()}, {}});
}

void DeviceQueue::run(const Request& whole, std::vector<Request> pieces) {
  if (is_on_device(whole) && calls_.is_direct(whole)) {
    wait_for_pending(pending_, whole);
    return calls_.run(pieces.front());  // on the program's own stream
  }
  std::optional<Operation> operation;
  try {
    throwing_errors(whole, [&] {
      operation.emplace(*this, whole, std::move(pieces));
      if (operation->is_staged()) ensure_thread();  // looks after the copies out
      wait_for_pending(operation->is_staged() ? unfinished_ : pending_, operation->next());
      while (!operation->is_done_on_host()) {
        wait_for_device(operation->next(), [&] {
          operation->begin_copies(true);
          return operation->is_next_in();
        });
        operation->run_next();
      }
      operation->order(whole.stream);
    });
  } catch (const Error& failure) {
    if (!is_harmless(failure.code())) fail(failure, whole);  // the others need not wait, too
    if (operation) operation->let_go();
    throw;
  }
}

Work DeviceQueue::start(Request whole, std::vector<Request> pieces) {
  ensure_thread();
  auto entry = std::make_shared<Entry>(*this, std::move(whole), std::move(pieces));
  {
    const std::lock_guard lock(mutex_);
    pending_.fetch_add(1);
    unfinished_.fetch_add(1);
    new_entries_.push_back(entry);
  }
  thread_.wake();
  return Work(std::move(entry));
}

/// Collectives are done in the order of their calls.
void DeviceQueue::wait_for_pending(const std::atomic<std::size_t>& count, const Request& request) {
  if (count.load() == 0) return;
  Queued queued(membership_, request);
  wait_through_aborts(
      membership_, Clock::time_point::max(), [&] { return count.load() == 0; }, &queued);
  if (failed()) membership_.throw_cause(request);
}

void DeviceQueue::run_message(const Request& message) {
  std::optional<Carried> carried;
  try {
    throwing_errors(message, [&] {
      at_device(message, [&] {
        ensure_thread();
        carried.emplace(*this, message);
        carried->wait_in();
      });
      calls_.run(carried->on_host());
      at_device(message, [&] {
        carried->copy_out();
        carried->order(message.stream);
      });
    });
  } catch (const Error&) {
    if (carried) carried->let_go();
    throw;
  }
}

Work DeviceQueue::start_message(const Request& message) {
  ensure_thread();
  if (message.op == Op::recv) {
    auto received = std::make_shared<Received>(*this, message);
    received->start();
    {
      const std::lock_guard lock(mutex_);
      messages_pending_.fetch_add(1);
      new_received_.push_back(received);
    }
    thread_.wake();
    return Work(std::move(received));
  }
  auto carried = std::make_shared<Carried>(*this, message);
  try {
    carried->wait_in();
  } catch (const Error&) {
    carried->let_go();
    throw;
  }
  return continue_with(calls_.start(carried->on_host()), [carried](const Error*) {});
}

void DeviceQueue::drain(Deadline deadline) {
  const auto left = [this] { return unfinished_.load() + messages_pending_.load(); };
  if (wait_through_aborts(membership_, deadline.end(Clock::now()), [&] { return left() == 0; })) {
    is_drained_.store(true);
    return;
  }
  throw still_under_way(membership_.rank(), left());
}

void DeviceQueue::ensure_thread() {
  if (has_thread_.load()) return;
  const std::lock_guard lock(mutex_);
  if (has_thread_.load()) return;
  thread_.add(*this);
  has_thread_.store(true);
}

// ---- the thread

control::Driver::Step DeviceQueue::step() noexcept {
  {
    const std::lock_guard lock(mutex_);
    std::move(new_entries_.begin(), new_entries_.end(), std::back_inserter(entries_));
    new_entries_.clear();
    received_.splice(received_.end(), new_received_);
  }
  look_after_copies();
  bool has_moved = step_collectives();
  has_moved |= end_those_over();
  has_moved |= step_messages();
  if (has_moved) membership_.notify(membership_.rank());
  if (entries_.empty() && on_device_.empty() && received_.empty()) return Step::idle;
  if (has_moved) return Step::moved;
  const bool only_awaits_peers =
      entries_.empty() && on_device_.empty() &&
      std::none_of(received_.begin(), received_.end(),
                   [](const auto& received) { return received->is_in_order(); });
  if (only_awaits_peers) return Step::waiting;
  pause_a_little();
  return Step::moved;
}

/// Starts copies of those that wait, and does the next piece of the first. One that fails is told
/// to the program by end_those_over(), as one that is done: its buffers may be in use until then.
bool DeviceQueue::step_collectives() noexcept {
  if (entries_.empty()) return false;
  const std::shared_ptr<Entry> first = entries_.front();
  Operation& operation = first->operation();
  const auto fails = [&](const Error& failure) {
    first->fail_group(failure);
    if (operation.is_under_way()) return false;  // the abort ends it
    operation.give_up();
    return true;
  };
  try {
    if (!failed()) {
      begin_copies();
    } else if (!operation.is_under_way()) {
      membership_.throw_cause(first->request());
    }
    if (!operation.is_next_in()) return false;
    if (!std::exchange(first_has_begun_, true)) first->begin();
    if (!operation.step_next()) return false;
    if (!operation.is_done_on_host()) return true;
    first->set_in_order();
  } catch (const Error& failure) {
    if (!fails(failure)) return true;
  } catch (const std::exception& failure) {
    if (!fails(Error(ErrorCode::kSystem, failure.what()))) return true;
  }
  on_device_.push_back(first);
  first_has_begun_ = false;
  entries_.pop_front();
  pending_.fetch_sub(1);
  return true;
}

void DeviceQueue::begin_copies() {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    Operation& operation = (*entry)->operation();
    const auto is_free = [&](const std::shared_ptr<Entry>& earlier) {
      return operation.is_free_of(earlier->operation());
    };
    if (!std::all_of(on_device_.begin(), on_device_.end(), is_free) ||
        !std::all_of(entries_.begin(), entry, is_free)) {
      return;
    }
    operation.begin_copies(entry == entries_.begin());
  }
}

bool DeviceQueue::end_those_over() noexcept {
  bool ended = false;
  for (auto entry = on_device_.begin(); entry != on_device_.end();) {
    try {
      const Operation& operation = (*entry)->operation();
      const bool is_over = operation.is_over();
      if (!is_over && (operation.is_direct() || !is_stuck_)) {
        ++entry;
        continue;
      }
      // A device is let go of what has failed in the same way as of what is done.
      const bool is_done = is_over && operation.is_done_on_host();
      if (!is_done || (operation.is_direct() && failed())) {
        membership_.throw_cause((*entry)->request());
      }
      (*entry)->end();
    } catch (const Error& failure) {
      (*entry)->end_failed(failure);
    }
    entry = on_device_.erase(entry);
    unfinished_.fetch_sub(1);
    ended = true;
  }
  if (ended) reap();
  return ended;
}

bool DeviceQueue::step_messages() noexcept {
  bool has_moved = false;
  for (auto received = received_.begin(); received != received_.end();) {
    if (!(*received)->step(&has_moved)) {
      ++received;
      continue;
    }
    received = received_.erase(received);
    messages_pending_.fetch_sub(1);
    has_moved = true;
  }
  return has_moved;
}

/// What it waits for has deadlines of its own, but for copies that nobody waits for.
void DeviceQueue::ask(Clock::time_point, Clock::time_point* next) noexcept {
  look_after_copies();
  *next = next_look_;
}

}  // namespace tutti::group
