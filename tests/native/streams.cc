// Linked into a test, this makes its ranks talk over streams of a few kilobytes, so that everything
// goes out and comes in parts. What two ends of a link tell each other beside the frames they share
// as threads of one process, and they wake each other by the bells of their board.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "native/channel/tcp.h"
#include "native_ranks.h"

namespace tutti::native {
namespace {

/// Of one end of a link.
struct Words {
  std::atomic<std::uint64_t> withdrawn{0}, matching{0}, taken{0}, held{0};
};

/// Of one lane between two ranks; the end of the lower rank is the first.
struct Stream {
  Stream() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    for (std::size_t end = 0; end < 2; ++end) {
      const int least = 1;
      EXPECT_EQ(::setsockopt(pair[end], SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
      connections[end] = std::make_shared<TcpConnection>(net::Fd(pair[end]));
    }
  }
  std::array<std::shared_ptr<TcpConnection>, 2> connections;
  std::array<Words, 2> words;
};

/// By lane, then by both ranks.
using Streams = std::array<std::vector<std::vector<std::unique_ptr<Stream>>>, kLaneCount>;

class StreamLinks final : public Links {
 public:
  StreamLinks(std::shared_ptr<Streams> streams, int rank)
      : streams_(std::move(streams)), rank_(rank) {}
  std::size_t max_payload() const noexcept override { return kMaxTcpPayload; }
  PeerLink link(int peer, Lane lane) override {
    const auto low = static_cast<std::size_t>(std::min(rank_, peer));
    const auto high = static_cast<std::size_t>(std::max(rank_, peer));
    Stream& stream = *(*streams_)[static_cast<std::size_t>(lane)][low][high];
    const std::size_t end = rank_ < peer ? 0 : 1;
    const auto& connection = stream.connections[end];
    Words &own = stream.words[end], &other = stream.words[1 - end];
    return {.receiver = std::make_unique<TcpReceiver>(connection),
            .open_sender = [connection] { return std::make_unique<TcpSender>(connection); },
            .own_words = {&own.withdrawn, &own.matching, &own.taken, &own.held},
            .words_of_peer = {&other.withdrawn, &other.matching, &other.taken, &other.held}};
  }

 private:
  const std::shared_ptr<Streams> streams_;
  const int rank_;
};

std::vector<std::unique_ptr<Links>> make_stream_links(int n) {
  const auto streams = std::make_shared<Streams>();
  for (auto& lane : *streams) {
    lane.resize(static_cast<std::size_t>(n));
    for (auto& low : lane)
      for (int high = 0; high < n; ++high) low.push_back(std::make_unique<Stream>());
  }
  std::vector<std::unique_ptr<Links>> links;
  for (int rank = 0; rank < n; ++rank) {
    links.push_back(std::make_unique<StreamLinks>(streams, rank));
  }
  return links;
}

[[maybe_unused]] const bool kIsSet = (make_links = make_stream_links, true);

}  // namespace
}  // namespace tutti::native
