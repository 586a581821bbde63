// Small messages of collectives that need not wait for their receiver.
//
// Gloo sends nothing before it has heard that the other end has posted a receive: two trips instead
// of one. So every rank keeps two receives posted for each of the others, its *boxes*: one for the
// next message, and one that is emptied and posted again meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/of_rank.h"
#include "plugins/gloo/mesh.h"

namespace tutti::gloo_backend {

/// The messages from one rank to another arrive in the order in which they were sent; one without
/// bytes is neither sent nor waited for.
///
/// Threads   One operation at a time.
/// Errors    What Gloo throws (Mesh::run explains it).
class Mailbox {
 public:
  /// What it is worth to copy out of a box instead of waiting for the receiver.
  static constexpr std::size_t kMessageBytes = 32 * 1024;

  explicit Mailbox(Mesh& mesh);

  /// The most that a message can have: more where there is one peer only.
  std::size_t box_bytes() const noexcept { return box_bytes_; }

  /// To be called before the message of `from` is waited for, better before one's own are sent. The
  /// last one from there is gone then.
  void expect(int from);
  /// At most box_bytes(), which must stay until wait_for_sends.
  void send(int to, const void* data, std::size_t byte_count);
  const void* wait_for(int from, std::size_t byte_count, std::chrono::milliseconds timeout);
  void wait_for_sends(std::chrono::milliseconds timeout);

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  struct Box {
    Buffer buffer;
    bool posted = false;
  };
  struct Peer {
    std::array<Box, 2> boxes;
    std::size_t received = 0;
    Box& box(std::size_t ahead) noexcept { return boxes[(received + ahead) % boxes.size()]; }
  };

  void post(int from, Box& box);
  Peer& peer(int rank) noexcept { return of_rank(peers_, rank); }

  Mesh& mesh_;
  const std::size_t box_bytes_;
  std::shared_ptr<void> memory_;
  std::vector<Peer> peers_;
  std::vector<Buffer> sends_;
};

}  // namespace tutti::gloo_backend
