// The rules of matching, alone: against a model that knows nothing of tables.
#include "native/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "ranks.h"
#include "tutti/request.h"

namespace tutti::native {
namespace {

constexpr std::size_t kMaxPayload = 4096;

struct Receive final : Posted {
  Receive(int peer_in, std::int32_t tag_in, int id_in) : Posted(peer_in, tag_in), id(id_in) {}
  const int id;
  PostedLine* line = nullptr;
};

struct Pair {
  int receive = 0, from = 0;
  std::uint64_t message = 0;
  bool operator==(const Pair&) const = default;
};

/// Makes every pair, or as many as `may` allows.
class Recorder final : public Taker {
 public:
  bool take(int from, Posted& posted, const Offer& offer) override {
    if (!may()) return false;
    std::uint64_t content = 0;
    EXPECT_EQ(offer.header.payload_bytes, sizeof(content));
    std::memcpy(&content, offer.payload, sizeof(content));
    EXPECT_EQ(content, offer.header.id);
    Receive& receive = static_cast<Receive&>(posted);
    if (posted.peer == kAnyRank) receive.line = &matcher->assign(posted, from);
    EXPECT_EQ(posted.peer, from);
    EXPECT_EQ(posted.tag, offer.header.tag);
    receive.line->remove(posted);
    posted.state = Posted::State::ended;
    pairs.push_back({receive.id, from, offer.header.id});
    return true;
  }
  std::function<bool()> may = [] { return true; };
  std::vector<Pair> pairs;
  Matcher* matcher = nullptr;
};

/// A matcher of four ranks and those who use it.
struct Table {
  Table() { recorder.matcher = &matcher; }
  void post(int peer, std::int32_t tag) {
    receives.push_back(std::make_unique<Receive>(peer, tag, static_cast<int>(receives.size())));
    receives.back()->line = &matcher.post(*receives.back());
  }
  std::uint64_t offer(int from, std::int32_t tag) {
    FrameHeader header;
    header.id = ++messages;
    header.tag = tag;
    header.payload_bytes = sizeof(header.id);
    matcher.offer(from, {header, reinterpret_cast<const std::byte*>(&header.id)});
    return header.id;
  }
  void settle() {
    for (int rank = 0; rank < 4; ++rank) matcher.settle(rank);
    if (matcher.has_unsettled_any()) matcher.settle_any();
  }

  Recorder recorder;
  Matcher matcher{4, kMaxPayload, recorder};
  std::vector<std::unique_ptr<Receive>> receives;
  std::uint64_t messages = 0;
};

/// What a list of everything that waits says.
struct Model {
  struct Message {
    int from;
    std::int32_t tag;
    std::uint64_t id;
  };
  void post(int peer, std::int32_t tag, int id) {
    const auto found = std::find_if(messages.begin(), messages.end(), [&](const Message& message) {
      return message.tag == tag && (peer == kAnyRank || message.from == peer);
    });
    if (found == messages.end()) {
      receives.push_back({peer, tag, static_cast<std::uint64_t>(id)});
      return;
    }
    pairs.push_back({id, found->from, found->id});
    messages.erase(found);
  }
  void offer(int from, std::int32_t tag, std::uint64_t id) {
    const auto found = std::find_if(receives.begin(), receives.end(), [&](const Message& receive) {
      return receive.tag == tag && (receive.from == kAnyRank || receive.from == from);
    });
    if (found == receives.end()) {
      messages.push_back({from, tag, id});
      return;
    }
    pairs.push_back({static_cast<int>(found->id), from, id});
    receives.erase(found);
  }
  std::deque<Message> messages, receives;
  std::vector<Pair> pairs;
};

/// Also where the next message of another rank is read before the receive has been settled.
TEST(Matcher, AReceiveFromAnyRankTakesWhatCameFirstOfAll) {
  Table table;
  const std::uint64_t first = table.offer(2, 7);
  table.post(kAnyRank, 7);
  const std::uint64_t second = table.offer(1, 7);
  table.matcher.settle(1);
  table.settle();
  EXPECT_EQ(table.recorder.pairs, (std::vector<Pair>{{0, 2, first}}));
  table.post(kAnyRank, 7);
  table.offer(1, 7);
  table.settle();
  ASSERT_EQ(table.recorder.pairs.size(), 2u);
  EXPECT_EQ(table.recorder.pairs[1], (Pair{1, 1, second}));
}

TEST(Matcher, TakesWhatAListOfEverythingSays) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
    const int tags = seed % 3 == 0 ? 300 : 3;
    Table table;
    Model model;
    for (int step = 0; step < 1000; ++step) {
      const int rank = below(4), tag = below(tags);
      // In waves, so that sometimes messages wait and sometimes receives.
      if (below(8) < (step / 100 % 2 == 0 ? 2 : 6)) {
        const int peer = below(3) == 0 ? kAnyRank : rank;
        model.post(peer, tag, static_cast<int>(table.receives.size()));
        table.post(peer, tag);
      } else {
        model.offer(rank, tag, table.offer(rank, tag));
      }
      table.settle();
    }
    ASSERT_EQ(table.recorder.pairs, model.pairs) << "seed " << seed;
    ASSERT_FALSE(model.pairs.empty());
  }
}

/// Where a pair cannot be made at once it is made later, and nothing is overtaken.
TEST(Matcher, ARefusedPairIsMadeLaterInOrder) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
    Table table;
    table.recorder.may = [&] { return below(3) == 0; };
    for (int step = 0; step < 500; ++step) {
      const int rank = below(4), tag = below(3);
      below(2) == 0 ? table.post(rank, tag) : void(table.offer(rank, tag));
      table.settle();
    }
    table.recorder.may = [] { return true; };
    table.settle();
    std::map<std::pair<int, int>, Pair> last;
    for (const Pair& pair : table.recorder.pairs) {
      const int tag = table.receives[static_cast<std::size_t>(pair.receive)]->tag;
      Pair& before = last.try_emplace({pair.from, tag}, Pair{-1, 0, 0}).first->second;
      ASSERT_LT(before.message, pair.message) << "seed " << seed;
      ASSERT_LT(before.receive, pair.receive) << "seed " << seed;
      before = pair;
    }
    std::size_t waiting = 0;
    table.matcher.each([&](Posted&) { ++waiting; });
    EXPECT_EQ(waiting + table.recorder.pairs.size(), table.receives.size());
  }
}

TEST(Matcher, KeepsForAReceiveWhatCouldNotBeTakenYet) {
  for (const int peer : {1, kAnyRank}) {
    Table table;
    table.recorder.may = [] { return false; };
    table.post(peer, 5);
    const Receive& receive = *table.receives.front();
    table.offer(1, 6);
    EXPECT_FALSE(table.matcher.keeps_for(receive)) << "of another tag";
    if (peer != kAnyRank) {
      table.offer(2, 5);
      EXPECT_FALSE(table.matcher.keeps_for(receive)) << "of another rank";
    }
    table.offer(1, 5);
    EXPECT_TRUE(table.matcher.keeps_for(receive));
    table.recorder.may = [] { return true; };
    table.settle();
    EXPECT_EQ(table.recorder.pairs.size(), 1u);
    EXPECT_FALSE(table.matcher.keeps_for(receive));
  }
}

TEST(Matcher, AKeptMessageIsTakenBackOnce) {
  Table table;
  const std::uint64_t first = table.offer(1, 5), second = table.offer(1, 5);
  EXPECT_EQ(table.matcher.kept_bytes(1), 2 * (Matcher::kKeptBytes + 8));
  EXPECT_TRUE(table.matcher.take_back(1, 5, first));
  EXPECT_FALSE(table.matcher.take_back(1, 5, first));
  EXPECT_FALSE(table.matcher.take_back(1, 6, second));
  EXPECT_FALSE(table.matcher.take_back(2, 5, second));
  table.post(kAnyRank, 5);
  table.settle();
  EXPECT_EQ(table.recorder.pairs, (std::vector<Pair>{{0, 1, second}}));
  EXPECT_EQ(table.matcher.kept_bytes(1), 0u);
}

TEST(Matcher, WhatIsKeptHasABound) {
  Recorder recorder;
  Matcher matcher(2, kMaxPayload, recorder);
  const std::vector<std::byte> payload(kMaxPayload + 1);
  FrameHeader header;
  header.payload_bytes = kMaxPayload + 1;
  expect_text(thrown_by([&] {
                matcher.offer(1, {header, payload.data()});
              }),
              "rank 1 announced message 0 with 4097 bytes beside it, and at most 4096 may come");
  header.payload_bytes = kMaxPayload;
  const std::size_t most = Matcher::kMaxKeptBytes / Matcher::cost_of(header);
  for (std::size_t i = 0; i < most; ++i) matcher.offer(1, {header, payload.data()});
  const Error error = thrown_by([&] { matcher.offer(1, {header, payload.data()}); });
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_EQ(error.context().culprits, std::vector<int>{1});
  expect_text(error, "which is more than it may. Please report this");
  matcher.offer(0, {header, payload.data()});  // each peer has its own

  // What a rank sends to itself lies with the sender and costs nothing.
  Receive send(0, 0, 0);
  const std::size_t before = matcher.kept_bytes(0);
  matcher.offer(0, {header, payload.data(), &send});
  EXPECT_EQ(matcher.kept_bytes(0), before);
}

}  // namespace
}  // namespace tutti::native
