// What every channel must do, run over each kind of channel there is; and what the one in shared
// memory does with a broken ring.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "native/channel/shm.h"
#include "tutti/error.h"

namespace tutti::native {
namespace {

/// One channel with both of its ends.
struct Pair {
  virtual ~Pair() = default;
  virtual Sender& sender() = 0;
  virtual Receiver& receiver() = 0;
};

struct ShmPair : Pair {
  explicit ShmPair(std::size_t ring_bytes)
      : ring(ring_bytes), out(ring, produced, consumed), in(ring, produced, consumed) {}
  Sender& sender() override { return out; }
  Receiver& receiver() override { return in; }

  std::vector<std::byte> ring;
  std::atomic<std::uint64_t> produced{0}, consumed{0};
  ShmSender out;
  ShmReceiver in;
};

struct Kind {
  const char* name;
  std::unique_ptr<Pair> (*make)();
};
const Kind kKinds[] = {
    {"shm_4k", [] { return std::unique_ptr<Pair>(new ShmPair(4096)); }},
    {"shm_64k", [] { return std::unique_ptr<Pair>(new ShmPair(65536)); }},
};

class Channel : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Pair> pair_ = GetParam().make();
  Sender& sender_ = pair_->sender();
  Receiver& receiver_ = pair_->receiver();

  static FrameHeader header(std::size_t payload_bytes, std::uint64_t id) {
    FrameHeader header;
    header.type = FrameType::content;
    header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
    header.id = id;
    return header;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Channel, testing::ValuesIn(kKinds),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(Channel, IsEmptyAtFirst) { EXPECT_EQ(receiver_.peek(), nullptr); }

TEST_P(Channel, CarriesEveryFieldOfTheHeader) {
  FrameHeader sent = header(3, 77);
  sent.type = FrameType::announce;
  sent.tag = -5;
  sent.segment = 9;
  sent.what.seq = 41;
  sent.what.chain = 0x1234567890abcdef;
  sent.what.count = 1000;
  sent.what.root_or_peer = 2;
  ASSERT_TRUE(sender_.try_send(sent, "abc"));
  const Frame* frame = receiver_.peek();
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(std::memcmp(&frame->header, &sent, sizeof sent), 0);
  EXPECT_EQ(std::memcmp(frame->payload.data(), "abc", 3), 0);
}

/// Wherever the last one ended: or a sender would wait for room that no pop can make.
TEST_P(Channel, TakesEveryFrameWhenAllBeforeItArePopped) {
  const std::vector<std::byte> payload(sender_.max_payload());
  std::mt19937_64 random(7);
  for (int index = 0; index < 20'000; ++index) {
    const std::size_t most = random() % 4 == 0 ? 0 : sender_.max_payload();
    const std::size_t byte_count = random() % 4 == 0 ? most : random() % (most + 1);
    ASSERT_TRUE(sender_.try_send(header(byte_count, 1), payload.data())) << index;
    ASSERT_NE(receiver_.peek(), nullptr);
    receiver_.pop();
  }
}

TEST_P(Channel, PeekStaysAtTheSameFrameUntilPop) {
  ASSERT_TRUE(sender_.try_send(header(0, 1), nullptr));
  ASSERT_TRUE(sender_.try_send(header(0, 2), nullptr));
  EXPECT_EQ(receiver_.peek()->header.id, 1u);
  EXPECT_EQ(receiver_.peek()->header.id, 1u);
  receiver_.pop();
  EXPECT_EQ(receiver_.peek()->header.id, 2u);
  receiver_.pop();
  EXPECT_EQ(receiver_.peek(), nullptr);
}

TEST_P(Channel, RefusesWhenFullAndGoesOnAfterPop) {
  const std::vector<std::byte> payload(sender_.max_payload());
  std::uint64_t sent = 0;
  while (sender_.try_send(header(payload.size(), sent), payload.data())) ++sent;
  EXPECT_GE(sent, 2u);
  for (std::uint64_t id = 0; id < 100; ++id) {
    ASSERT_NE(receiver_.peek(), nullptr);
    EXPECT_EQ(receiver_.peek()->header.id, id);
    receiver_.pop();
    ASSERT_TRUE(sender_.try_send(header(payload.size(), sent++), payload.data())) << id;
  }
}

TEST_P(Channel, PayloadsAreAlignedForEveryElement) {
  const std::uint64_t value = 1;
  for (std::size_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(sender_.try_send(header(i % 9, i), &value));
    const Frame* frame = receiver_.peek();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame->payload.data()) % 8, 0u);
    receiver_.pop();
  }
}

TEST_P(Channel, KeepsOrderAndBytesBetweenThreads) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::uint64_t kFrames = 20'000;
  const std::size_t largest = std::min<std::size_t>(sender_.max_payload(), 2000);
  const auto byte_at = [](std::uint64_t id, std::size_t i) {
    return static_cast<std::byte>(id * 31 + i);
  };
  std::thread source([&] {
    std::mt19937 random(seed);
    std::vector<std::byte> payload(largest);
    for (std::uint64_t id = 0; id < kFrames; ++id) {
      const std::size_t byte_count = random() % (largest + 1);
      for (std::size_t i = 0; i < byte_count; ++i) payload[i] = byte_at(id, i);
      while (!sender_.try_send(header(byte_count, id), payload.data())) std::this_thread::yield();
    }
  });
  std::mt19937 random(seed);
  std::uint64_t wrong = 0;
  for (std::uint64_t id = 0; id < kFrames; ++id) {
    const Frame* frame = receiver_.peek();
    for (; frame == nullptr; frame = receiver_.peek()) std::this_thread::yield();
    wrong += frame->header.id != id || frame->payload.size() != random() % (largest + 1);
    for (std::size_t i = 0; i < frame->payload.size(); ++i) {
      wrong += frame->payload[i] != byte_at(id, i);
    }
    receiver_.pop();
  }
  source.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(receiver_.peek(), nullptr);
}

TEST(ShmChannel, RejectsWhatIsNoFrame) {
  const auto expect_broken = [](const FrameHeader& planted, std::uint64_t produced) {
    ShmPair pair(4096);
    std::memcpy(pair.ring.data(), &planted, sizeof planted);
    pair.produced = produced;
    EXPECT_THROW(pair.in.peek(), Error);
  };
  FrameHeader frame;
  expect_broken(frame, 64);  // no type
  frame.type = static_cast<FrameType>(200);
  expect_broken(frame, 64);
  frame.type = FrameType::content;
  frame.payload_bytes = 65;  // longer than what was produced
  expect_broken(frame, 64);
  frame.payload_bytes = 0xffffffffu;
  expect_broken(frame, 4096);
  frame.payload_bytes = 0;  // more produced than the ring holds
  expect_broken(frame, 8192);
  frame.type = FrameType::padding;
  frame.payload_bytes = 4096;
  expect_broken(frame, 4096);
}

}  // namespace
}  // namespace tutti::native
