#include "native/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/identity.h"
#include "kernels/kernels.h"

namespace tutti::native {

using Space = Place::Space;

namespace {

/// Where the chunks of a buffer begin, and its end; one chunk if it has no counts. Returns the
/// longest.
std::size_t lay_out(std::span<const std::size_t> counts, std::size_t whole,
                    std::vector<std::size_t>& firsts) {
  firsts.assign(1, 0);
  if (counts.empty()) {
    firsts.push_back(whole);
    return whole;
  }
  for (const std::size_t count : counts) firsts.push_back(firsts.back() + count);
  return *std::max_element(counts.begin(), counts.end());
}

}  // namespace

Executor::Executor(Channels& channels, control::Membership& membership)
    : channels_(channels),
      membership_(membership),
      sends_(membership.group_size()),
      receives_(membership.group_size()) {}

void Executor::begin(const Request& request, const Schedule& schedule, const Cut& cut,
                     const Request& shown) {
  request_ = &request;
  shown_ = &shown;
  schedule_ = &schedule;
  header_.type = FrameType::segment;
  header_.what = control::description_of(shown);
  element_bytes_ = size_of(request.dtype);
  segment_count_ = std::min(channels_.max_payload(), cut.segment_bytes) / element_bytes_;
  const auto parts = static_cast<std::size_t>(schedule.parts);
  std::size_t longest = parts == 0 ? request.count : (request.count + parts - 1) / parts;
  if (request.uneven) {
    longest = std::max(lay_out(request.send_counts, request.input.count, input_firsts_),
                       lay_out(request.recv_counts, request.output.count, output_firsts_));
  }
  const std::size_t rounds = schedule.round_ends.size();
  segments_ = longest <= segment_count_ ? 1 : (longest + segment_count_ - 1) / segment_count_;
  depth_ = std::min(cut.depth, segments_);
  slots_ = rounds == 0 ? 0 : segments_ + depth_ * (rounds - 1);
  first_slot_ = 0;
  failed_ = false;
  awaited_ = -1;
  missing_operand_ = nullptr;
  finished_.assign(depth_ * schedule.steps.size(), 0);
  scratch_stride_ = std::min(segment_count_, longest) * element_bytes_;
  scratch_segments_ = std::min(segments_, depth_ * rounds);
  const std::size_t scratch =
      static_cast<std::size_t>(schedule.scratch_chunks) * scratch_segments_ * scratch_stride_;
  if (scratch_.size() < scratch) scratch_.resize(scratch);
}

bool Executor::step() {
  while (first_slot_ < slots_) {
    const std::size_t first = first_slot_;
    const std::size_t end = std::min(first + depth_, slots_);
    ++pass_;
    missing_ = 0;
    awaited_ = -1;
    for (std::size_t slot = first; slot < end && !failed_; ++slot) {
      if (run_slot(slot) && slot == first_slot_) close_slot();
    }
    if (failed_ || first_slot_ == first) return false;
  }
  return true;
}

void Executor::close_slot() noexcept {
  std::uint8_t* const finished = finished_of(first_slot_++);
  std::fill_n(finished, schedule_->steps.size(), 0);
}

std::uint8_t* Executor::finished_of(std::size_t slot) noexcept {
  return depth_ == 1 ? finished_.data()
                     : finished_.data() + slot % depth_ * schedule_->steps.size();
}

bool Executor::run_slot(std::size_t slot) {
  bool all = true;
  std::size_t round = slot < segments_ ? 0 : (slot - segments_) / depth_ + 1;
  for (; round < schedule_->round_ends.size() && round * depth_ <= slot; ++round) {
    segment_ = slot - round * depth_;
    all = run_round(round, finished_of(slot)) && all;
  }
  return all;
}

bool Executor::run_round(std::size_t round, std::uint8_t* finished) {
  bool all = true;
  const std::uint32_t end = schedule_->round_ends[round];
  for (std::uint32_t i = round == 0 ? 0 : schedule_->round_ends[round - 1]; i < end; ++i) {
    if (finished[i] != 0) continue;
    const Step& step = schedule_->steps[i];
    if (run(step)) {
      finished[i] = 1;
      continue;
    }
    all = false;
    if (step.kind != Step::Kind::send && awaits_many()) break;  // no send comes after a receive
  }
  return all;
}

Executor::Span Executor::extent_of(const Place& place) const noexcept {
  if (place.space == Space::nothing) return {};
  const auto chunk = static_cast<std::size_t>(place.chunk);
  if (request_->uneven) {
    const auto& firsts = place.space == Space::input ? input_firsts_ : output_firsts_;
    return {firsts[chunk], firsts[chunk + 1] - firsts[chunk]};
  }
  const auto parts = static_cast<std::size_t>(schedule_->parts);
  if (parts == 0) return {request_->count * chunk, request_->count};
  // count * c / parts, without overflow
  const auto begin_of = [&](std::size_t part) {
    return request_->count / parts * part + request_->count % parts * part / parts;
  };
  return {begin_of(chunk), begin_of(chunk + 1) - begin_of(chunk)};
}

Executor::Span Executor::span_of(const Place& place) const noexcept {
  const Span extent = extent_of(place);
  const std::size_t begin = std::min(segment_ * segment_count_, extent.count);
  return {extent.first + begin, std::min(segment_count_, extent.count - begin)};
}

std::size_t Executor::bytes_of(const Place& place) const noexcept {
  return span_of(place).count * element_bytes_;
}

const void* Executor::source(const Place& place) const noexcept {
  switch (place.space) {
    case Space::nothing:
      return nullptr;
    case Space::input:
      return static_cast<const std::byte*>(request_->input.data) +
             span_of(place).first * element_bytes_;
    case Space::output:
      return static_cast<const std::byte*>(request_->output.data) +
             span_of(place).first * element_bytes_;
    case Space::scratch:
      return scratch_.data() +
             (segment_ % scratch_segments_ * static_cast<std::size_t>(schedule_->scratch_chunks) +
              static_cast<std::size_t>(place.chunk)) *
                 scratch_stride_;
  }
  return nullptr;
}

void* Executor::target(const Place& place) noexcept { return const_cast<void*>(source(place)); }

/// What cannot go now holds up what is behind it on its channels.
bool Executor::run(const Step& step) {
  switch (step.kind) {
    case Step::Kind::send: {
      const bool did = !sends_.is(step.peer, pass_) && send(step);
      if (!did) sends_.set(step.peer, pass_);
      return did;
    }
    case Step::Kind::recv: {
      const bool did = !awaits_many() && !receives_.is(step.peer, pass_) && recv(step);
      if (!did) hold_receives(step.peer);
      return did;
    }
    case Step::Kind::reduce: {
      if (!is_held(step) && reduce(step)) return true;
      for (const Operand& operand : schedule_->operands_of(step)) {
        if (awaits_many()) break;
        if (operand.peer >= 0) hold_receives(operand.peer);
      }
      return false;
    }
    case Step::Kind::copy:
      copy(step);
      return true;
    case Step::Kind::identity:
      fill_identity(request_->dtype, request_->reduce.kind(), target(step.target),
                    span_of(step.target).count);
      return true;
  }
  return true;
}

void Executor::hold_receives(int peer) noexcept {
  if (receives_.set(peer, pass_)) ++missing_;
}

bool Executor::is_held(const Step& reduce) const noexcept {
  if (missing_ == 0) return false;
  if (awaits_many()) return true;
  const std::span<const Operand> operands = schedule_->operands_of(reduce);
  return std::any_of(operands.begin(), operands.end(), [&](const Operand& operand) {
    return operand.peer >= 0 && receives_.is(operand.peer, pass_);
  });
}

bool Executor::send(const Step& step) {
  const std::size_t byte_count = bytes_of(step.source);
  if (byte_count == 0 && segment_ > 0) return true;
  header_.segment = static_cast<std::uint32_t>(segment_);
  header_.payload_bytes = static_cast<std::uint32_t>(byte_count);
  if (request_->uneven) header_.what.count = extent_of(step.source).count;
  const Sent sent = channels_.sender(step.peer).try_send(header_, source(step.source));
  if (sent != Sent::nothing) moved(step.peer);
  if (sent != Sent::whole) await(step.peer);
  return sent == Sent::whole;
}

bool Executor::recv(const Step& step) {
  const std::size_t byte_count = bytes_of(step.target);
  if (byte_count == 0 && segment_ > 0) return true;
  const Frame* frame = expect(step.peer, step.target);
  if (frame == nullptr) return false;
  Receiver& receiver = channels_.receiver(step.peer);
  if (receiver.take_into(static_cast<std::byte*>(target(step.target))) > 0) moved(step.peer);
  if (frame->is_taken()) {
    drop(step.peer);
    return true;
  }
  await(step.peer);
  return false;
}

/// Adds what has come, to its end: who sleeps arms only connections that are read out.
bool Executor::reduce(const Step& step) {
  if (bytes_of(step.target) == 0 && segment_ > 0) return true;
  if (is_missing_still(step)) return false;
  bool is_done = false;
  while (!is_done && add(step, is_done)) {
  }
  return is_done;
}

/// Looks at it before all that was there already.
bool Executor::is_missing_still(const Step& reduce) {
  const std::span<const Operand> operands = schedule_->operands_of(reduce);
  const bool is_of_it =
      missing_operand_ >= operands.data() && missing_operand_ < operands.data() + operands.size();
  return is_of_it && expect(missing_operand_->peer, reduce.target) == nullptr;
}

/// Adds what lies here of every operand; false: nothing. They are taken in step, so that all are
/// equally far.
bool Executor::add(const Step& step, bool& is_done) {
  const std::size_t byte_count = bytes_of(step.target);
  const std::span<const Operand> operands = schedule_->operands_of(step);
  operands_.resize(operands.size());
  std::size_t taken = 0, most = byte_count;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const int peer = operands[i].peer;
    if (peer < 0) continue;
    const Frame* frame = expect(peer, step.target);
    if (frame == nullptr) {
      missing_operand_ = &operands[i];
      return false;
    }
    taken = frame->taken;
    if (frame->payload.size() < most) {
      most = frame->payload.size();
      await(peer);
    }
    operands_[i] = frame->payload.data();
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].peer < 0)
      operands_[i] = static_cast<const std::byte*>(source(operands[i].place)) + taken;
  }
  const std::size_t count = most / element_bytes_;
  if (count == 0 && byte_count > 0) return false;
  if (count > 0) {
    kernels::reduce_tree(request_->dtype, request_->reduce, operands_.data(),
                         static_cast<int>(operands.size()),
                         static_cast<std::byte*>(target(step.target)) + taken, nullptr, count);
  }
  is_done = taken + count * element_bytes_ == byte_count;
  for (const Operand& operand : operands) {
    if (operand.peer < 0) continue;
    channels_.receiver(operand.peer).take(count * element_bytes_);
    is_done ? drop(operand.peer) : moved(operand.peer);
  }
  return true;
}

void Executor::copy(const Step& step) {
  const void* from = source(step.source);
  void* to = target(step.target);
  const std::size_t byte_count = bytes_of(step.target);
  if (byte_count > 0 && from != to) std::memcpy(to, from, byte_count);
}

const Frame* Executor::expect(int peer, const Place& target) {
  const Frame* frame = channels_.receiver(peer).peek();
  if (frame == nullptr) {
    await(peer);
    return nullptr;
  }
  const FrameHeader& header = frame->header;
  if (header.what.seq != request_->seq || header.what.chain != request_->chain) {
    failed_ = true;
    membership_.fail_mismatch(*shown_, peer, &header.what);
    return nullptr;
  }
  const std::size_t count = extent_of(target).count;
  if (request_->uneven && header.what.count != count) {
    failed_ = true;
    membership_.fail_counts(*shown_, peer, header.what.count, membership_.rank(), count);
    return nullptr;
  }
  const std::size_t byte_count = bytes_of(target);
  if (header.type != FrameType::segment || header.segment != segment_ ||
      header.payload_bytes != byte_count) {
    failed_ = true;
    membership_.fail({.code = ErrorCode::kInternal,
                      .text = fmt::format(
                          "rank {} sent {} bytes as segment {} where {} bytes of segment {} were "
                          "due. Please report this",
                          peer, header.payload_bytes, header.segment, byte_count, segment_),
                      .culprits = {peer},
                      .host = {}});
    return nullptr;
  }
  return frame;
}

/// The first one counts: others may only wait behind it.
void Executor::await(int peer) noexcept {
  if (awaited_ < 0) awaited_ = peer;
}

void Executor::drop(int peer) {
  channels_.receiver(peer).pop();
  moved(peer);
}

/// Something has changed that the peer may wait for; what went over a connection wakes it there.
/// On a host a wait goes on that sees bytes move: spinning would take the core from who moves them.
void Executor::moved(int peer) {
  membership_.progressed();
  if (channels_.connection(peer) == nullptr) {
    membership_.notify(peer);
  } else {
    has_moved_ = true;
  }
}

}  // namespace tutti::native
