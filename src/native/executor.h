// Runs a schedule over channels: one small loop for every operation.
//
// The operation is cut into *segments*, each at most what one frame carries, and the schedule is
// run once per segment. Every edge of the schedule carries at least one frame per operation, empty
// if there is nothing to move, so that (seq, chain) is compared on every edge that is used.
#pragma once

#include <cstddef>
#include <vector>

#include "native/channels.h"
#include "native/operation.h"
#include "native/schedule/schedule.h"

namespace tutti::native {

/// Threads  One at a time. One operation at a time: begin, then step until done.
/// Cost     Allocates only scratch memory, and that once.
class Executor final : public Operation {
 public:
  Executor(Channels& channels, control::Membership& membership);

  /// Takes up an operation; all three stay where they are until the end. `shown`: the request for
  /// which this one is carried out, maybe the same.
  void begin(const Request& request, const Schedule& schedule, const Request& shown);
  bool step() override;
  int awaited() const noexcept override { return awaited_; }

 private:
  struct Span {
    std::size_t first = 0, count = 0;  ///< elements
  };
  /// The whole of a chunk.
  Span extent_of(const Place& place) const noexcept;
  /// Its part in this segment; empty past its end.
  Span span_of(const Place& place) const noexcept;
  std::size_t bytes_of(const Place& place) const noexcept;
  const void* source(const Place& place) const noexcept;
  void* target(const Place& place) noexcept;

  bool run_round();
  bool run(const Step& step);
  bool send(const Step& step);
  bool recv(const Step& step);
  bool reduce(const Step& step);
  bool add(const Step& step, bool& is_done);
  void copy(const Step& step);
  /// The peer's frame for this segment, or null: it is not there, or it is a wrong one and the
  /// group has failed.
  const Frame* expect(int peer, const Place& target);
  void drop(int peer);
  void moved(int peer);

  Channels& channels_;
  control::Membership& membership_;
  const Request* request_ = nullptr;
  const Request* shown_ = nullptr;
  const Schedule* schedule_ = nullptr;
  FrameHeader header_;
  std::size_t element_bytes_ = 1;
  std::size_t segment_count_ = 1;  // elements of every segment but the last
  std::size_t longest_chunk_ = 0;  // elements
  std::size_t segment_begin_ = 0;  // element of each chunk at which the segment begins
  std::size_t round_ = 0;
  std::uint32_t round_begin_ = 0;  // first step of the round
  bool failed_ = false;
  int awaited_ = -1;
  std::vector<std::size_t> input_firsts_,
      output_firsts_;           // uneven: where each chunk begins, and the end
  std::vector<bool> finished_;  // by step of the round
  std::vector<std::byte> scratch_;
  std::vector<const void*> operands_;
};

}  // namespace tutti::native
