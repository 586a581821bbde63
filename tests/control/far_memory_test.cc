// Where the thread for other hosts finds no memory. The test is the rank on the other host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "control/board/layout.h"
#include "control/board/own_line.h"
#include "control/board/owner.h"
#include "control/far_host.h"
#include "control/hosts/door_notes.h"
#include "refused_memory.h"

namespace tutti::control {
namespace {

/// Refuses memory of the thread for other hosts as long as it lives.
class Refusal {
 public:
  Refusal(std::size_t first, std::size_t count) { refuse_memory_of("tutti-hosts", first, count); }
  ~Refusal() { refuse_memory_of(nullptr, 0, 0); }
  bool has_happened() const { return refusals() > before_; }

 private:
  const std::size_t before_ = refusals();
};

/// Rank 1, which hears what rank 0 says on its lines and in its note.
struct Hearer {
  explicit Hearer(Hosts& hosts)
      : far(hosts, [this](net::Secured guest) {
          ++lines;
          far.lines.push_back(std::make_unique<Connection>(
              far.events, std::move(guest), 1 << 20,
              [this](const net::Frame& frame) { hear(frame); }, [](int) {}));
        }) {}
  void hear(const net::Frame& frame) {
    if (frame.type != kReport) return void(++others);
    const auto report = decode_report(frame.body, 2);
    ASSERT_TRUE(report);
    has_left = has_left || report->has_left;
    if (report->line) state = report->line->state;
  }
  bool hears(const std::function<bool()>& what) {
    for (const auto end = Clock::now() + 5s; !what() && Clock::now() < end;)
      far.events.run(Clock::now() + 20ms);
    return what();
  }
  int lines = 0, others = 0;
  bool has_left = false;
  LineState state = LineState::free;
  FarRank far;
};

// Those that were found no memory for are told by the next sweep, which comes soon; those that may
// have been told in part by a new line.
TEST(FarMemory, NewsAreToldSoonWhateverIsRefused) {
  for (const std::size_t count : {1, 4}) {
    Hosts hosts;
    SlotOwner owner(hosts.board, SlotIndex(0));
    auto line = owner.open_line(2, 1, {WorldRank(0), WorldRank(1)});
    Hearer far(hosts);
    ASSERT_TRUE(far.hears([&] { return far.others > 0; })) << "a beat";
    auto soonest = Clock::duration::max();  // on the line that there was
    for (std::size_t first = 1;; ++first) {
      const int lines = far.lines;
      const LineState next = first % 2 == 0 ? LineState::meeting : LineState::open;
      const auto begin = Clock::now();
      const Refusal refusal(first, count);
      line->set_state(next);
      hosts.near.links().report();
      ASSERT_TRUE(far.hears([&] { return far.state == next; })) << count << " from " << first;
      if (!refusal.has_happened()) break;
      if (far.lines == lines) soonest = std::min(soonest, Clock::now() - begin);
    }
    EXPECT_LT(soonest, 250ms) << "a sweep comes every 500 ms of itself";
  }
}

TEST(FarMemory, ALineThatFindsNoneIsMadeAnewSoonAndNotAtOnce) {
  const auto begin = Clock::now();
  auto soonest = Clock::duration::max();
  Hosts hosts;
  Hearer far(hosts);
  constexpr int kLines = 6;
  for (int lines = 1; lines <= kLines; ++lines) {
    const auto since = Clock::now();
    ASSERT_TRUE(far.hears([&] { return far.lines == lines; })) << lines;
    if (lines > 1) soonest = std::min(soonest, Clock::now() - since);
    if (lines == kLines) break;
    std::this_thread::sleep_for(40ms);  // the sweep that looks after the call is over
    const Refusal refusal(1, 1);
    hosts.near.links().send(1, "a vote that finds no memory");
    ASSERT_TRUE(far.hears([&] { return refusal.has_happened(); }));
  }
  EXPECT_GE(Clock::now() - begin, (kLines - 1) * 100ms) << "it called at every turn";
  EXPECT_LT(soonest, 250ms) << "a sweep comes every 500 ms of itself";
}

TEST(FarMemory, WhoLeavesSaysSoWhateverIsRefused) {
  bool is_refused = true;
  for (std::size_t first = 1; is_refused; first += 2) {
    Hosts hosts;
    hosts.near.links().close();
    hosts.board.slot(SlotIndex(0)).state.store(RankState::left);
    run_posted(hosts);
    Hearer far(hosts);
    const Refusal refusal(first, 3);
    std::thread leaving([&] { hosts.near.leave({}); });
    EXPECT_TRUE(far.hears([&] { return far.has_left; })) << "3 from " << first;
    leaving.join();
    is_refused = refusal.has_happened() && !HasFailure();
  }
}

// Who has reset a note has not read it; who leaves says it again, unless it has gone already.
TEST(FarMemory, ANoteThatIsLeftIsReadWhateverIsRefused) {
  bool is_refused = true;
  for (std::size_t first = 1; is_refused; ++first) {
    Hosts hosts(net::Level::auth);
    net::Events events;
    DoorNotes notes(
        events,
        [&](WorldRank to, Call::OnOutcome on_outcome) {
          return std::make_unique<Call>(
              events, hosts.near_door, Hello{.role = Role::note, .from = WorldRank(1), .to = to},
              net::Level::auth, hosts.far_keys->with(kNear, hosts.keys.public_key()), 0ms,
              std::move(on_outcome));
        },
        1 << 20);
    notes.leave({kNear}, {{.type = kReport, .id = 0, .body = that_it_has_left()}});
    const Refusal refusal(first, 1);
    const auto end = Clock::now() + 10s;
    while (!notes.sweep(Clock::now()) && Clock::now() < end) {
      for (const auto soon = Clock::now() + 30ms; Clock::now() < soon;) {
        run_posted(hosts);
        events.run(Clock::now() + 10ms);
      }
    }
    EXPECT_TRUE(hosts.near.has_left(WorldRank(1))) << first;
    is_refused = refusal.has_happened() && !HasFailure();
  }
}

/// A note that is said once. From number `first` on nothing is granted for a while.
struct RefusedNote {
  explicit RefusedNote(std::size_t first) {
    Hosts hosts(net::Level::auth);
    leave(hosts, Note(hosts).proof());  // what is kept from one to the next has been granted
    Note note(hosts);
    const net::Fd socket = hosts.call_near();
    say(socket, note.proof());
    run_posted(hosts);
    std::optional<Refusal> refusal(std::in_place, first, 1 << 20);
    say(socket, note.tagged(kReport, that_it_has_left()));
    ::shutdown(socket.get(), SHUT_WR);
    const auto ends_by = [&](Deadline deadline) {
      return net::poll_readable(socket.get(), deadline) == net::PollResult::ready;
    };
    while (!refusal->has_happened() && !ends_by(Deadline::after(1ms))) {
    }
    is_refused = refusal->has_happened();
    const bool was_read = hosts.near.has_left(WorldRank(1));
    refusal.reset();
    EXPECT_TRUE(ends_by(Deadline::after(10s)));
    std::byte none;
    const bool ends_in_order =
        ::recv(socket.get(), &none, 1, 0) == 0 && !net::has_unacknowledged(socket.get());
    EXPECT_EQ(hosts.near.has_left(WorldRank(1)), ends_in_order) << first;
    is_read_later = ends_in_order && !was_read;
  }
  bool is_refused = false, is_read_later = false;
};

// What is refused before there is a report resets the note. A report that is there waits for
// memory.
TEST(FarMemory, ANoteThatEndsInOrderWasRead) {
  int read_later = 0;
  bool is_refused = true;
  for (std::size_t first = 1; is_refused && !HasFailure(); ++first) {
    const RefusedNote note(first);
    is_refused = note.is_refused;
    if (is_refused && note.is_read_later) ++read_later;
  }
  EXPECT_GT(read_later, 0);
}

/// The vote of host 1, which knows so many entries and tells the last one.
VoteFrame vote_after(std::uint64_t entries) {
  VoteFrame frame{.term = 7, .vote = {}};
  frame.vote.number = entries;
  Entry entry;
  entry.verdict.text = "entry " + std::to_string(entries) + ", which is told once";
  frame.entries.push_back(entry);
  return frame;
}

TEST(FarMemory, AVoteThatIsKeptOutlivesOneThatFindsNone) {
  bool is_refused = true;
  for (std::size_t first = 1; is_refused; ++first) {
    Hosts hosts;
    FarRelay far(hosts);
    const std::string first_vote = far.tagged(encode(vote_after(1)));
    say(far.socket, first_vote + far.tagged(encode(vote_after(1))));
    while (!hosts.near.links().receive()) std::this_thread::sleep_for(1ms);
    run_posted(hosts);  // the other one has come as well
    hosts.near.links().close();
    {
      const Refusal refusal(first, 1);
      say(far.socket, far.tagged(encode(vote_after(2))));
      ::shutdown(far.socket.get(), SHUT_WR);
      EXPECT_TRUE(is_closed(far.socket)) << first;
      is_refused = refusal.has_happened();
    }
    hosts.near.links().open();
    const auto kept = hosts.near.links().receive();
    ASSERT_TRUE(kept) << first;
    const auto frame = decode_vote_frame(kept->second, 2);
    ASSERT_TRUE(frame && !frame->entries.empty()) << first;
    EXPECT_EQ(frame->entries[0], vote_after(1).entries[0]) << first;
    EXPECT_TRUE(is_refused || frame->entries.size() == 2) << first;
  }
}

}  // namespace
}  // namespace tutti::control
