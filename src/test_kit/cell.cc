#include "test_kit/cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "test_kit/bound.h"
#include "test_kit/reference.h"
#include "test_kit/values.h"

namespace tutti::conformance {

namespace {

using Counts = std::vector<std::size_t>;

/// Of a call with `mode`: nothing, or `async`.
template <class... Mode>
using Result = std::conditional_t<sizeof...(Mode) == 0, void, Work>;

/// Everything about one cell as one rank sees it.
class Run {
 public:
  Run(ProcessGroup& group, const Cell& cell, bool canonical, const test_kit::DeviceMemory* memory)
      : group_(group),
        cell_(cell),
        canonical_(canonical),
        memory_(memory),
        rank_(group.rank()),
        ranks_(static_cast<std::size_t>(group.world_size())),
        self_(static_cast<std::size_t>(group.rank())) {}

  Verdict operator()() {
    make_buffers();
    memory_ != nullptr ? call_there() : call();
    return {compare(), exact() ? 0 : bits_of(cell_.dtype, out_.data, out_.count)};
  }

 private:
  bool at_root() const { return rank_ == cell_.root; }
  /// Whether anything arrives at this rank.
  bool receives() const {
    const bool at_root_only = cell_.op == Op::reduce || cell_.op == Op::gather;
    return cell_.op != Op::barrier && (at_root() || !at_root_only);
  }
  bool keeps_input() const { return cell_.op != Op::broadcast && !(cell_.in_place && receives()); }
  bool is_message() const { return cell_.op == Op::send || cell_.op == Op::recv; }
  int sender() const { return static_cast<int>((self_ + ranks_ - distance()) % ranks_); }
  int receiver() const { return static_cast<int>((self_ + distance()) % ranks_); }
  std::size_t distance() const { return static_cast<std::size_t>(cell_.root); }

  bool splits_input() const {
    return cell_.op == Op::scatter || cell_.op == Op::reduce_scatter || cell_.op == Op::all_to_all;
  }
  bool joins_output() const {
    return cell_.op == Op::gather || cell_.op == Op::all_gather || cell_.op == Op::all_to_all;
  }
  /// Elements that go from one rank to another: the same for all, or many lengths and none.
  std::size_t piece(std::size_t from, std::size_t to) const {
    if (!cell_.uneven) return cell_.count;
    const std::size_t who = (splits_input() ? to : 0) + (joins_output() ? 3 * from : 0);
    switch ((who + cell_.seed) % 4) {
      case 0:
        return 0;
      case 1:
        return cell_.count / 2 + 1;
      case 2:
        return cell_.count;
      default:
        return 1;
    }
  }
  /// What rank `from` sends to every rank, what every rank sends to `to`.
  Counts sent_by(std::size_t from) const {
    Counts counts;
    for (std::size_t to = 0; to < ranks_; ++to) counts.push_back(piece(from, to));
    return counts;
  }
  Counts sent_to(std::size_t to) const {
    Counts counts;
    for (std::size_t from = 0; from < ranks_; ++from) counts.push_back(piece(from, to));
    return counts;
  }
  /// Elements before part `index`.
  static std::size_t offset(const Counts& counts, std::size_t index) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(index),
                           std::size_t{0});
  }
  /// Elements in the input of every rank, used or not.
  std::size_t input_count() const {
    return splits_input() ? offset(sent_by(self_), ranks_) : piece(self_, 0);
  }
  std::size_t output_count() const {
    return joins_output() ? offset(sent_to(self_), ranks_) : piece(0, self_);
  }

  void make_buffers() {
    const std::size_t skew = cell_.seed % 3;
    if (!cell_.in_place) {
      input_.emplace(cell_.dtype, input_count(), skew);
      output_.emplace(cell_.dtype, output_count(), 2 - skew);
      in_ = input_->buffer();
      out_ = output_->buffer();
    } else if (splits_input() == joins_output()) {
      input_.emplace(cell_.dtype, input_count(), skew);
      in_ = out_ = input_->buffer();
    } else if (splits_input()) {  // output within input
      input_.emplace(cell_.dtype, input_count(), skew);
      in_ = input_->buffer();
      out_ = input_->part(offset(sent_by(self_), self_), output_count());
    } else {  // input within output
      output_.emplace(cell_.dtype, output_count(), skew);
      out_ = output_->buffer();
      in_ = output_->part(offset(sent_to(self_), self_), input_count());
    }
    fill(cell_.seed, rank_, cell_.dtype, 0, input_count(), in_.data);
    if (keeps_input()) {
      const auto* const bytes = static_cast<const std::byte*>(in_.data);
      kept_.assign(bytes, bytes + in_.byte_count());
    }
  }

  /// Calls with copies of the buffers, guards and all, in the memory of the device.
  void call_there() {
    const Buffer in = in_, out = out_;
    const std::shared_ptr<void> input = move_there(input_), output = move_there(output_);
    call();
    move_back(input_, input.get());
    move_back(output_, output.get());
    in_ = in;
    out_ = out;
  }
  std::shared_ptr<void> move_there(std::optional<Guarded>& guarded) {
    if (!guarded) return nullptr;
    std::vector<std::byte>& bytes = guarded->bytes();
    std::shared_ptr<void> there = memory_->allocate(bytes.size());
    memory_->copy_there(there.get(), bytes.data(), bytes.size());
    for (Buffer* const buffer : {&in_, &out_}) {
      const auto* const data = static_cast<const std::byte*>(buffer->data);
      if (data < bytes.data() || data >= bytes.data() + bytes.size()) continue;
      buffer->data = static_cast<std::byte*>(there.get()) + (data - bytes.data());
      buffer->device = memory_->device;
      buffer->stream = memory_->stream;
    }
    return there;
  }
  void move_back(std::optional<Guarded>& guarded, const void* there) {
    if (!guarded) return;
    std::vector<std::byte>& bytes = guarded->bytes();
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    memory_->copy_back(bytes.data(), there, bytes.size());
  }

  void call() {
    if (is_message()) return exchange();
    if (cell_.asynchronous) {
      issue(async).wait();
    } else {
      issue();
    }
  }

  /// Calls the collective: blocking, or with `async`. The counts are gone when it returns.
  template <class... Mode>
  Result<Mode...> issue(Mode... mode) {
    if (cell_.uneven) return issue_uneven(mode...);
    const AllReduceOptions reduction{.op = cell_.reduce};
    const ReduceOptions reduction_to_root{.op = cell_.reduce, .root = cell_.root};
    const RootedOptions rooted{.root = cell_.root};
    // In place, with both buffers named or, where there is a form for it, with one.
    const bool in_place = cell_.in_place;
    switch (cell_.op) {
      case Op::broadcast:
        return group_.broadcast(in_, rooted, mode...);
      case Op::all_reduce:
        return in_place ? group_.all_reduce(in_, reduction, mode...)
                        : group_.all_reduce(in_, out_, reduction, mode...);
      case Op::reduce:
        return in_place
                   ? group_.reduce(in_, reduction_to_root, mode...)
                   : group_.reduce(in_, at_root() ? out_ : Buffer(), reduction_to_root, mode...);
      case Op::gather:
        return group_.gather(in_, at_root() ? out_ : Buffer(), rooted, mode...);
      case Op::all_gather:
        return in_place ? group_.all_gather(out_, mode...) : group_.all_gather(in_, out_, mode...);
      case Op::scatter:
        return group_.scatter(at_root() ? ConstBuffer(in_) : ConstBuffer(), out_, rooted, mode...);
      case Op::reduce_scatter:
        return in_place ? group_.reduce_scatter(in_, reduction, mode...)
                        : group_.reduce_scatter(in_, out_, reduction, mode...);
      case Op::all_to_all:
        return in_place ? group_.all_to_all(in_, mode...) : group_.all_to_all(in_, out_, mode...);
      case Op::scan:
        return in_place ? group_.scan(in_, reduction, mode...)
                        : group_.scan(in_, out_, reduction, mode...);
      case Op::exclusive_scan:
        return in_place ? group_.exclusive_scan(in_, reduction, mode...)
                        : group_.exclusive_scan(in_, out_, reduction, mode...);
      case Op::barrier:
        return group_.barrier(mode...);
      case Op::send:
      case Op::recv:
        break;
    }
    throw std::logic_error("not a collective");
  }

  template <class... Mode>
  Result<Mode...> issue_uneven(Mode... mode) {
    const Counts sends = sent_by(self_), receives = sent_to(self_);
    const Buffer out = at_root() ? out_ : Buffer();
    const ConstBuffer in = at_root() ? ConstBuffer(in_) : ConstBuffer();
    const RootedOptions rooted{.root = cell_.root};
    switch (cell_.op) {
      case Op::gather:
        return group_.gatherv(in_, out, receives, rooted, mode...);
      case Op::all_gather:
        return group_.all_gatherv(in_, out_, receives, {}, mode...);
      case Op::scatter:
        return group_.scatterv(in, sends, out_, rooted, mode...);
      case Op::reduce_scatter:
        return group_.reduce_scatterv(in_, out_, sends, {.op = cell_.reduce}, mode...);
      case Op::all_to_all:
        return group_.all_to_allv(in_, sends, out_, receives, {}, mode...);
      case Op::send:
      case Op::recv:
      case Op::broadcast:
      case Op::all_reduce:
      case Op::reduce:
      case Op::barrier:
      case Op::scan:
      case Op::exclusive_scan:
        break;
    }
    throw std::logic_error("no v-variant");
  }

  /// Sends to one rank and receives from another.
  void exchange() {
    if (!cell_.asynchronous && cell_.op == Op::send && receiver() != rank_) {
      // The sender blocks, the receiver has posted; to oneself one sends only asynchronously.
      Work received = group_.recv(out_, sender(), async);
      group_.send(in_, receiver());
      return received.wait();
    }
    Work sent = group_.send(in_, receiver(), async);
    if (!cell_.asynchronous &&
        cell_.op == Op::recv) {  // the receiver blocks, the sender has posted
      group_.recv(out_, sender());
      return sent.wait();
    }
    Work received = group_.recv(out_, sender(), async);
    sent.wait();
    received.wait();
  }

  // ---- what it must be ------------------------------------------------------------------------

  /// Appends `count` elements of rank `from`, `first` on.
  void append_input(std::size_t from, std::size_t first, std::size_t count,
                    std::vector<std::byte>* to) const {
    const std::size_t bytes = count * size_of(cell_.dtype);
    to->resize(to->size() + bytes);
    fill(cell_.seed, static_cast<int>(from), cell_.dtype, first, count,
         to->data() + to->size() - bytes);
  }
  /// Appends the piece that goes from one rank to another.
  void append_piece(std::size_t from, std::size_t to, std::vector<std::byte>* bytes) const {
    append_input(from, splits_input() ? offset(sent_by(from), to) : 0, piece(from, to), bytes);
  }

  /// What the ranks below `end` send to `to`.
  std::vector<std::vector<std::byte>> pieces_for(std::size_t to, std::size_t end) const {
    std::vector<std::vector<std::byte>> pieces(end);
    for (std::size_t from = 0; from < end; ++from) append_piece(from, to, &pieces[from]);
    return pieces;
  }
  static std::vector<const void*> pointers_to(const std::vector<std::vector<std::byte>>& pieces) {
    std::vector<const void*> pointers;
    for (const std::vector<std::byte>& piece : pieces) pointers.push_back(piece.data());
    return pointers;
  }
  /// The canonical reduction of that.
  std::vector<std::byte> reduced(std::size_t to, std::size_t end) const {
    if (end == 0) return reference::identity(cell_.dtype, cell_.reduce.kind(), piece(0, to));
    return reference::reduce(cell_.dtype, cell_.reduce, pointers_to(pieces_for(to, end)), 0,
                             piece(0, to));
  }
  /// How many ranks take part in this rank's result.
  std::size_t reduced_ranks() const {
    return cell_.op == Op::scan ? self_ + 1 : cell_.op == Op::exclusive_scan ? self_ : ranks_;
  }
  /// Whether one result alone is right; else it lies within a bound.
  bool exact() const {
    return canonical_ || !reduces(cell_.op) ||
           !depends_on_order(cell_.dtype, cell_.reduce.kind()) || reduced_ranks() == 0;
  }
  std::string differs_from(const std::vector<std::byte>& want, const Buffer& got) const {
    if (exact()) return difference(cell_.dtype, want.data(), got.data, got.count);
    return out_of_bound(cell_.dtype, cell_.reduce, pointers_to(pieces_for(self_, reduced_ranks())),
                        want.data(), got.data, got.count);
  }

  /// What this rank's output must hold.
  std::vector<std::byte> expected() const {
    std::vector<std::byte> want;
    const auto root = static_cast<std::size_t>(cell_.root);
    switch (cell_.op) {
      case Op::broadcast:
      case Op::scatter:
        append_piece(root, self_, &want);
        return want;
      case Op::all_reduce:
      case Op::reduce_scatter:
      case Op::reduce:
        return reduced(self_, ranks_);
      case Op::scan:
        return reduced(self_, self_ + 1);
      case Op::exclusive_scan:
        return reduced(self_, self_);
      case Op::gather:
      case Op::all_gather:
      case Op::all_to_all:
        for (std::size_t from = 0; from < ranks_; ++from) append_piece(from, self_, &want);
        return want;
      case Op::send:
      case Op::recv:
        append_piece(static_cast<std::size_t>(sender()), self_, &want);
        return want;
      case Op::barrier:
        return {};
    }
    return {};
  }

  std::string compare() {
    if (input_ && !input_->guards_are_whole()) return "wrote outside the input";
    if (output_ && !output_->guards_are_whole()) return "wrote outside the output";
    if (receives()) {
      const Buffer& got = cell_.op == Op::broadcast ? in_ : out_;
      std::string differs = differs_from(expected(), got);
      if (!differs.empty()) return differs;
    }
    if (!kept_.empty() && std::memcmp(kept_.data(), in_.data, kept_.size()) != 0) {
      return "changed its input";
    }
    return {};
  }

  ProcessGroup& group_;
  const Cell& cell_;
  const bool canonical_;
  const test_kit::DeviceMemory* const memory_;
  const int rank_;
  const std::size_t ranks_, self_;
  std::optional<Guarded> input_, output_;
  std::vector<std::byte> kept_;  ///< the input, where the operation leaves it
  Buffer in_, out_;
};

}  // namespace

std::string describe(const Cell& cell) {
  return fmt::format("{}{} {} of {} x {}, {}, {}, root {}, seed {}", name_of(cell.op),
                     cell.uneven ? "v" : "", name_of(cell.reduce.kind()), cell.count,
                     name_of(cell.dtype), cell.in_place ? "in place" : "out of place",
                     cell.asynchronous ? "async" : "blocking", cell.root, cell.seed);
}

Verdict run_cell(ProcessGroup& group, const Cell& cell, bool canonical,
                 const test_kit::DeviceMemory* memory) {
  return Run(group, cell, canonical, memory)();
}

}  // namespace tutti::conformance
