// Messages that belong together, and groups that come out of one call.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "ranks.h"
#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

TEST(Batch, NoOrderDeadlocks) {
  on_ranks(3, [](ProcessGroup& world) {
    // Everybody lists sends first, to everybody, itself included, with more than any ring holds.
    constexpr std::size_t kCount = 200'000;
    const auto ranks = static_cast<std::size_t>(world.world_size());
    std::vector<std::vector<int>> out(ranks), in(ranks);
    std::vector<Message> messages;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      out[peer].assign(kCount, world.rank() * 10 + static_cast<int>(peer));
      in[peer].assign(kCount, -1);
      messages.push_back(Message::send(out[peer], static_cast<int>(peer)));
    }
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      messages.push_back(Message::recv(in[peer], static_cast<int>(peer)));
    }
    world.batch(messages);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      EXPECT_EQ(in[peer], std::vector<int>(kCount, static_cast<int>(peer) * 10 + world.rank()));
    }
  });
}

/// Who has left may have sent what another thread of this rank is about to take in.
TEST(Leaving, CountsOnlyAfterEverythingThatWasSentBefore) {
  std::atomic<bool> in_callback{false};
  on_ranks(2, [&](ProcessGroup& world) {
    int a = 1, b = 2;
    if (world.rank() == 1) {
      world.send(a, 0, {.tag = 1});
      while (!in_callback.load()) std::this_thread::yield();
      world.send(b, 0, {.tag = 2, .buffered = true});
      return;  // says goodbye, and waits for that of rank 0
    }
    a = b = 0;
    // While the callback runs no other thread takes anything in.
    Work first = world.recv(a, 1, {.tag = 1}, async).then([&](const Error*) {
      in_callback.store(true);
      const auto began = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() < began + 200ms) std::this_thread::yield();
    });
    while (!in_callback.load()) std::this_thread::yield();
    world.recv(b, 1, {.tag = 2});
    EXPECT_EQ(b, 2);
    first.wait();
  });
}

TEST(Batch, NothingIsPostedIfOneIsWrong) {
  on_ranks(2, [](ProcessGroup& world) {
    int x = world.rank(), y = -1;
    const std::array<Message, 2> messages = {Message::recv(y, 1 - world.rank()),
                                             Message::send(x, 7)};
    const Error error = thrown_by([&] { world.batch(messages); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "peer 7 is out of range");
    world.sendrecv(x, y, {.to = 1 - world.rank(), .from = 1 - world.rank()});
    EXPECT_EQ(y, 1 - world.rank());
  });
}

TEST(Batch, AsynchronousOnesComeBackOneByOne) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    int a = world.rank(), b = world.rank() + 10, c = -1, d = -1;
    const std::array<Message, 4> messages = {
        Message::recv(d, other, {.tag = 2}), Message::recv(c, other, {.tag = 1}),
        Message::send(a, other, {.tag = 1}), Message::send(b, other, {.tag = 2})};
    std::vector<Work> works = world.batch(messages, async);
    ASSERT_EQ(works.size(), 4u);
    wait_all(works);
    EXPECT_EQ(c, other);
    EXPECT_EQ(d, other + 10);
  });
}

TEST(SendRecv, ARing) {
  on_ranks(4, [](ProcessGroup& world) {
    const int right = (world.rank() + 1) % 4, left = (world.rank() + 3) % 4;
    std::vector<double> out(50'000, world.rank()), in(50'000);
    world.sendrecv(out, in, {.to = right, .from = left});
    EXPECT_EQ(in, std::vector<double>(50'000, left));
  });
}

TEST(SendRecv, TellsWhoSentAndRefusesBuffersThatOverlap) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::array<int, 3> x = {world.rank(), -1, -1};
    const Error error = thrown_by([&] {
      world.sendrecv(std::span(x).first(2), std::span(x).last(2), {.to = other, .from = other},
                     {"halo.cc", 7});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), (std::string("recv (rank ") + std::to_string(world.rank()) +
                                ") for sendrecv at halo.cc:7: messages 0 and 1 of those posted "
                                "together share memory, and one "
                                "of them is received into it: use two buffers that do not overlap.")
                                   .c_str());
    const MessageInfo info = world.sendrecv(x[0], x[1], {.to = other, .from = kAnyRank});
    EXPECT_EQ(info.rank, other);
    EXPECT_EQ(info.count, 1u);
    EXPECT_EQ(x[1], other);
  });
}

/// Blocking and asynchronous; eager, and with content of its own.
void a_send_that_times_out_changes_nothing(ProcessGroup& world) {
  for (const std::size_t count : {3, 50'000}) {
    std::vector<float> out(count, 1), in(count);
    if (world.rank() == 0) {
      const Error error = thrown_by([&] {
        world.send(out, 1, {.tag = 4, .timeout = 30ms}, {"ring.cc", 9});
      });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_EQ(error.context().culprits, std::vector<int>{1});
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("send (rank 0) at ring.cc:9: rank 1 (pid ")) << text;
      expect_text(error, ") has posted no recv with tag 4 for send(f32 x " + std::to_string(count) +
                             ", to 1, tag 4) in 0.03 s; it ");
      EXPECT_TRUE(text.ends_with(". Nothing was sent and the group stays usable")) << text;
      Work work = world.send(out, 1, {.tag = 4, .timeout = 30ms}, async);
      EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kTimeout);
    }
    world.barrier();
    out.assign(count, 2);
    world.rank() == 0 ? world.send(out, 1, {.tag = 4})
                      : static_cast<void>(world.recv(in, 0, {.tag = 4}));
    if (world.rank() == 1) {
      EXPECT_EQ(in, std::vector<float>(count, 2));
    }
  }
}

TEST(Timeouts, OfASendChangeNothing) {
  for (const test_kit::As as : every_kind()) {
    on_ranks(2, a_send_that_times_out_changes_nothing, {.as = as});
  }
}

TEST(Cancel, TakesBackWhatNothingHasMatched) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    int x = -1;
    const int mine = world.rank();
    Work recv = world.recv(x, kAnyRank, {.tag = 1}, async, {"serve.cc", 3});
    EXPECT_TRUE(recv.cancel());
    EXPECT_FALSE(recv.cancel());
    const Error error = thrown_by([&] { recv.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_EQ(std::string(error.what()), "recv (rank " + std::to_string(mine) +
                                             ") at serve.cc:3: taken back by Work::cancel.");
    world.barrier();  // or a rank that is late would take what the other one sends
    Work send = world.send(mine, other, {.tag = 1}, async);
    while (!send.cancel()) {
    }
    bool told = false;
    Work then = world.recv(x, other, {.tag = 2}, async).then([&](const Error* failure) {
      told = failure != nullptr && failure->code() == ErrorCode::kCancelled;
    });
    EXPECT_TRUE(then.cancel());
    EXPECT_TRUE(told);
    world.barrier();
    EXPECT_EQ(
        world.sendrecv(mine, x, {.to = other, .from = other, .send_tag = 3, .recv_tag = 3}).rank,
        other);
    EXPECT_EQ(x, other) << "not the one that was taken back";
    Work whole = world.all_reduce(x, async);
    EXPECT_FALSE(whole.cancel());
    whole.wait();
    EXPECT_FALSE(Work().cancel());
  });
}

TEST(Cancel, IsRefusedInsideACallback) {
  on_ranks(2, [](ProcessGroup& world) {
    int x = -1, y = -1;
    Work other = world.recv(y, kAnyRank, {.tag = 2}, async);
    std::string refused;
    Work first = world.recv(x, 1 - world.rank(), {.tag = 1}, async).then([&](const Error*) {
      refused = thrown_by([&] { other.cancel(); }).what();
    });
    const int mine = world.rank();
    world.send(mine, 1 - mine, {.tag = 1});
    first.wait();
    EXPECT_NE(refused.find("Work::cancel"), std::string::npos) << refused;
    EXPECT_TRUE(other.cancel());
    EXPECT_EQ(thrown_by([&] { other.wait(); }).code(), ErrorCode::kCancelled);
  });
}

/// Whether a process is stopped: its state is the first word after the name in brackets.
bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && text.compare(end, 3, ") T") == 0;
}

/// The oldest message cannot be matched while the way back to its sender is full; one of another
/// sender behind it waits for the same receives.
TEST(FromAnyRank, AFullWayToOneSenderStrandsNobody) {
  if (kNoForks) GTEST_SKIP() << "ranks are processes here";
  const auto body = [](ProcessGroup& world) {
    constexpr int kFill = 20'000;
    int turn = 0;
    if (world.rank() > 0) {
      const int mine = world.rank();
      if (mine == 2) world.recv(turn, 1, {.tag = 3});
      Work sent = world.send(mine, 0, {.tag = 1}, async);
      const int pid = ::getpid();
      world.send(pid, 0, {.tag = 2});
      if (mine == 1) world.send(turn, 2, {.tag = 3});
      if (mine == 1) ::raise(SIGSTOP);
      for (int tag = 0; mine == 1 && tag < kFill; ++tag) {
        std::vector<int> nothing;
        world.recv(nothing, 0, {.tag = 100 + tag});
      }
      return sent.wait();
    }
    std::array<int, 2> pids = {};
    world.recv(pids[0], 1, {.tag = 2});
    world.recv(pids[1], 2, {.tag = 2});
    while (!is_stopped(pids[0])) std::this_thread::yield();
    std::vector<Work> fill;
    const std::vector<int> nothing;  // each frame as small as the one that is to be held up
    for (int tag = 0; tag < kFill; ++tag) {
      fill.push_back(world.send(nothing, 1, {.tag = 100 + tag}, async));
    }
    int x = -1, y = -1;
    Work first = world.recv(x, kAnyRank, {.tag = 1}, async);
    Work second = world.recv(y, kAnyRank, {.tag = 1}, async);
    ::kill(pids[0], SIGCONT);
    EXPECT_TRUE(first.wait_for(20s));
    EXPECT_TRUE(second.wait_for(20s));
    EXPECT_EQ(x + y, 3);
    wait_all(fill);
  };
  on_ranks(3, body, {.as = test_kit::As::processes});
}

/// `sent_at`: what the receiver knows of the line that sent.
void expect_mismatch(const std::vector<int>& hosts, const std::string& sent_at) {
  const test_kit::RunOptions options{.hosts = hosts};
  const auto body = [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    std::vector<int> x(6);
    if (me.rank == 0) {
      world.send(x, 1, {}, {"site.cc", 5});
    } else {
      world.recv(std::span(x).first(1), 0, {}, {"site.cc", 8});
    }
    return std::string();
  };
  const auto outcomes = test_kit::collect_ranks(2, body, options);
  const std::string text = "rank 0 sent i32 x 6 with tag 0 to rank 1" + sent_at +
                           ", which receives i32 x 1 at site.cc:8; make both ends agree in dtype "
                           "and count";
  EXPECT_EQ(std::string(outcomes[0].error->what()), "send (rank 0) at site.cc:5: " + text);
  EXPECT_EQ(std::string(outcomes[1].error->what()), "recv (rank 1) at site.cc:8: " + text);
  EXPECT_EQ(outcomes[0].error->context().culprits, (std::vector<int>{0, 1}))
      << "either may be wrong";
}

TEST(Mismatches, OfAMessageShowBothLines) { expect_mismatch({}, " at site.cc:5"); }

// The line that sent is not on the wire: the sender reads it at the beginning of its own error.
TEST(Mismatches, OfAMessageBetweenHostsShowTheLineThatReceives) { expect_mismatch({0, 1}, ""); }

/// More than is received, or less: at once, in parts, or when the sender has gone on.
TEST(Mismatches, OfAMessageBetweenHostsAreToldAtBothEndsHoweverItMoves) {
  for (const std::size_t count : {std::size_t{8}, std::size_t{100'000}}) {
    for (const bool buffered : {false, true}) {
      for (const int from : {0, kAnyRank}) {
        for (const std::size_t received : {count - 1, count + 1}) {
          const auto body = [&](const test_kit::Rank& me) {
            ProcessGroup world = init_process_group(me.init);
            std::vector<int> x(count), y(received, 7);
            if (me.rank == 0) {
              world.send(x, 1, {.buffered = buffered});
              world.barrier();
            } else {
              const Error error = thrown_by([&] { world.recv(y, from); });
              EXPECT_EQ(y, std::vector<int>(received, 7)) << "nothing of it is taken";
              throw Error(error);
            }
            return std::string();
          };
          for (const auto& outcome : test_kit::collect_ranks(2, body, {.hosts = {0, 1}})) {
            SCOPED_TRACE(std::to_string(count) + " sent, " + std::to_string(received) +
                         " received" + (buffered ? ", buffered" : "") + ", rank " +
                         std::to_string(outcome.rank));
            ASSERT_TRUE(outcome.error.has_value()) << outcome.failure;
            EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.failure;
            EXPECT_EQ(outcome.error->context().culprits, (std::vector<int>{0, 1}));
          }
        }
      }
    }
  }
}

TEST(Leaving, NamesTheMessageThatWasUnmatched) {
  const auto outcomes = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    int x = 0;
    Work work;
    if (me.rank == 0) work = world.recv(x, kAnyRank, {.tag = 2}, async, {"pending.cc", 16});
    world.close();
    return std::string();
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), ErrorCode::kClosed);
    expect_text(*outcome.error,
                ": every other rank left the group, while rank 0's recv(i32 x 1, from any rank, "
                "tag 2) at pending.cc:16 was unmatched. Send what it waits for before any rank "
                "closes, or take it back with Work::cancel");
  }
}

TEST(NoRank, TakesPartInNothing) {
  on_ranks(3, [](ProcessGroup& world) {
    // A halo exchange on a line: the edges have one neighbour.
    const int left = world.rank() > 0 ? world.rank() - 1 : kNoRank;
    const int right = world.rank() < 2 ? world.rank() + 1 : kNoRank;
    const int mine = world.rank();
    int from_left = -7, from_right = -7;
    EXPECT_EQ(world.sendrecv(mine, from_left, {.to = right, .from = left}).rank, left);
    const MessageInfo info = world.sendrecv(mine, from_right, {.to = left, .from = right});
    EXPECT_EQ(info.rank, right);
    EXPECT_EQ(info.count, right == kNoRank ? 0u : 1u);
    EXPECT_EQ(from_left, left == kNoRank ? -7 : left);
    EXPECT_EQ(from_right, right == kNoRank ? -7 : right);

    std::vector<int> any(2, 5);
    MessageInfo told{.rank = 1, .count = 9};
    world.send(mine, kNoRank, {.timeout = 0ns});
    EXPECT_EQ(world.recv(from_left, kNoRank, {.tag = 3, .timeout = 0ns}).tag, 3);
    EXPECT_EQ(world.recv_resize(any, kNoRank).rank, kNoRank);
    EXPECT_EQ(any, std::vector<int>(2, 5));
    Work work = world.recv(from_left, kNoRank, {.info = &told}, async);
    EXPECT_TRUE(work.done());
    work.wait();
    EXPECT_EQ(told.rank, kNoRank);
    EXPECT_EQ(told.count, 0u);
    const std::array<Message, 2> both = {Message::send(mine, kNoRank),
                                         Message::recv(from_left, kNoRank)};
    world.batch(both);
    EXPECT_EQ(thrown_by([&] { world.send(mine, kNoRank, {.tag = -1}); }).code(),
              ErrorCode::kInvalidArgument);
  });
}

TEST(Batch, HonoursTheOptionsOfItsMessages) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    const std::vector<int> mine(3, world.rank());
    std::vector<int> theirs(3, -1);
    MessageInfo info, blocking;
    const std::array<Message, 2> first = {
        Message::send(mine, other, {.tag = 4, .buffered = true}),
        Message::recv(theirs, kAnyRank, {.tag = 4, .info = &info})};
    world.batch(std::span(first).first(1));  // ends before anybody receives
    world.barrier();
    world.batch(std::span(first).last(1));
    EXPECT_EQ(info.rank, other);
    EXPECT_EQ(info.tag, 4);
    EXPECT_EQ(info.count, 3u);
    Work send = world.send(mine, other, {.tag = 6}, async);
    const MessageInfo got = world.recv(theirs, kAnyRank, {.tag = 6, .info = &blocking});
    send.wait();
    EXPECT_EQ(blocking.rank, other);
    EXPECT_EQ(blocking.count, got.count);
  });
}

TEST(Waiting, ForAnyReturnsTheOneThatHasEnded) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::array<int, 2> in = {-1, -1};
    std::vector<Work> works;
    works.push_back(world.recv(in[0], other, {.tag = 0}, async));
    works.push_back(world.recv(in[1], other, {.tag = 1}, async));
    world.send(5, other, {.tag = 1, .buffered = true});
    EXPECT_EQ(wait_any(works), 1u);
    EXPECT_EQ(in[1], 5);
    EXPECT_FALSE(works[0].done());
    world.barrier();
    world.send(6, other, {.tag = 0, .buffered = true});
    wait_all(works);
    EXPECT_EQ(in[0], 6);
    std::vector<Work> none;
    EXPECT_EQ(thrown_by([&] { wait_any(none); }).code(), ErrorCode::kInvalidArgument);
    wait_all(none);
  });
}

TEST(Waiting, ForAllThrowsTheFirstFailureAndLeavesNothingBehind) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::array<int, 2> in = {-1, -1};
    std::vector<Work> works;
    works.push_back(world.recv(in[0], other, {.tag = 0, .timeout = 20ms}, async));
    works.push_back(world.recv(in[1], other, {.tag = 1}, async));
    world.send(5, other, {.tag = 1, .buffered = true});
    EXPECT_EQ(thrown_by([&] { wait_all(works); }).code(), ErrorCode::kTimeout);
    EXPECT_EQ(in[1], 5) << "the second one has ended as well";
    world.barrier();
  });
}

TEST(Split, ByColorInTheOrderOfTheKeys) {
  on_ranks(5, [](ProcessGroup& world) {
    // Ranks 0, 2, 4 in reverse order; 1 alone; 3 in none.
    const int color = world.rank() == 3 ? -1 : world.rank() % 2;
    ProcessGroup group = world.split({.color = color, .key = -world.rank()});
    EXPECT_EQ(group.is_member(), world.rank() != 3);
    if (!group.is_member()) return;
    const auto ranks = group.world_ranks();
    const std::vector<int> got(ranks.begin(), ranks.end());
    EXPECT_EQ(got, color == 0 ? (std::vector<int>{4, 2, 0}) : (std::vector<int>{1}));
    EXPECT_EQ(group.all_reduce_value(world.rank()), color == 0 ? 6 : 1);
    ProcessGroup again = group.split({});
    EXPECT_EQ(again.world_size(), group.world_size());
  });
}

// ---- from any rank, of any count

TEST(AnyRank, TakesWhatComesFirstInTheOrderOfEachSender) {
  constexpr int kEach = 200;
  on_ranks(4, [](ProcessGroup& world) {
    if (world.rank() != 0) {
      // Small and large: the latter need a match before their content moves.
      for (int i = 0; i < kEach; ++i) {
        std::vector<int> data(i % 10 == 0 ? 5000 : 10, i);
        world.send(data, 0, {.tag = i % 10 == 0 ? 1 : 2, .buffered = i % 3 == 0});
      }
      return world.barrier();
    }
    std::vector<std::array<int, 3>> next(4, {0, 0, 0});
    for (int i = 0; i < 3 * kEach; ++i) {
      const int tag = i % 10 == 0 ? 1 : 2;
      std::vector<int> data(tag == 1 ? 5000 : 10, -1);
      const MessageInfo info = world.recv(data, kAnyRank, {.tag = tag});
      EXPECT_EQ(info.tag, tag);
      EXPECT_EQ(info.count, data.size());
      int& due = next[static_cast<std::size_t>(info.rank)][static_cast<std::size_t>(tag)];
      if (tag == 2 && due % 10 == 0) ++due;
      EXPECT_EQ(data, std::vector<int>(data.size(), due)) << "from rank " << info.rank;
      due += tag == 1 ? 10 : 1;
    }
    world.barrier();
  });
}

TEST(AnyRank, TheOldestReceiveGoesFirst) {
  on_ranks(3, [](ProcessGroup& world) {
    if (world.rank() == 1) {
      world.barrier();
      for (const int value : {1, 2, 3}) world.send(value, 0);
      return;
    }
    if (world.rank() == 2) return world.barrier();
    std::array<int, 3> in = {0, 0, 0};
    MessageInfo first, third;
    std::vector<Work> works;
    works.push_back(world.recv(in[0], kAnyRank, {.info = &first}, async));
    works.push_back(world.recv(in[1], 1, async));
    works.push_back(world.recv(in[2], kAnyRank, {.info = &third}, async));
    world.barrier();
    wait_all(works);
    EXPECT_EQ(in, (std::array<int, 3>{1, 2, 3}));
    EXPECT_EQ(first.rank, 1);
    EXPECT_EQ(third.rank, 1);
  });
}

TEST(AnyRank, TheOwnRankCounts) {
  on_ranks(2, [](ProcessGroup& world) {
    std::array<int, 3> in = {0, 0, 0};
    std::vector<Work> works;
    MessageInfo info;
    works.push_back(world.recv(in[0], kAnyRank, {.info = &info}, async));
    works.push_back(world.recv(in[1], world.rank(), async));
    const int one = 1, two = 2, three = 3;
    works.push_back(world.send(one, world.rank(), async));
    works.push_back(world.send(two, world.rank(), async));
    wait_all(works);
    EXPECT_EQ(in[0], 1);
    EXPECT_EQ(in[1], 2);
    EXPECT_EQ(info.rank, world.rank());
    world.send(three, world.rank(), {.buffered = true});
    EXPECT_EQ(world.recv(in[2], kAnyRank).rank, world.rank());
    EXPECT_EQ(in[2], 3);
  });
}

TEST(AnyRank, WithoutASenderTheDeadlineCancelsCleanly) {
  on_ranks(2, [](ProcessGroup& world) {
    int x = -1;
    const Error error = thrown_by([&] { world.recv(x, kAnyRank, {.timeout = 20ms}); });
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    expect_text(error, "nothing came from any rank with tag 0");
    Work work = world.recv(x, kAnyRank, {.timeout = 20ms}, async);
    EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::kTimeout);
    world.barrier();
    const int rank = world.rank();
    Work send = world.send(rank, 1 - rank, async);
    EXPECT_EQ(world.recv(x, kAnyRank).rank, 1 - world.rank());
    send.wait();
    EXPECT_EQ(x, 1 - world.rank());
  });
}

TEST(AnyRank, WhenAllOthersHaveLeftItEnds) {
  const auto outcomes = test_kit::collect_ranks(3, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    if (me.rank == 0) {
      int x = 0;
      world.recv(x, kAnyRank);
    }
    world.close(1s);
    return std::string();
  });
  ASSERT_TRUE(outcomes[0].error.has_value());
  EXPECT_EQ(outcomes[0].error->code(), ErrorCode::kClosed) << outcomes[0].failure;
}

TEST(AnyCount, TheVectorGetsTheSize) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const std::size_t count : {0, 1, 511, 512, 513, 100'000}) {
      const std::vector<double> out(count, static_cast<double>(count));
      if (world.rank() == 0) {
        world.send(out, 1);
      } else {
        std::vector<double> in(7, -1);
        const MessageInfo info = world.recv_resize(in, 0);
        EXPECT_EQ(info.count, count);
        EXPECT_EQ(in, out);
      }
    }
    std::vector<float> in;
    if (world.rank() == 0) {
      Work work = world.recv_resize(in, kAnyRank, async);
      work.wait();
      EXPECT_EQ(in, std::vector<float>(3, 1.0f));
    } else {
      world.send(std::vector<float>(3, 1.0f), 0);
    }
  });
}

TEST(AnyCount, TheDtypeMustAgree) {
  const auto outcomes = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    std::vector<float> x(3);
    std::vector<int> y;
    if (me.rank == 0) {
      world.send(x, 1);
    } else {
      world.recv_resize(y, 0);
    }
    return std::string();
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch) << outcome.failure;
  }
}

TEST(AnyCount, ItMustBeOfWholeItems) {
  struct Item {
    char bytes[32];
  };
  const auto outcomes = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    const std::vector<std::uint8_t> out(33);
    std::vector<Item> in;
    if (me.rank == 0) {
      world.send(out, 1, {}, {"site.cc", 5});
    } else {
      world.recv_resize(in, 0, {}, {"site.cc", 8});
    }
    return std::string();
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), ErrorCode::kCollectiveMismatch);
    EXPECT_NE(outcome.failure.find(
                  "rank 0 sent u8 x 33 with tag 0 to rank 1 at site.cc:5, which receives u8 x any "
                  "multiple of 32 at site.cc:8"),
              std::string::npos)
        << outcome.failure;
  }
}

}  // namespace
}  // namespace tutti
