// Parts of a buffer that go to other ranks while parts of another buffer come from them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugins/gloo/mesh.h"

namespace tutti::gloo_backend {

/// Bytes [offset, offset + byte_count) of a buffer.
struct Range {
  std::size_t offset = 0;
  std::size_t byte_count = 0;
};

struct Bytes {
  void* data = nullptr;
  std::size_t byte_count = 0;
};

/// Posts sends out of one buffer and receives into another, and waits for them. Both ends post the
/// parts of one pair of ranks in the same order. A part without bytes, and one of the own rank, is
/// left out.
///
/// Errors    What Gloo throws (Mesh::run explains it).
class Exchange {
 public:
  /// `timeout`: for every wait.
  Exchange(Mesh& mesh, std::uint64_t slot, std::chrono::milliseconds timeout, Bytes input,
           Bytes output);

  void send(int to, Range part);
  void recv(int from, Range part);
  /// Wait for all that have been posted so far.
  void wait_for_sends();
  void wait_for_recvs();

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  Mesh& mesh_;
  const std::uint64_t slot_;
  const std::chrono::milliseconds timeout_;
  Buffer input_, output_;  // null in a group of one
  int sends_ = 0;
  int recvs_ = 0;
};

}  // namespace tutti::gloo_backend
