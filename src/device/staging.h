// Moving device memory through host memory, for backends that see host memory only.
//
// A *lane* belongs to one group and one device: two streams of its own, one for copies to the host
// and one for copies back, and the pinned host memory they go through, in *slots* that are kept. A
// *passage* is one operation's way through a lane: copied in, operated on by somebody else, copied
// out. Its copies are ordered after what the program's stream had been given before, and never wait
// for the whole device.
#pragma once

#include <chrono>
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
  friend class Copy;
  friend class Passage;
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

  /// Nothing: all that may be kept are taken, and one will be given back. `must`: none will be, so
  /// another one is made.
  /// Errors  kSystem: the host has no memory; says how much was wanted.
  std::optional<Slot> take(std::size_t byte_count, bool must);
  void give(const Slot& slot) noexcept;
  // With mutex_ held.
  void make_room(std::size_t wanted) noexcept;
  void drop(const Slot& slot) noexcept;
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

/// One copy on a stream of a lane.
class Copy {
 public:
  explicit Copy(Lane& lane) noexcept : lane_(lane) {}
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy();

  /// Once the device has come to `ready`, and has done what `stream` was given before. With the
  /// lane's device current.
  void start(Stream stream, const Event& ready, void* to, const void* from, std::size_t byte_count);
  /// One that was never started is over.
  bool is_over();
  /// What `stream` is given next comes after it.
  void order(Stream stream) const;
  /// Whether the device has been at it for so long, as far as this was asked.
  bool lasts(std::chrono::nanoseconds patience);

 private:
  using Clock = Deadline::Clock;

  Lane& lane_;
  std::optional<Event> reached_, ended_;
  Stream open_on_ = {};
  bool is_open_ = false;  // queued, but `ended_` could not be recorded behind it: is tried again
  std::optional<Clock::time_point> since_;
};

/// Lifetime  What its copies use is kept until they are over: destroy it when is_over, or give it
///           to whoever waits for that.
class Passage {
 public:
  /// `real`: the operation, on device memory; its keep_alive is kept. `rank`: the own one.
  Passage(Lane& lane, const Request& real, int rank);
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;
  ~Passage() { lane_.give(slot_); }

  const Request& real() const noexcept { return real_; }
  /// Starts to copy in, once the device has come to `ready`. False: no memory is free now, but will
  /// be; `must`: see Lane.
  bool begin(const Event& ready, bool must);
  bool is_in() { return in_.is_over(); }
  /// The same operation on host memory.
  Request on_host() const;
  /// Starts to copy out, on the lane's stream.
  void copy_out(const Event& ready);
  /// What `stream` is given next comes after that.
  void order(Stream stream) const { out_.order(stream); }
  bool is_over() { return in_.is_over() && out_.is_over(); }
  /// Throws kTimeout where the device has been at one of the copies for the stall time of the
  /// operation. Only how long this is asked counts.
  void refuse_stall();

 private:
  Lane& lane_;
  const Request real_;
  std::size_t in_bytes_ = 0, out_bytes_ = 0;  // that are copied
  std::size_t output_at_ = 0;                 // in the slot
  std::size_t slot_bytes_ = 0;
  Slot slot_;
  Copy in_{lane_}, out_{lane_};
};

/// Whether element i of what comes out depends on elements i of what goes in alone, so that the
/// operation can be cut anywhere.
bool is_elementwise(const Request& request) noexcept;
/// The pieces in which all ranks do an operation that they may have to stage: at least one.
std::vector<Request> cut(const Request& request);

}  // namespace tutti::device
