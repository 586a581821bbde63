// Runs a schedule over channels: one small loop for every operation.
//
// The operation is cut into *segments*, each at most what one frame carries, and the schedule is
// run for each of them. Several are under way at once: *slot* t holds round r of segment
// t - depth * r, for every r, and `depth` slots are open, from the first that is not done. So all
// that the steps of a slot build on was done in slots that are closed, and one order is left: that
// of the channels. What goes to a peer, and what comes from it, goes slot by slot, and within one
// by round. All ranks have the same depth, and a message has the same round at both ends: so both
// have one order, and of all that is not done anywhere the first round of the first slot can always
// be done.
//
// Every edge of the schedule carries at least one frame per operation, empty if there is nothing to
// move, so that (seq, chain) is compared on every edge that is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "native/channels.h"
#include "native/operation.h"
#include "native/schedule/plan.h"
#include "native/schedule/schedule.h"

namespace tutti::native {

/// Threads  One at a time. One operation at a time: begin, then step until done.
/// Cost     Allocates only scratch memory, and that once.
class Executor final : public Operation {
 public:
  Executor(Channels& channels, control::Membership& membership);

  /// Takes up an operation; all three stay where they are until the end. `shown`: the request for
  /// which this one is carried out, maybe the same. `cut`: the same on all ranks.
  void begin(const Request& request, const Schedule& schedule, const Cut& cut,
             const Request& shown);
  bool step() override;
  bool take_moved() noexcept override { return std::exchange(has_moved_, false); }
  int awaited() const noexcept override { return awaited_; }

 private:
  struct Span {
    std::size_t first = 0, count = 0;  ///< elements
  };
  /// What keeps one order: the peers to whom, or from whom, nothing more goes in this pass.
  class Held {
   public:
    explicit Held(int group_size) : passes_(static_cast<std::size_t>(group_size)) {}
    bool is(int peer, std::uint64_t pass) const noexcept { return of_rank(passes_, peer) == pass; }
    /// False: it was so already.
    bool set(int peer, std::uint64_t pass) noexcept {
      return std::exchange(of_rank(passes_, peer), pass) != pass;
    }

   private:
    std::vector<std::uint64_t> passes_;  // by peer: the last one in which it was
  };
  /// Once a pass has found so many peers missing it looks at no others: of a thousand who have yet
  /// to come not each is looked at whenever one of them has. Of what is not done anywhere the first
  /// round needs only that each looks at the first ones, and that all its sends are tried: who
  /// combines what comes in parts takes all of them in step.
  static constexpr std::size_t kMany = 16;
  /// The whole of a chunk.
  Span extent_of(const Place& place) const noexcept;
  /// Its part in this segment; empty past its end.
  Span span_of(const Place& place) const noexcept;
  std::size_t bytes_of(const Place& place) const noexcept;
  const void* source(const Place& place) const noexcept;
  void* target(const Place& place) noexcept;

  bool run_slot(std::size_t slot);
  void close_slot() noexcept;
  std::uint8_t* finished_of(std::size_t slot) noexcept;
  bool run_round(std::size_t round, std::uint8_t* finished);
  bool run(const Step& step);
  bool awaits_many() const noexcept { return missing_ >= kMany; }
  bool is_held(const Step& reduce) const noexcept;
  void hold_receives(int peer) noexcept;
  bool send(const Step& step);
  bool recv(const Step& step);
  bool reduce(const Step& step);
  bool add(const Step& step, bool& is_done);
  bool is_missing_still(const Step& reduce);
  void copy(const Step& step);
  /// The peer's frame for this segment, or null: it is not there, or it is a wrong one and the
  /// group has failed.
  const Frame* expect(int peer, const Place& target);
  void drop(int peer);
  void moved(int peer);
  void await(int peer) noexcept;

  Channels& channels_;
  control::Membership& membership_;
  const Request* request_ = nullptr;
  const Request* shown_ = nullptr;
  const Schedule* schedule_ = nullptr;
  FrameHeader header_;
  std::size_t element_bytes_ = 1;
  std::size_t segment_count_ = 1;  // elements of every segment but the last
  std::size_t segments_ = 1;
  std::size_t depth_ = 1;
  std::size_t slots_ = 0, first_slot_ = 0;  // all, and the first that is not done
  std::size_t scratch_stride_ = 0;          // bytes
  std::size_t scratch_segments_ = 1;
  std::size_t segment_ = 0;  // on which the steps work that now run
  std::uint64_t pass_ = 0;   // over the open slots
  Held sends_, receives_;
  std::size_t missing_ = 0;  // peers in receives_, in this pass
  bool failed_ = false;
  bool has_moved_ = false;
  int awaited_ = -1;
  std::vector<std::size_t> input_firsts_,
      output_firsts_;                   // uneven: where each chunk begins, and the end
  std::vector<std::uint8_t> finished_;  // by open slot, then by step
  std::vector<std::byte> scratch_;
  std::vector<const void*> operands_;
  const Operand* missing_operand_ = nullptr;  // which a reduction has found missing last
};

}  // namespace tutti::native
