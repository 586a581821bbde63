// Moving device memory through host memory, for backends that see host memory only.
//
// A *lane* belongs to one group and one device: two streams of its own, one for copies to the host
// and one for copies back, and the pinned host memory they go through, in *slots* that are kept. A
// *passage* is one operation's way through a lane: copied in, operated on by somebody else, copied
// out. Its copies are ordered after what the program's stream had been given before, and never wait
// for the whole device.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "device/cuda.h"
#include "tutti/request.h"

namespace tutti::device {

/// Host memory of a passage.
struct Slot {
  std::byte* data = nullptr;
  std::size_t byte_count = 0;  ///< of what was allocated
  bool is_pinned = false;
};

/// Threads   Any; one passage is used by one thread at a time.
class Lane {
 public:
  /// Operations of more bytes go in several pieces, where they can be cut.
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

  /// `limit_bytes`: how much pinned memory is kept.
  Lane(const Cuda& cuda, int device, std::size_t limit_bytes);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const Cuda& cuda() const noexcept { return cuda_; }
  int device() const noexcept { return device_; }
  Stream in() const noexcept { return in_->stream(); }
  Stream out() const noexcept { return out_->stream(); }

 private:
  friend class Passage;
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

  /// Nothing: all that may be kept are taken, and one will be given back. `must`: none will be, so
  /// another one is made.
  /// Errors  kSystem: the host has no memory; says how much was wanted.
  std::optional<Slot> take(std::size_t byte_count, bool must);
  void give(const Slot& slot) noexcept;
  Slot make(std::size_t byte_count);
  void free(const Slot& slot) const noexcept;
  /// Device current, as for all that follows.
  Event take_event();
  void give_event(Event event) noexcept;

  const Cuda& cuda_;
  const int device_;
  const std::size_t limit_bytes_;
  std::optional<OwnStream> in_, out_;

  std::mutex mutex_;  // guards what follows
  std::vector<Slot> free_;
  std::vector<Event> events_;
  std::size_t kept_bytes_ = 0;  // of all slots that come back
  bool has_said_pageable_ = false;
};

/// Lifetime  What its copies use is kept until they are over: destroy it when is_over, or give it
///           to whoever waits for that.
class Passage {
 public:
  /// `real`: the operation, on device memory; its keep_alive is kept. `rank`: the own one.
  Passage(Lane& lane, const Request& real, int rank);
  Passage(Passage&& other) noexcept;
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;
  Passage& operator=(Passage&&) = delete;
  ~Passage();

  /// Starts to copy in, once the device has come to `ready`. False: no memory is free now, but will
  /// be; `must`: see Lane.
  bool begin(const Event& ready, bool must);
  bool has_begun() const noexcept { return has_begun_; }
  bool is_in() const { return in_bytes_ == 0 || in_->done(); }
  /// The same operation on host memory.
  Request on_host() const;
  /// Starts to copy out, on the lane's stream.
  void copy_out(const Event& ready);
  /// What `stream` is given next comes after that.
  void order(Stream stream) const;
  bool is_over();

 private:
  Lane* lane_;  // null: moved from
  Request real_;
  std::size_t in_bytes_ = 0, out_bytes_ = 0;  // that are copied
  std::size_t output_at_ = 0;                 // in the slot
  std::size_t slot_bytes_ = 0;
  Slot slot_;
  std::optional<Event> in_, out_;
  // A copy is queued behind which its event could not be recorded; tried again later.
  bool is_in_open_ = false, is_out_open_ = false;
  bool has_begun_ = false;
};

/// Whether element i of what comes out depends on elements i of what goes in alone, so that the
/// operation can be cut anywhere.
bool is_elementwise(const Request& request) noexcept;
/// The pieces in which all ranks do an operation that they may have to stage: at least one.
std::vector<Request> cut(const Request& request);

}  // namespace tutti::device
