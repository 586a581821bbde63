#include "conformance/cell.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <vector>

#include "conformance/values.h"
#include "reference.h"

namespace tutti::conformance {

namespace {

/// Everything about one cell as one rank sees it.
class Run {
 public:
  Run(ProcessGroup& group, const Cell& cell)
      : group_(group),
        cell_(cell),
        rank_(group.rank()),
        ranks_(static_cast<std::size_t>(group.world_size())),
        self_(static_cast<std::size_t>(group.rank())) {}

  std::string operator()() {
    make_buffers();
    call();
    return compare();
  }

 private:
  bool at_root() const { return rank_ == cell_.root; }
  bool is_message() const { return cell_.op == Op::send || cell_.op == Op::recv; }
  int sender() const { return static_cast<int>((self_ + ranks_ - distance()) % ranks_); }
  int receiver() const { return static_cast<int>((self_ + distance()) % ranks_); }
  std::size_t distance() const { return static_cast<std::size_t>(cell_.root); }

  /// Elements in the input of every rank, used or not.
  std::size_t input_count() const {
    const bool parts =
        cell_.op == Op::scatter || cell_.op == Op::reduce_scatter || cell_.op == Op::all_to_all;
    return parts ? cell_.count * ranks_ : cell_.count;
  }
  std::size_t output_count() const {
    const bool parts =
        cell_.op == Op::gather || cell_.op == Op::all_gather || cell_.op == Op::all_to_all;
    return parts ? cell_.count * ranks_ : cell_.count;
  }

  void make_buffers() {
    const std::size_t skew = cell_.seed % 3;
    if (!cell_.in_place) {
      input_.emplace(cell_.dtype, input_count(), skew);
      output_.emplace(cell_.dtype, output_count(), 2 - skew);
      in_ = input_->buffer();
      out_ = output_->buffer();
    } else if (input_count() >= output_count()) {  // output within input
      input_.emplace(cell_.dtype, input_count(), skew);
      in_ = input_->buffer();
      out_ = input_count() == output_count() ? in_ : input_->part(self_, cell_.count);
    } else {  // input within output
      output_.emplace(cell_.dtype, output_count(), skew);
      out_ = output_->buffer();
      in_ = output_->part(self_, cell_.count);
    }
    fill(cell_.seed, rank_, cell_.dtype, 0, input_count(), in_.data);
  }

  void call() {
    if (cell_.asynchronous) {
      start().wait();
    } else {
      block();
    }
  }

  void block() {
    const bool in_place = cell_.in_place;
    switch (cell_.op) {
      case Op::broadcast:
        return group_.broadcast(in_, {.root = cell_.root});
      case Op::all_reduce:
        return in_place ? group_.all_reduce(in_, {.op = cell_.reduce})
                        : group_.all_reduce(in_, out_, {.op = cell_.reduce});
      case Op::reduce:
        return in_place ? group_.reduce(in_, {.op = cell_.reduce, .root = cell_.root})
                        : group_.reduce(in_, at_root() ? out_ : Buffer(),
                                        {.op = cell_.reduce, .root = cell_.root});
      case Op::gather:
        return group_.gather(in_, at_root() ? out_ : Buffer(), {.root = cell_.root});
      case Op::all_gather:
        return in_place ? group_.all_gather(out_) : group_.all_gather(in_, out_);
      case Op::scatter:
        return group_.scatter(at_root() ? ConstBuffer(in_) : ConstBuffer(), out_,
                              {.root = cell_.root});
      case Op::reduce_scatter:
        return in_place ? group_.reduce_scatter(in_, {.op = cell_.reduce})
                        : group_.reduce_scatter(in_, out_, {.op = cell_.reduce});
      case Op::all_to_all:
        return in_place ? group_.all_to_all(in_) : group_.all_to_all(in_, out_);
      case Op::barrier:
        return group_.barrier();
      case Op::send:  // the sender blocks, the receiver has posted
      {
        Work received = group_.recv(out_, sender(), async);
        if (receiver() == rank_) {
          group_.send(in_, receiver(), async).wait();  // to oneself only asynchronously
        } else {
          group_.send(in_, receiver());
        }
        return received.wait();
      }
      case Op::recv:  // the receiver blocks, the sender has posted
      {
        Work sent = group_.send(in_, receiver(), async);
        group_.recv(out_, sender());
        return sent.wait();
      }
    }
  }

  Work start() {
    switch (cell_.op) {
      case Op::broadcast:
        return group_.broadcast(in_, {.root = cell_.root}, async);
      case Op::all_reduce:
        return cell_.in_place ? group_.all_reduce(in_, {.op = cell_.reduce}, async)
                              : group_.all_reduce(in_, out_, {.op = cell_.reduce}, async);
      case Op::reduce:
        return cell_.in_place ? group_.reduce(in_, {.op = cell_.reduce, .root = cell_.root}, async)
                              : group_.reduce(in_, at_root() ? out_ : Buffer(),
                                              {.op = cell_.reduce, .root = cell_.root}, async);
      case Op::gather:
        return group_.gather(in_, at_root() ? out_ : Buffer(), {.root = cell_.root}, async);
      case Op::all_gather:
        return group_.all_gather(in_, out_, async);
      case Op::scatter:
        return group_.scatter(at_root() ? ConstBuffer(in_) : ConstBuffer(), out_,
                              {.root = cell_.root}, async);
      case Op::reduce_scatter:
        return group_.reduce_scatter(in_, out_, {.op = cell_.reduce}, async);
      case Op::all_to_all:
        return group_.all_to_all(in_, out_, async);
      case Op::barrier:
        return group_.barrier(async);
      case Op::send:
      case Op::recv: {
        Work sent = group_.send(in_, receiver(), async);
        Work received = group_.recv(out_, sender(), async);
        sent.wait();
        return received;
      }
    }
    return {};
  }

  // ---- what it must be ------------------------------------------------------------------------

  /// Appends elements `first` on, `cell_.count` of them, of rank `from`.
  void append_input(int from, std::size_t first, std::vector<std::byte>* to) const {
    const std::size_t bytes = cell_.count * size_of(cell_.dtype);
    to->resize(to->size() + bytes);
    fill(cell_.seed, from, cell_.dtype, first, cell_.count, to->data() + to->size() - bytes);
  }

  /// The canonical reduction of elements `first` on, `cell_.count` of them, over all ranks.
  std::vector<std::byte> reduced(std::size_t first) const {
    std::vector<std::vector<std::byte>> inputs(ranks_);
    std::vector<const void*> pointers;
    for (std::size_t from = 0; from < ranks_; ++from) {
      append_input(static_cast<int>(from), first, &inputs[from]);
      pointers.push_back(inputs[from].data());
    }
    return reference::reduce(cell_.dtype, cell_.reduce, pointers, 0, cell_.count);
  }

  /// What this rank's output must hold; empty optional: this rank has none.
  std::optional<std::vector<std::byte>> expected() const {
    std::vector<std::byte> want;
    switch (cell_.op) {
      case Op::broadcast:
        append_input(cell_.root, 0, &want);
        return want;
      case Op::all_reduce:
        return reduced(0);
      case Op::reduce:
        if (!at_root()) return {};
        return reduced(0);
      case Op::gather:
      case Op::all_gather:
        if (cell_.op == Op::gather && !at_root()) return {};
        for (std::size_t from = 0; from < ranks_; ++from) {
          append_input(static_cast<int>(from), 0, &want);
        }
        return want;
      case Op::scatter:
        append_input(cell_.root, self_ * cell_.count, &want);
        return want;
      case Op::reduce_scatter:
        return reduced(self_ * cell_.count);
      case Op::all_to_all:
        for (std::size_t from = 0; from < ranks_; ++from) {
          append_input(static_cast<int>(from), self_ * cell_.count, &want);
        }
        return want;
      case Op::send:
      case Op::recv:
        append_input(sender(), 0, &want);
        return want;
      case Op::barrier:
        return {};
    }
    return {};
  }

  std::string compare() {
    if (input_ && !input_->guards_are_whole()) return "wrote outside the input";
    if (output_ && !output_->guards_are_whole()) return "wrote outside the output";
    const std::optional<std::vector<std::byte>> want = expected();
    const Buffer& got = cell_.op == Op::broadcast ? in_ : out_;
    if (want) {
      std::string differs = difference(cell_.dtype, want->data(), got.data, got.count);
      if (!differs.empty()) return differs;
    }
    const bool input_is_kept = !cell_.in_place || !want;
    if (input_is_kept && cell_.op != Op::broadcast) {
      std::vector<std::byte> before(in_.byte_count());
      fill(cell_.seed, rank_, cell_.dtype, 0, in_.count, before.data());
      if (!before.empty() && std::memcmp(before.data(), in_.data, before.size()) != 0) {
        return "changed its input";
      }
    }
    return {};
  }

  ProcessGroup& group_;
  const Cell& cell_;
  const int rank_;
  const std::size_t ranks_, self_;
  std::optional<Guarded> input_, output_;
  Buffer in_, out_;
};

}  // namespace

std::string describe(const Cell& cell) {
  return fmt::format("{} {} of {} x {}, {}, {}, root {}, seed {}", name_of(cell.op),
                     name_of(cell.reduce.kind()), cell.count, name_of(cell.dtype),
                     cell.in_place ? "in place" : "out of place",
                     cell.asynchronous ? "async" : "blocking", cell.root, cell.seed);
}

std::string run_cell(ProcessGroup& group, const Cell& cell) { return Run(group, cell)(); }

}  // namespace tutti::conformance
