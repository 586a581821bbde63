#include "device/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "tutti/error.h"

namespace tutti::device {

namespace {

constexpr std::size_t kLine = 64;

constexpr std::size_t round_up(std::size_t byte_count, std::size_t unit) {
  return (byte_count + unit - 1) / unit * unit;
}
constexpr std::size_t whole_lines(std::size_t byte_count) { return round_up(byte_count, kLine); }

/// Whether `rank` reads its input in `request`.
bool reads_input(const Request& request, int rank) {
  return request.op != Op::broadcast || request.root == rank;
}

/// Whether `rank` gets something in its output.
bool writes_output(const Request& request, int rank) {
  return request.op != Op::broadcast || request.root != rank;
}

}  // namespace

Lane::Lane(const Cuda& cuda, int device, std::size_t limit_bytes)
    : cuda_(cuda), device_(device), limit_bytes_(limit_bytes) {
  const Current current(cuda_, device_);
  in_.emplace(cuda_);
  out_.emplace(cuda_);
}

Lane::~Lane() {
  for (const Slot& slot : free_) free(slot);
}

std::optional<Slot> Lane::take(std::size_t byte_count, bool must) {
  const std::size_t wanted =
      byte_count <= kSmallBytes ? kSmallBytes : round_up(byte_count, kPieceBytes);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const Slot& slot) { return slot.byte_count == wanted; });
  if (found != free_.end()) {
    const Slot slot = *found;
    free_.erase(found);
    return slot;
  }
  make_room(wanted);
  if (!must && kept_bytes_ + wanted > limit_bytes_) return std::nullopt;
  const Slot slot = make(wanted);
  kept_bytes_ += wanted;
  return slot;
}

/// Large slots are kept only while nothing else wants their place.
void Lane::make_room(std::size_t wanted) noexcept {
  std::erase_if(free_, [&](const Slot& slot) {
    const bool goes = slot.byte_count > kPieceBytes && kept_bytes_ + wanted > limit_bytes_;
    if (goes) drop(slot);
    return goes;
  });
}

Slot Lane::make(std::size_t byte_count) {
  if (void* const pinned = cuda_.try_pinned(byte_count)) {
    return {static_cast<std::byte*>(pinned), byte_count, true};
  }
  if (!std::exchange(has_said_pageable_, true)) {
    log(LogLevel::warn,
        fmt::format("there are no {} bytes of pinned memory left to move the memory of cuda:{} "
                    "through (this group has {}): memory that is not pinned is used, which is "
                    "slower; see ulimit -l and TUTTI_STAGING_BYTES",
                    byte_count, device_, kept_bytes_));
  }
  void* const pageable = std::aligned_alloc(kLine, whole_lines(byte_count));
  if (pageable != nullptr) return {static_cast<std::byte*>(pageable), byte_count, false};
  throw Error(ErrorCode::kSystem,
              fmt::format("the host has no {} bytes of memory to move the memory of cuda:{} "
                          "through, and the group holds {}; see its limits (ulimit -a)",
                          byte_count, device_, kept_bytes_));
}

void Lane::give(const Slot& slot) noexcept {
  if (slot.data == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (kept_bytes_ > limit_bytes_) return drop(slot);
  free_.push_back(slot);
}

void Lane::drop(const Slot& slot) noexcept {
  kept_bytes_ -= slot.byte_count;
  free(slot);
}

void Lane::free(const Slot& slot) const noexcept {
  if (!slot.is_pinned) return std::free(slot.data);
  try {
    const Current current(cuda_, device_);  // the last to use it may be any thread
    cuda_.free_pinned(slot.data);
  } catch (const Error& failure) {
    log(LogLevel::debug, fmt::format("pinned memory is left behind: {}", failure.what()));
  }
}

Event Lane::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      Event event = std::move(events_.back());
      events_.pop_back();
      return event;
    }
  }
  return Event(cuda_);
}

void Lane::give_event(Event event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

Copy::~Copy() {
  if (reached_) lane_.give_event(*std::move(reached_));
  if (ended_) lane_.give_event(*std::move(ended_));
}

void Copy::start(Stream stream, const Event& ready, void* to, const void* from,
                 std::size_t byte_count) {
  reached_ = lane_.take_event();
  ended_ = lane_.take_event();
  ready.order(stream);
  reached_->record(stream);
  lane_.cuda().copy(to, from, byte_count, stream);
  open_on_ = stream;
  is_open_ = true;
  ended_->record(stream);
  is_open_ = false;
}

bool Copy::is_over() {
  if (is_open_) {
    const Current current(lane_.cuda(), lane_.device());
    ended_->record(open_on_);
    is_open_ = false;
  }
  return !ended_ || ended_->done();
}

void Copy::order(Stream stream) const {
  if (ended_) ended_->order(stream);
}

bool Copy::lasts(std::chrono::nanoseconds patience) {
  if (!reached_ || !reached_->done() || is_over()) return false;
  const Clock::time_point now = Clock::now();
  if (!since_) since_ = now;
  return now - *since_ > patience;
}

Passage::Passage(Lane& lane, const Request& real, int rank) : lane_(lane), real_(real) {
  const std::size_t input = real.input.byte_count(), output = real.output.byte_count();
  if (reads_input(real, rank)) in_bytes_ = input;
  if (writes_output(real, rank)) out_bytes_ = output;
  if (!is_elementwise(real)) output_at_ = whole_lines(input);
  slot_bytes_ = std::max(input, output_at_ + output);
}

bool Passage::begin(const Event& ready, bool must) {
  if (slot_bytes_ > 0) {
    const std::optional<Slot> slot = lane_.take(slot_bytes_, must);
    if (!slot) return false;
    slot_ = *slot;
  }
  if (in_bytes_ > 0) in_.start(lane_.in(), ready, slot_.data, real_.input.data, in_bytes_);
  return true;
}

Request Passage::on_host() const {
  Request host = real_;
  host.stream = {};
  host.input.device = {};
  host.output.device = {};
  host.input.stream = {};
  host.output.stream = {};
  if (host.input.data != nullptr) host.input.data = slot_.data;
  if (host.output.data != nullptr) host.output.data = slot_.data + output_at_;
  return host;
}

void Passage::copy_out(const Event& ready) {
  if (out_bytes_ == 0) return;
  out_.start(lane_.out(), ready, real_.output.data, slot_.data + output_at_, out_bytes_);
}

void Passage::refuse_stall() {
  const std::chrono::nanoseconds patience = real_.stall.budget();
  const bool is_at_in = in_.lasts(patience);
  if (!is_at_in && !out_.lasts(patience)) return;
  throw Error(ErrorCode::kTimeout,
              fmt::format("cuda:{} has been at a copy {} the host (stream {:#x}) for {:g} s: "
                          "nothing moves",
                          lane_.device(), is_at_in ? "to" : "from",
                          reinterpret_cast<std::uintptr_t>(real_.stream.handle),
                          std::chrono::duration<double>(patience).count()));
}

bool is_elementwise(const Request& request) noexcept {
  switch (request.op) {
    case Op::broadcast:
    case Op::all_reduce:
    case Op::reduce:
    case Op::scan:
    case Op::exclusive_scan:
      return true;
    case Op::send:
    case Op::recv:
    case Op::gather:
    case Op::all_gather:
    case Op::scatter:
    case Op::reduce_scatter:
    case Op::all_to_all:
    case Op::barrier:
      break;
  }
  return false;
}

std::vector<Request> cut(const Request& request) {
  const std::size_t element_bytes = size_of(request.dtype);
  const std::size_t byte_count = request.count * element_bytes;
  // A list of buffers in one is told apart by their counts.
  const bool is_list = !request.send_counts.empty();
  if (byte_count <= Lane::kPieceBytes || !is_elementwise(request) || is_list) return {request};
  const std::size_t count = (byte_count + Lane::kPieceBytes - 1) / Lane::kPieceBytes;
  const std::size_t each = whole_lines((request.count + count - 1) / count);
  std::vector<Request> pieces;
  for (std::size_t begin = 0; begin < request.count; begin += each) {
    Request piece = request;
    piece.count = std::min(each, request.count - begin);
    if (piece.input.data != nullptr) {
      piece.input.data = static_cast<const std::byte*>(request.input.data) + begin * element_bytes;
      piece.input.count = piece.count;
    }
    if (piece.output.data != nullptr) {
      piece.output.data = static_cast<std::byte*>(request.output.data) + begin * element_bytes;
      piece.output.count = piece.count;
    }
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace tutti::device
