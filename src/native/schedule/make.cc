// The makers, one per operation. Within a round peers are visited from the next rank upwards, so
// that not all ranks turn to the same one first.
#include <algorithm>

#include "native/schedule/schedule.h"

namespace tutti::native {

namespace {

using Space = Place::Space;

/// Writes down one rank's schedule round by round.
class Maker {
 public:
  explicit Maker(const Shape& shape) : shape_(shape) {}

  int rank() const noexcept { return shape_.rank; }
  int group_size() const noexcept { return shape_.group_size; }
  int root() const noexcept { return shape_.root; }
  bool at_root() const noexcept { return shape_.rank == shape_.root; }
  int peer(int distance) const noexcept {
    return (shape_.rank + distance + shape_.group_size) % shape_.group_size;
  }

  void send(int peer, Place source) {
    schedule_.steps.push_back({.kind = Step::Kind::send, .peer = peer, .source = source});
  }
  void recv(int peer, Place target) {
    schedule_.steps.push_back({.kind = Step::Kind::recv, .peer = peer, .target = target});
  }
  void copy(Place source, Place target) {
    schedule_.steps.push_back({.kind = Step::Kind::copy, .source = source, .target = target});
  }
  /// Combines the piece of every rank in rank order; the own one is at `own`.
  void reduce_all(Place own, Place target) { reduce_below(group_size(), own, target); }
  /// The same for the ranks below `end`.
  void reduce_below(int end, Place own, Place target) {
    if (end == 0) {
      schedule_.steps.push_back({.kind = Step::Kind::identity, .target = target});
      return;
    }
    Step step{.kind = Step::Kind::reduce, .target = target};
    step.first_operand = static_cast<std::uint32_t>(schedule_.operands.size());
    step.operand_count = static_cast<std::uint32_t>(end);
    for (int r = 0; r < end; ++r) {
      schedule_.operands.push_back(r == rank() ? Operand{.place = own} : Operand{.peer = r});
    }
    schedule_.steps.push_back(step);
  }
  void end_round() {
    const auto end = static_cast<std::uint32_t>(schedule_.steps.size());
    const std::uint32_t begin = schedule_.round_ends.empty() ? 0 : schedule_.round_ends.back();
    if (end > begin) schedule_.round_ends.push_back(end);
  }
  void need_scratch(int chunks) { schedule_.scratch_chunks = chunks; }
  void split(int parts) { schedule_.parts = parts; }
  Schedule finish() && {
    end_round();
    return std::move(schedule_);
  }

 private:
  const Shape shape_;
  Schedule schedule_;
};

constexpr Place input(int chunk) { return {Space::input, chunk}; }
constexpr Place output(int chunk) { return {Space::output, chunk}; }
constexpr Place scratch(int chunk) { return {Space::scratch, chunk}; }

/// Binomial tree over ranks counted from the root: v hears from v without its lowest set bit.
void make_broadcast(Maker& make) {
  const int n = make.group_size();
  const int from_root = (make.rank() - make.root() + n) % n;
  if (make.at_root()) {
    make.copy(input(0), output(0));
  } else {
    const int parent = from_root & (from_root - 1);
    make.recv((parent + make.root()) % n, output(0));
    make.end_round();
  }
  int step = 1;
  while (step < n && (from_root & step) == 0) step *= 2;
  for (step /= 2; step > 0; step /= 2) {  // the largest subtree first
    if (from_root + step >= n) continue;
    make.send((from_root + step + make.root()) % n, make.at_root() ? input(0) : output(0));
  }
}

void make_reduce(Maker& make) {
  if (make.at_root()) {
    make.reduce_all(input(0), output(0));
  } else {
    make.send(make.root(), input(0));
  }
}

void make_gather(Maker& make) {
  if (!make.at_root()) return make.send(make.root(), input(0));
  make.copy(input(0), output(make.rank()));
  for (int i = 1; i < make.group_size(); ++i) make.recv(make.peer(i), output(make.peer(i)));
}

void make_scatter(Maker& make) {
  if (!make.at_root()) return make.recv(make.root(), output(0));
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), input(make.peer(i)));
  make.copy(input(make.rank()), output(0));
}

/// Everybody hands `own` to everybody; the others' land in the output by rank.
void exchange_own(Maker& make, Place own) {
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), own);
  for (int i = 1; i < make.group_size(); ++i) make.recv(make.peer(-i), output(make.peer(-i)));
}

void make_all_gather(Maker& make) {
  exchange_own(make, input(0));
  make.copy(input(0), output(make.rank()));
}

void make_reduce_scatter(Maker& make) {
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), input(make.peer(i)));
  make.reduce_all(input(make.rank()), output(0));
}

/// Reduce-scatter, then all-gather, over as many chunks as ranks.
void make_all_reduce(Maker& make) {
  make.split(make.group_size());
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), input(make.peer(i)));
  make.reduce_all(input(make.rank()), output(make.rank()));
  make.end_round();
  exchange_own(make, output(make.rank()));
}

void make_all_to_all(Maker& make, bool in_place) {
  if (in_place) {
    make.need_scratch(make.group_size());
    for (int i = 1; i < make.group_size(); ++i) {
      make.copy(input(make.peer(i)), scratch(make.peer(i)));
    }
    make.end_round();
  }
  for (int i = 1; i < make.group_size(); ++i) {
    make.send(make.peer(i), in_place ? scratch(make.peer(i)) : input(make.peer(i)));
  }
  for (int i = 1; i < make.group_size(); ++i) make.recv(make.peer(-i), output(make.peer(-i)));
  if (!in_place) make.copy(input(make.rank()), output(make.rank()));
}

/// Everybody hands its input to all ranks above and combines what comes from below: n (n - 1) / 2
/// messages of the whole buffer, the most of them (n - 1) to or from one rank.
void make_scan(Maker& make, bool in_place, bool exclusive) {
  Place own = input(0);
  const int above = make.rank() + 1;
  if (in_place && above < make.group_size()) {
    own = scratch(0);
    make.need_scratch(1);
    make.copy(input(0), own);
    make.end_round();
  }
  for (int r = above; r < make.group_size(); ++r) make.send(r, own);
  make.reduce_below(exclusive ? make.rank() : above, own, output(0));
}

/// Dissemination: after round k a rank has heard, directly or not, from 2^(k+1) - 1 ranks below it.
void make_barrier(Maker& make) {
  for (int distance = 1; distance < make.group_size(); distance *= 2) {
    make.send(make.peer(distance), {});
    make.recv(make.peer(-distance), {});
    make.end_round();
  }
}

}  // namespace

std::size_t Schedule::widest_round() const noexcept {
  std::uint32_t widest = 0;
  std::uint32_t begin = 0;
  for (const std::uint32_t end : round_ends) {
    widest = std::max(widest, end - begin);
    begin = end;
  }
  return widest;
}

Schedule make_schedule(const Shape& shape) {
  Maker make(shape);
  switch (shape.op) {
    case Op::broadcast:
      make_broadcast(make);
      break;
    case Op::all_reduce:
      make_all_reduce(make);
      break;
    case Op::reduce:
      make_reduce(make);
      break;
    case Op::gather:
      make_gather(make);
      break;
    case Op::all_gather:
      make_all_gather(make);
      break;
    case Op::scatter:
      make_scatter(make);
      break;
    case Op::reduce_scatter:
      make_reduce_scatter(make);
      break;
    case Op::all_to_all:
      make_all_to_all(make, shape.in_place);
      break;
    case Op::barrier:
      make_barrier(make);
      break;
    case Op::scan:
    case Op::exclusive_scan:
      make_scan(make, shape.in_place, shape.op == Op::exclusive_scan);
      break;
    case Op::send:
    case Op::recv:
      break;  // messages are not schedules
  }
  return std::move(make).finish();
}

}  // namespace tutti::native
