// What every channel must do, run over each kind of channel there is; and what the one in shared
// memory does with a broken ring.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "native/channel/shm.h"
#include "native/channel/tcp.h"
#include "net/tcp.h"
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

struct Sockets {
  net::Fd out, in;
};
Sockets connected() {
  const net::Fd listener = net::listen_tcp(*net::TcpAddress::parse("127.0.0.1:0"));
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  Sockets sockets;
  sockets.out = net::connect_tcp(net::TcpAddress::local(listener.get()), deadline);
  EXPECT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
  sockets.in = net::accept_tcp(listener.get());
  return sockets;
}
/// A stream that holds a few kilobytes, so that everything goes out and comes in parts. Not TCP's:
/// that waits for timers when its buffers are so small.
Sockets narrow() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const int least = 1;
  EXPECT_EQ(::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
  return {net::Fd(ends[0]), net::Fd(ends[1])};
}

/// Of a connection whose frames have tags, for its near end.
const net::FrameKeys kKeys{net::derive({}, {}, "out"), net::derive({}, {}, "in")};

struct TcpPair : Pair {
  explicit TcpPair(Sockets sockets, bool is_protected = false)
      : near(std::make_shared<TcpConnection>(secured(std::move(sockets.out), is_protected, true))),
        far(std::make_shared<TcpConnection>(secured(std::move(sockets.in), is_protected, false))),
        out(near),
        in(far) {}
  static net::Secured secured(net::Fd socket, bool is_protected, bool is_near) {
    if (!is_protected) return socket;
    return {std::move(socket), is_near ? kKeys : net::FrameKeys{kKeys.receive, kKeys.send}};
  }
  Sender& sender() override { return out; }
  Receiver& receiver() override { return in; }

  std::shared_ptr<TcpConnection> near, far;
  TcpSender out;
  TcpReceiver in;
};

struct Kind {
  const char* name;
  bool is_memory;  ///< what takes a turn of the scheduler elsewhere takes none here
  std::unique_ptr<Pair> (*make)();
};
const Kind kKinds[] = {
    {"shm_4k", true, [] { return std::unique_ptr<Pair>(new ShmPair(4096)); }},
    {"shm_64k", true, [] { return std::unique_ptr<Pair>(new ShmPair(65536)); }},
    {"tcp", false, [] { return std::unique_ptr<Pair>(new TcpPair(connected())); }},
    {"stream_narrow", false, [] { return std::unique_ptr<Pair>(new TcpPair(narrow())); }},
    {"tcp_protected", false, [] { return std::unique_ptr<Pair>(new TcpPair(connected(), true)); }},
    {"stream_narrow_protected", false,
     [] { return std::unique_ptr<Pair>(new TcpPair(narrow(), true)); }},
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
  /// Sends a frame whole into a channel with room for it.
  void send(const FrameHeader& header, const void* payload) {
    ASSERT_EQ(sender_.try_send(header, payload), Sent::whole);
  }
  /// The oldest frame, once it has come.
  const Frame& await() {
    for (;;) {
      if (const Frame* frame = receiver_.peek()) return *frame;
      std::this_thread::yield();
    }
  }
  /// Sends a frame while it is received; a socket may hold less than a frame.
  void pass(const FrameHeader& header, const void* payload, std::vector<std::byte>* into) {
    into->assign(header.payload_bytes, std::byte{0});
    bool is_out = false, is_in = false;
    while (!is_in) {
      is_out = is_out || sender_.try_send(header, payload) == Sent::whole;
      const Frame* frame = receiver_.peek();
      if (frame == nullptr) continue;
      receiver_.take_into(into->data());
      is_in = frame->is_taken() && is_out;
    }
    receiver_.pop();
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Channel, testing::ValuesIn(kKinds),
                         [](const auto& instance) { return std::string(instance.param.name); });

std::byte byte_at(std::uint64_t id, std::size_t i) { return static_cast<std::byte>(id * 31 + i); }
std::vector<std::byte> bytes_of(std::uint64_t id, std::size_t byte_count) {
  std::vector<std::byte> bytes(byte_count);
  for (std::size_t i = 0; i < byte_count; ++i) bytes[i] = byte_at(id, i);
  return bytes;
}

TEST_P(Channel, IsEmptyAtFirst) { EXPECT_EQ(receiver_.peek(), nullptr); }

TEST_P(Channel, CarriesEveryFieldOfTheHeader) {
  FrameHeader sent = header(3, 0xfedcba9876543210);
  sent.type = FrameType::announce;
  sent.tag = -5;
  sent.segment = 0x80000009;
  sent.what = {.seq = 41,
               .chain = 0x1234567890abcdef,
               .count = std::uint64_t{1} << 63,
               .op = 0xc3,
               .dtype = 7,
               .reduce = 5,
               .site = 255,
               .root_or_peer = -2};
  send(sent, "abc");
  const Frame& frame = await();
  EXPECT_EQ(std::memcmp(&frame.header, &sent, sizeof sent), 0);
  ASSERT_EQ(frame.payload.size(), 3u);
  EXPECT_EQ(std::memcmp(frame.payload.data(), "abc", 3), 0);
}

/// Wherever the last one ended: or a sender would wait for room that no pop can make.
TEST_P(Channel, TakesEveryFrameWhenAllBeforeItArePopped) {
  const std::vector<std::byte> payload = bytes_of(7, sender_.max_payload());
  std::vector<std::byte> received;
  std::mt19937_64 random(7);
  const int rounds = GetParam().is_memory ? 20'000 : 300;
  for (int index = 0; index < rounds; ++index) {
    const std::size_t most = random() % 4 == 0 ? 0 : sender_.max_payload();
    const std::size_t byte_count = random() % 4 == 0 ? most : random() % (most + 1);
    pass(header(byte_count, 1), payload.data(), &received);
    ASSERT_EQ(std::memcmp(received.data(), payload.data(), byte_count), 0) << index;
  }
}

TEST_P(Channel, PeekStaysAtTheSameFrameUntilPop) {
  send(header(0, 1), nullptr);
  send(header(0, 2), nullptr);
  EXPECT_EQ(await().header.id, 1u);
  EXPECT_EQ(await().header.id, 1u);
  receiver_.pop();
  EXPECT_EQ(await().header.id, 2u);
  receiver_.pop();
  EXPECT_EQ(receiver_.peek(), nullptr);
}

/// Small ones too may go out in part; then no other goes before the rest.
TEST_P(Channel, RefusesWhenFullAndGoesOnWhenSomethingWasTaken) {
  const std::size_t byte_count = std::min(sender_.max_payload(), kWholeBytes);
  std::uint64_t sent = 0;
  Sent last = Sent::whole;
  for (;; ++sent) {
    last = sender_.try_send(header(byte_count, sent), bytes_of(sent, byte_count).data());
    if (last != Sent::whole) break;
  }
  EXPECT_GE(sent, 1u);
  std::vector<std::byte> received(byte_count);
  for (std::uint64_t id = 0; id < 100;) {
    if (last == Sent::part) {
      EXPECT_EQ(sender_.try_send(header(0, 1000), nullptr), Sent::nothing);
    }
    if (const Frame* frame = receiver_.peek()) {
      ASSERT_EQ(frame->header.id, id);
      ASSERT_EQ(frame->payload.size(), byte_count);  // it is there whole
      ASSERT_EQ(std::memcmp(frame->payload.data(), bytes_of(id, byte_count).data(), byte_count), 0);
      receiver_.take(byte_count);
      receiver_.pop();
      ++id;
    }
    const Sent now = sender_.try_send(header(byte_count, sent), bytes_of(sent, byte_count).data());
    if (now == Sent::whole) ++sent;
    if (now != Sent::nothing) last = now;
  }
}

/// As when a message is taken back before any of it is out: the next one takes its number.
TEST_P(Channel, AnotherFrameOfTheSameHeaderMayGoInsteadOfOneForWhichThereWasNoRoom) {
  constexpr std::size_t kBytes = 20;
  std::uint64_t sent = 0;
  Sent last = Sent::whole;
  const auto offer = [&](std::uint64_t content) {
    return sender_.try_send(header(kBytes, sent), bytes_of(content, kBytes).data());
  };
  while ((last = offer(sent)) == Sent::whole) ++sent;
  if (last == Sent::nothing) {
    EXPECT_EQ(offer(sent + 1000), Sent::nothing);
  } else {
    EXPECT_FALSE(GetParam().is_memory);  // it is due whole, and may not be another one
  }
  const std::uint64_t content = last == Sent::nothing ? sent + 2000 : sent;
  for (std::uint64_t id = 0; id <= sent; ++id) {
    if (last != Sent::whole) last = offer(content);
    const Frame& frame = await();
    ASSERT_EQ(frame.header.id, id);
    ASSERT_EQ(frame.payload.size(), kBytes);
    const std::vector<std::byte> expected = bytes_of(id == sent ? content : id, kBytes);
    ASSERT_EQ(std::memcmp(frame.payload.data(), expected.data(), kBytes), 0) << id;
    receiver_.take(kBytes);
    receiver_.pop();
  }
  EXPECT_EQ(last, Sent::whole);
}

TEST_P(Channel, PayloadsAreAlignedForEveryElement) {
  const std::uint64_t values[2] = {1, 2};
  for (std::size_t i = 0; i < 50; ++i) {
    send(header(i % 17, i), values);
    const Frame& frame = await();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.payload.data()) % 16, 0u);
    receiver_.take(i % 17);
    receiver_.pop();
  }
}

TEST_P(Channel, DropsWhatWasNotTaken) {
  for (std::size_t byte_count : {0, 1, 100, 500}) {
    send(header(byte_count, 1), bytes_of(1, byte_count).data());
    (void)await();
    receiver_.pop();
    EXPECT_EQ(receiver_.peek(), nullptr);
  }
}

/// As a reduction takes them: where they lie, whole elements at a time.
TEST_P(Channel, ShowsLongPayloadsInPartsOfWholeElements) {
  constexpr std::size_t kElement = 16;
  for (std::uint64_t id = 0; id < 20; ++id) {
    const std::size_t byte_count = (sender_.max_payload() - 40 * id) / kElement * kElement;
    const std::vector<std::byte> payload = bytes_of(id, byte_count);
    for (bool is_out = false, is_in = false; !is_in;) {
      is_out = is_out || sender_.try_send(header(byte_count, id), payload.data()) == Sent::whole;
      const Frame* frame = receiver_.peek();
      if (frame == nullptr) continue;
      const std::size_t here = frame->payload.size() / kElement * kElement;
      ASSERT_TRUE(here > 0 || frame->payload.empty());
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(frame->payload.data()) % kElement, 0u);
      const std::size_t before = frame->taken;
      ASSERT_EQ(std::memcmp(frame->payload.data(), payload.data() + before, here), 0);
      receiver_.take(here);
      ASSERT_EQ(frame->taken, before + here);
      is_in = frame->is_taken();
    }
    receiver_.pop();
  }
}

TEST_P(Channel, KeepsOrderAndBytesBetweenThreads) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::uint64_t frames = GetParam().is_memory ? 20'000 : 2'000;
  const std::size_t largest = std::min<std::size_t>(sender_.max_payload(), 9000);
  std::thread source([&] {
    std::mt19937 random(seed);
    for (std::uint64_t id = 0; id < frames; ++id) {
      const std::vector<std::byte> payload = bytes_of(id, random() % (largest + 1));
      while (sender_.try_send(header(payload.size(), id), payload.data()) != Sent::whole) {
        std::this_thread::yield();
      }
    }
  });
  std::mt19937 random(seed);
  std::uint64_t wrong = 0;
  std::vector<std::byte> received(largest);
  for (std::uint64_t id = 0; id < frames; ++id) {
    const std::size_t byte_count = random() % (largest + 1);
    for (;;) {
      const Frame& frame = await();
      wrong += frame.header.id != id || frame.header.payload_bytes != byte_count;
      if (id % 3 == 0 && frame.taken == 0)
        receiver_.take(std::min<std::size_t>(frame.payload.size(), 16));
      receiver_.take_into(received.data());
      if (frame.is_taken()) break;
      std::this_thread::yield();
    }
    for (std::size_t i = id % 3 == 0 ? 16 : 0; i < byte_count; ++i) {
      wrong += received[i] != byte_at(id, i);
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

/// Bytes as they come from a peer, and the end of the connection behind them.
class TcpChannel : public testing::Test {
 protected:
  void put(std::span<const std::byte> bytes) {
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    net::send_all(pair_.near->socket(), bytes, deadline);
  }
  void end() { EXPECT_EQ(::shutdown(pair_.near->socket(), SHUT_WR), 0); }
  static FrameHeader content(std::size_t payload_bytes) {
    FrameHeader header;
    header.type = FrameType::content;
    header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
    return header;
  }
  TcpPair pair_{connected()};
};

TEST_F(TcpChannel, EveryChangeOfAHeaderIsSeen) {
  const WireHeader good = encode(content(40));
  ASSERT_TRUE(decode(good));
  for (std::size_t byte = 0; byte < good.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      WireHeader bad = good;
      bad[byte] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(decode(bad)) << byte << " " << bit;
    }
  }
}

TEST_F(TcpChannel, RejectsWhatIsNoFrame) {
  const auto rejects = [](FrameHeader header) {
    TcpPair pair(connected());
    const WireHeader bytes = encode(header);
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    net::send_all(pair.near->socket(), bytes, deadline);
    const auto await = [&] {
      while (pair.in.peek() == nullptr) std::this_thread::yield();
    };
    EXPECT_THROW(await(), Error);
  };
  FrameHeader header;
  rejects(header);  // no type
  header.type = FrameType::padding;
  rejects(header);
  header.type = static_cast<FrameType>(static_cast<int>(kLastFrameType) + 1);
  rejects(header);
  header = content(kMaxTcpPayload + 1);
  rejects(header);
  header.payload_bytes = 0xffffffffu;
  rejects(header);
  for (int type = static_cast<int>(FrameType::announce); type <= static_cast<int>(kLastFrameType);
       ++type) {
    header.type = static_cast<FrameType>(type);
    header.payload_bytes = kWholeBytes + 1;  // is shown whole, or not at all
    if (header.type != FrameType::content) rejects(header);
  }
}

TEST_F(TcpChannel, BothEndsCountFramesButForThoseThatTellOfThis) {
  TcpConnection& near = *pair_.near;
  const auto passes = [&](FrameType type) {
    FrameHeader header;
    header.type = type;
    ASSERT_EQ(pair_.out.try_send(header, nullptr), Sent::whole);
    while (pair_.in.peek() == nullptr) std::this_thread::yield();
    pair_.in.pop();
  };
  EXPECT_FALSE(near.is_unread()) << "nothing was sent";
  for (const FrameType type : {FrameType::announce, FrameType::asks, FrameType::content,
                               FrameType::read, FrameType::match}) {
    passes(type);
  }
  EXPECT_EQ(pair_.far->received(), 3u);
  EXPECT_TRUE(near.is_unread());
  EXPECT_TRUE(near.want_to_know());
  EXPECT_TRUE(near.has_to_ask());
  near.has_asked();
  EXPECT_FALSE(near.has_to_ask());
  EXPECT_FALSE(near.want_to_know()) << "it was asked";
  EXPECT_TRUE(near.set_read(2));
  EXPECT_TRUE(near.is_unread());
  EXPECT_FALSE(near.set_read(4)) << "so many were not sent";
  EXPECT_FALSE(near.set_read(1)) << "more were read before";
  EXPECT_TRUE(near.set_read(3));
  EXPECT_FALSE(near.is_unread());
  passes(FrameType::match);
  EXPECT_TRUE(near.want_to_know()) << "one more was sent";
}

TEST_F(TcpChannel, WhatCameBeforeTheEndIsReceived) {
  const WireHeader header = encode(content(64));
  const std::vector<std::byte> payload = bytes_of(3, 64);
  put(header);
  put(payload);
  put(std::span(header).first(63));
  end();
  while (pair_.in.peek() == nullptr) std::this_thread::yield();
  std::vector<std::byte> received(64);
  pair_.in.take_into(received.data());
  EXPECT_EQ(received, payload);
  pair_.in.pop();
  while (!pair_.far->end()) EXPECT_EQ(pair_.in.peek(), nullptr);
  EXPECT_EQ(*pair_.far->end(), 0);
  EXPECT_EQ(pair_.in.peek(), nullptr);
}

TEST_F(TcpChannel, AResetIsAnEndWithAnError) {
  Sockets sockets = connected();
  const auto near = std::make_shared<TcpConnection>(std::move(sockets.out));
  net::reset_at_close(sockets.in.get());
  sockets.in.reset();
  const std::vector<std::byte> payload(kMaxTcpPayload);
  TcpSender sender(near);
  while (!near->end()) (void)sender.try_send(content(payload.size()), payload.data());
  EXPECT_NE(*near->end(), 0);
  EXPECT_EQ(sender.try_send(content(0), nullptr), Sent::nothing);
}

/// Bytes of protected frames, changed on their way.
class ProtectedChannel : public testing::Test {
 protected:
  static FrameHeader content(std::size_t payload_bytes) {
    FrameHeader header;
    header.type = FrameType::content;
    header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
    header.id = payload_bytes;
    return header;
  }
  /// What goes over the wire for these frames, one after the other.
  static std::vector<std::byte> bytes_on_the_wire(const std::vector<std::size_t>& frames) {
    TcpPair pair(connected(), true);
    std::vector<std::byte> wire(1 << 20);
    std::size_t filled = 0;
    for (const std::size_t payload_bytes : frames) {
      const std::vector<std::byte> payload = bytes_of(payload_bytes, payload_bytes);
      EXPECT_EQ(pair.out.try_send(content(payload_bytes), payload.data()), Sent::whole);
      const std::size_t lines = 2 + (payload_bytes + 63) / 64;
      Deadline deadline = Deadline::after(std::chrono::seconds(20));
      EXPECT_TRUE(net::receive_all(pair.far->socket(), std::span(wire).subspan(filled, 64 * lines),
                                   deadline));
      filled += 64 * lines;
    }
    wire.resize(filled);
    return wire;
  }
  /// How many frames are complete before the receiver finds a wrong one (`found`) or the end.
  static int frames_in(const std::vector<std::byte>& wire, bool takes, bool* found) {
    TcpPair pair(connected(), true);
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    net::send_all(pair.near->socket(), wire, deadline);
    EXPECT_EQ(::shutdown(pair.near->socket(), SHUT_WR), 0);
    std::vector<std::byte> target(1 << 20);
    int complete = 0;
    *found = false;
    try {
      while (!pair.far->end() || pair.in.peek() != nullptr) {
        const Frame* frame = pair.in.peek();
        if (frame == nullptr) continue;
        const std::size_t before = frame->taken;
        takes ? pair.in.take(frame->payload.size()) : (void)pair.in.take_into(target.data());
        if (frame->is_taken()) {
          pair.in.pop();
          ++complete;
        } else if (frame->taken == before && pair.far->end()) {
          break;  // the rest will not come
        }
      }
    } catch (const Error& error) {
      *found = true;
      EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated) << error.what();
    }
    return complete;
  }
};

TEST_F(ProtectedChannel, AFrameWithAChangedByteIsNeverComplete) {
  for (const std::size_t payload_bytes :
       {std::size_t{0}, std::size_t{100}, kWholeBytes, std::size_t{5000}, std::size_t{70'016}}) {
    const std::vector<std::byte> wire = bytes_on_the_wire({payload_bytes, 8});
    bool found = false;
    for (const bool takes : {true, false}) {
      EXPECT_EQ(frames_in(wire, takes, &found), 2);
      EXPECT_FALSE(found);
    }
    const std::size_t tag = wire.size() - 64 * 3 - 64;  // of the first frame
    for (std::size_t at = 0; at < tag + 16; at += at < 200 || at > tag - 100 ? 1 : 331) {
      if (at >= 64 + payload_bytes && at < tag) continue;  // zeros up to the next line
      std::vector<std::byte> changed = wire;
      changed[at] ^= std::byte{0x20};
      EXPECT_EQ(frames_in(changed, at % 2 == 0, &found), 0) << payload_bytes << " at " << at;
      EXPECT_TRUE(found) << payload_bytes << " at " << at;
    }
  }
}

TEST_F(ProtectedChannel, AFrameThatIsDroppedOrRepeatedIsFound) {
  const std::vector<std::byte> wire = bytes_on_the_wire({64, 64, 64});
  const std::ptrdiff_t one = 3 * 64;
  bool found = false;
  EXPECT_EQ(frames_in({wire.begin() + one, wire.end()}, true, &found), 0);
  EXPECT_TRUE(found);
  std::vector<std::byte> twice(wire.begin(), wire.begin() + one);
  twice.insert(twice.end(), wire.begin(), wire.end());
  EXPECT_EQ(frames_in(twice, true, &found), 1);
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace tutti::native
