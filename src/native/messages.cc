#include "native/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/cpu_time.h"
#include "base/memory_reserve.h"
#include "control/judge/clock.h"
#include "group/check.h"

namespace tutti::native {

/// Between two looks for an answer of another host, which comes in much less.
constexpr std::chrono::milliseconds kAnswerMayCome{20};

// ---- calls

bool Transfer::step() {
  if (ended()) return true;
  messages_.drive(this);
  return ended();
}

/// The patience of a blocking transfer.
class Messages::TransferPatience final : public Patience {
 public:
  explicit TransferPatience(Transfer& transfer) noexcept : transfer_(transfer) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    return transfer_.messages_.ask(transfer_, now, next, program_);
  }
  bool awaits_core(int core) const noexcept override {
    return transfer_.messages_.membership_.is_on_core(core, transfer_.awaited());
  }

 private:
  Transfer& transfer_;
  control::ProgramWait program_;
};

Messages::Messages(Channels& channels, control::Membership& membership)
    : channels_(channels),
      membership_(membership),
      waiter_(waiter_with(membership, channels.alarm())),
      eager_bytes_(std::min(kEagerBytes, channels.max_payload())),
      peers_(static_cast<std::size_t>(membership.group_size())),
      matcher_(membership.group_size(), kEagerBytes, *this) {
  for (int rank = 0; rank < membership.group_size(); ++rank) {
    peer(rank).rank = rank;
    peer(rank).connection = channels.connection(rank);
  }
}

void Messages::run(const Request& request, group::Match* match) {
  Transfer transfer(*this, request, match);
  membership_.enter(request);
  submit(transfer);
  if (transfer.is_send() && request.message.peer == membership_.rank()) must_be_matched(transfer);
  TransferPatience patience(transfer);
  for (;;) {
    switch (wait_among(
        crowd_, waiter_, patience, [&] { return transfer.step(); },
        [&] { return transfer.ended(); })) {
      case WaitResult::ready:
        leave(transfer);
        if (transfer.was_returned()) membership_.throw_gave_up(request, transfer.held_back_);
        return;
      case WaitResult::aborted:
        if (withdraw(transfer, true)) membership_.throw_cause(request);
        break;
      case WaitResult::gave_up:
        if (withdraw(transfer, false)) {
          leave(transfer);
          membership_.throw_gave_up(request, transfer.held_back_);
        }
        break;
    }
  }
}

/// Throws kInvalidArgument if nobody has posted the recv: the thread that sends to its own rank
/// will not come to do so.
void Messages::must_be_matched(Transfer& send) {
  take_token(&send);
  take_in();
  pump();
  const bool is_stuck = !send.ended() && membership_.abort_word().load() == 0;
  if (is_stuck) forget(send);
  give_token();
  if (!is_stuck) return;
  leave(send);
  throw group::make_error(
      ErrorCode::kInvalidArgument, *send.request_, membership_.self(),
      send.is_buffered()
          ? fmt::format("rank {} may have {} bytes of messages to itself that were not received, "
                        "and with this one there were more: call recv first",
                        membership_.rank(), kMaxUnmatchedBytes)
          : fmt::format("a blocking send to oneself (rank {}) must find its recv posted, and there "
                        "is none: call recv with tutti::async first, or send with tutti::async",
                        membership_.rank()));
}

/// On the board.
void Messages::leave(const Transfer& transfer) noexcept {
  if (!transfer.is_matched_only()) membership_.leave(*transfer.request_);
}

void Messages::submit(Transfer& transfer) {
  if (transfer.is_asynchronous()) pending_.fetch_add(1);
  if (token_.try_take()) {
    own_ = &transfer;
    take_in();
    place(transfer);
    pump();
    return give_token();
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.append(transfer);
    inbox_full_.store(true);
  }
  drive(&transfer);
}

bool Messages::drive(Transfer* own) noexcept {
  if (!token_.try_take()) return false;
  own_ = own;
  take_in();
  pump();
  give_token();
  return true;
}

void Messages::take_token(Transfer* own) noexcept {
  token_.take();
  own_ = own;
}

void Messages::give_token() noexcept {
  own_ = nullptr;
  const bool wake = std::exchange(others_ended_, false);
  const bool refused = token_.give();
  if (wake) crowd_.wake_done();
  if (wake || refused) membership_.notify(membership_.rank());
}

// ---- asynchronous transfers

template <class Visit>
void Messages::visit_sends(const PostedLine& line, Visit&& visit) {
  for (Posted *send = line.first, *next = nullptr; send != nullptr; send = next) {
    next = send->in_tag.next;
    if (transfer_of(*send).is_asynchronous()) visit(transfer_of(*send));
  }
}

template <class Visit>
void Messages::visit_pending(Visit&& visit) {
  for (const Peer& each : peers_) {
    each.tags.each([&](const Tag& tag) { visit_sends(tag.sends, visit); });
  }
  visit_sends(unplaced_, visit);
  matcher_.each([&](Posted& receive) {
    if (transfer_of(receive).is_asynchronous()) visit(transfer_of(receive));
  });
}

// A look at a transfer comes right after everything that has come was taken in, and while no other
// thread can be in the middle of that: what a peer that has left sent before must count.

Patience::Verdict Messages::ask(Transfer& transfer, Deadline::Clock::time_point now,
                                Deadline::Clock::time_point* next,
                                control::ProgramWait& program) noexcept {
  *next = now + std::chrono::milliseconds(1);
  if (!token_.try_take()) return Patience::Verdict::keep_waiting;
  own_ = &transfer;
  take_in();
  pump();
  Patience::Verdict verdict = Patience::Verdict::keep_waiting;
  if (!transfer.ended()) {
    guarded([&] {
      read_clock(transfer, now);
      verdict = membership_.ask(*transfer.request_, transfer.awaited(), transfer.clock_, now, next,
                                &program);
    });
  }
  give_token();
  return verdict;
}

void Messages::ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept {
  if (!token_.try_take()) {
    *next = std::min(*next, now + std::chrono::milliseconds(1));
    return;
  }
  const auto computed = thread_cpu_time();
  take_in();
  pump();
  guarded([&] { look_at_all(now, next); });
  // Who waits beside this shows it only if it was looked at.
  if (owes()) *next = std::min(*next, now + control::kLongestBackoff);
  *next = std::max(*next, now + control::pause_after(thread_cpu_time() - computed));
  give_token();
}

void Messages::read_clock(Transfer& transfer, Deadline::Clock::time_point now) {
  transfer.clock_.matched = transfer.matched() || transfer.is_recalled();  // its peer has to act
  transfer.clock_.more_comes = more_comes(transfer);
  transfer.clock_.in_flight = is_in_flight(transfer, now);
}

void Messages::look_at_all(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) {
  std::optional<control::GroupFacts> facts;  // one reading for all: there may be thousands
  std::vector<int> to_freeze;
  visit_pending([&](Transfer& transfer) {
    if (now < transfer.next_look_) {
      *next = std::min(*next, transfer.next_look_);
      return;
    }
    auto wanted = Deadline::Clock::time_point::max();
    read_clock(transfer, now);
    if (!facts) facts = membership_.read_facts();
    const Patience::Verdict verdict = membership_.ask(
        *transfer.request_, transfer.awaited(), transfer.clock_, now, &wanted, nullptr, &*facts);
    transfer.next_look_ = wanted;
    *next = std::min(*next, wanted);
    if (verdict == Patience::Verdict::keep_waiting || transfer.matched()) return;
    if (is_announced(transfer) && peer(transfer.awaited()).connection == nullptr) {
      to_freeze.push_back(transfer.awaited());
      return;
    }
    if (transfer.time_passed_ == Deadline::Clock::time_point{}) transfer.time_passed_ = now;
    if (!membership_.has_word_of(transfer.awaited(), transfer.time_passed_, now)) {
      transfer.next_look_ = now + kAnswerMayCome;
      *next = std::min(*next, transfer.next_look_);
      return;
    }
    transfer.held_back_ = held_back(transfer);
    if (is_announced(transfer)) {
      return recall(peer(transfer.awaited()), transfer, std::make_unique<Error>(gave_up(transfer)));
    }
    const Error failure = gave_up(transfer);
    forget(transfer);
    fail(transfer, failure);
  });
  std::sort(to_freeze.begin(), to_freeze.end());
  to_freeze.erase(std::unique(to_freeze.begin(), to_freeze.end()), to_freeze.end());
  for (const int rank : to_freeze) {
    if (!give_up_announced(peer(rank), now)) {
      *next = std::min(*next, now + std::chrono::milliseconds(1));
    }
  }
}

bool Messages::give_up_announced(Peer& to, Deadline::Clock::time_point now) {
  if (!freeze(to)) return false;
  guarded([&] {
    to.tags.each([&](const Tag& tag) {
      visit_sends(tag.sends, [&](Transfer& transfer) {
        if (!is_announced(transfer) || !transfer.clock_.arrive.expired(now)) return;
        const Error failure = gave_up(transfer);
        take_back_announced(to, transfer);
        fail(transfer, failure);
      });
    });
  });
  thaw(to);
  return true;
}

Error Messages::gave_up(const Transfer& transfer) const {
  try {
    membership_.throw_gave_up(*transfer.request_, transfer.held_back_, transfer.time_passed_);
  } catch (const Error& error) {
    return error;
  }
}

/// Ends what is in no line any more.
void Messages::fail(Transfer& transfer, const Error& failure) noexcept {
  pending_.fetch_sub(1);
  others_ended_ = true;
  transfer.on_failure(failure);
}

void Messages::fail_pending() noexcept {
  take_token();
  take_in();
  visit_pending([&](Transfer& transfer) {
    std::optional<Error> failure;
    until_done([&] { failure = membership_.error(transfer.request_); });
    forget(transfer);
    fail(transfer, *failure);
  });
  give_token();
}

// ---- ends

/// Ends `transfer`, and younger ones of its tag that waited for it, unless an older one is under
/// way.
void Messages::complete(Transfer& transfer) {
  transfer.state.store(State::complete);
  end_completed(*transfer.line_);
}

void Messages::end_completed(PostedLine& line) noexcept {
  while (line.first != nullptr && line.first->state.load() == State::complete) {
    end(transfer_of(*line.first));
  }
}

void Messages::end(Transfer& transfer) noexcept {
  transfer.line_->remove(transfer);
  if (&transfer != own_) others_ended_ = true;
  if (transfer.is_asynchronous()) pending_.fetch_sub(1);
  transfer.on_end();
}

}  // namespace tutti::native
