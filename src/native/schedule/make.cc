// The makers, one per operation and algorithm. Within a round peers are visited from the next rank
// upwards, so that not all ranks turn to the same one first.
//
// *direct*: whoever needs a chunk gets it from who has it. *exchange*: everybody gets the whole
// input of everybody: one step in time, for two ranks or few bytes. *doubling*: with the partner
// 1, 2, 4 ... away everybody doubles what it has combined. *binomial*: along a tree in which the
// subtrees are those of the canonical order. *pairwise*: with one peer after another. *ring*: from
// neighbour to neighbour, host after host, so that each host is entered once.
#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include "base/of_rank.h"
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
  std::span<const int> hosts() const noexcept { return shape_.hosts; }
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
  /// Combines what is at `own` with the message of a peer, in rank order.
  void reduce_with(int peer, Place own, Place target) {
    const Operand mine{.place = own}, theirs{.peer = peer};
    const bool is_below = rank() < peer;
    reduce({is_below ? mine : theirs, is_below ? theirs : mine}, target);
  }
  /// Combines the piece of every rank in rank order; the own one is at `own`.
  void reduce_all(Place own, Place target) { reduce_below(group_size(), own, target); }
  /// The same for the ranks below `end`.
  void reduce_below(int end, Place own, Place target) {
    if (end == 0) {
      schedule_.steps.push_back({.kind = Step::Kind::identity, .target = target});
      return;
    }
    std::vector<Operand> operands;
    for (int r = 0; r < end; ++r) {
      operands.push_back(r == rank() ? Operand{.place = own} : Operand{.peer = r});
    }
    reduce(operands, target);
  }
  void reduce(const std::vector<Operand>& operands, Place target) {
    Step step{.kind = Step::Kind::reduce, .target = target};
    step.first_operand = static_cast<std::uint32_t>(schedule_.operands.size());
    step.operand_count = static_cast<std::uint32_t>(operands.size());
    schedule_.operands.insert(schedule_.operands.end(), operands.begin(), operands.end());
    schedule_.steps.push_back(step);
  }
  /// It may be empty: others do something in it.
  void end_round() {
    schedule_.round_ends.push_back(static_cast<std::uint32_t>(schedule_.steps.size()));
  }
  void need_scratch(int chunks) { schedule_.scratch_chunks = chunks; }
  void split(int parts) { schedule_.parts = parts; }
  Schedule finish() && {
    const std::uint32_t ended = schedule_.round_ends.empty() ? 0 : schedule_.round_ends.back();
    if (schedule_.steps.size() > ended) end_round();
    return std::move(schedule_);
  }

 private:
  const Shape shape_;
  Schedule schedule_;
};

constexpr Place input(int chunk) { return {Space::input, chunk}; }
constexpr Place output(int chunk) { return {Space::output, chunk}; }
constexpr Place scratch(int chunk) { return {Space::scratch, chunk}; }

/// The distance of the first of log2 n rounds in which it is halved.
int farthest(int group_size) noexcept {
  return group_size < 2 ? 0
                        : static_cast<int>(std::bit_floor(static_cast<unsigned>(group_size - 1)));
}

/// Over ranks counted from the root: v hears from v without its lowest set bit, and hands on. The
/// root begins with `own`.
void spread(Maker& make, int root, Place own) {
  const int n = make.group_size();
  const int from_root = (make.rank() - root + n) % n;
  for (int distance = farthest(n); distance > 0; distance /= 2) {  // the largest subtree first
    const int within = from_root % (2 * distance);
    if (within == 0 && from_root + distance < n) {
      make.send((from_root + distance + root) % n, from_root == 0 ? own : output(0));
    }
    if (within == distance) make.recv((from_root - distance + root) % n, output(0));
    make.end_round();
  }
}

/// Rank r without its lowest set bit gets what r has combined: the ranks from r on, as many as that
/// bit says. Returns where rank 0 has the whole.
Place gather_sums(Maker& make, Place sum) {
  Place own = input(0);
  bool is_in = true;
  for (int distance = 1; distance < make.group_size(); distance *= 2) {
    const bool sends = is_in && (make.rank() & distance) != 0;
    if (sends) make.send(make.rank() - distance, own);
    is_in = is_in && !sends;
    if (is_in && make.rank() + distance < make.group_size()) {
      make.reduce_with(make.rank() + distance, own, sum);
      own = sum;
    }
    make.end_round();
  }
  return own;
}

/// Every rank once, beginning with `first`: host after host, those of its own first.
std::vector<int> along_hosts(const Maker& make, int first) {
  std::vector<int> ranks(static_cast<std::size_t>(make.group_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto host_of = [&](int rank) {
    return make.hosts().empty() ? 0 : make.hosts()[static_cast<std::size_t>(rank)];
  };
  const auto key = [&](int rank) {
    const bool is_near = host_of(rank) == host_of(first);
    return std::tuple(!is_near, is_near ? rank != first : false, host_of(rank), rank);
  };
  std::sort(ranks.begin(), ranks.end(), [&](int a, int b) { return key(a) < key(b); });
  return ranks;
}

int position_of(const std::vector<int>& ranks, int rank) noexcept {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// From the root through all ranks, one after the other.
void make_chain(Maker& make) {
  const std::vector<int> chain = along_hosts(make, make.root());
  const int own = position_of(chain, make.rank());
  for (int round = 0; round + 1 < make.group_size(); ++round) {
    if (own == round + 1) make.recv(of_rank(chain, own - 1), output(0));
    if (own == round) make.send(of_rank(chain, own + 1), own == 0 ? input(0) : output(0));
    make.end_round();
  }
}

void make_broadcast(Maker& make, Algorithm algorithm) {
  if (make.at_root()) make.copy(input(0), output(0));
  algorithm == Algorithm::ring ? make_chain(make) : spread(make, make.root(), input(0));
}

void make_reduce(Maker& make, Algorithm algorithm) {
  if (algorithm == Algorithm::binomial) {
    const bool at_end = make.at_root() && make.root() == 0;
    if (!at_end) make.need_scratch(1);
    const Place whole = gather_sums(make, at_end ? output(0) : scratch(0));
    if (make.root() == 0) return;
    if (make.rank() == 0) make.send(make.root(), whole);
    if (make.at_root()) make.recv(0, output(0));
    return;
  }
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

/// What came in one round goes on in the next.
void make_ring(Maker& make) {
  const int n = make.group_size();
  const std::vector<int> ring = along_hosts(make, 0);
  const int own = position_of(ring, make.rank());
  const auto at = [&](int distance) { return of_rank(ring, (own + distance + n) % n); };
  make.copy(input(0), output(make.rank()));
  for (int round = 0; round + 1 < n; ++round) {
    make.send(at(1), round == 0 ? input(0) : output(at(-round)));
    make.recv(at(-1), output(at(-round - 1)));
    make.end_round();
  }
}

void make_all_gather(Maker& make, Algorithm algorithm) {
  if (algorithm == Algorithm::ring) return make_ring(make);
  exchange_own(make, input(0));
  make.copy(input(0), output(make.rank()));
}

void make_reduce_scatter(Maker& make) {
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), input(make.peer(i)));
  make.reduce_all(input(make.rank()), output(0));
}

/// The output may be the input, which must have gone to all before it is written.
void make_exchange(Maker& make) {
  make.need_scratch(make.group_size());
  std::vector<Operand> all;
  for (int r = 0; r < make.group_size(); ++r) {
    all.push_back({.place = r == make.rank() ? input(0) : scratch(r)});
  }
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), input(0));
  for (int i = 1; i < make.group_size(); ++i) make.recv(make.peer(-i), scratch(make.peer(-i)));
  make.end_round();
  make.reduce(all, output(0));
}

/// What is combined must not be written where it is still being sent from.
void make_doubling(Maker& make) {
  make.need_scratch(2);
  Place own = input(0);
  for (int distance = 1; distance < make.group_size(); distance *= 2) {
    const int partner = make.rank() ^ distance;
    const bool is_last = 2 * distance == make.group_size();
    const Place next = is_last ? output(0) : scratch(own == scratch(0) ? 1 : 0);
    make.send(partner, own);
    make.reduce_with(partner, own, next);
    make.end_round();
    own = next;
  }
}

/// Directly: reduce-scatter, then all-gather, over as many chunks as ranks.
void make_all_reduce(Maker& make, Algorithm algorithm) {
  if (algorithm == Algorithm::exchange) return make_exchange(make);
  if (algorithm == Algorithm::doubling) return make_doubling(make);
  if (algorithm == Algorithm::binomial) {
    gather_sums(make, output(0));
    return spread(make, 0, output(0));
  }
  make.split(make.group_size());
  for (int i = 1; i < make.group_size(); ++i) make.send(make.peer(i), input(make.peer(i)));
  make.reduce_all(input(make.rank()), output(make.rank()));
  make.end_round();
  exchange_own(make, output(make.rank()));
}

void make_all_to_all(Maker& make, Algorithm algorithm, bool in_place) {
  if (in_place) {
    make.need_scratch(make.group_size());
    for (int i = 1; i < make.group_size(); ++i) {
      make.copy(input(make.peer(i)), scratch(make.peer(i)));
    }
    make.end_round();
  }
  if (!in_place) make.copy(input(make.rank()), output(make.rank()));
  const auto send = [&](int i) {
    make.send(make.peer(i), in_place ? scratch(make.peer(i)) : input(make.peer(i)));
  };
  const auto recv = [&](int i) { make.recv(make.peer(-i), output(make.peer(-i))); };
  if (algorithm == Algorithm::pairwise) {
    for (int i = 1; i < make.group_size(); ++i) {
      send(i);
      recv(i);
      make.end_round();
    }
    return;
  }
  for (int i = 1; i < make.group_size(); ++i) send(i);
  for (int i = 1; i < make.group_size(); ++i) recv(i);
}

/// Everybody hands its input to all ranks above and combines what comes from below: n (n - 1) / 2
/// messages of the whole buffer, the most of them (n - 1) to or from one rank.
void make_scan(Maker& make, bool in_place, bool exclusive) {
  Place own = input(0);
  const int above = make.rank() + 1;
  if (in_place) {
    if (above < make.group_size()) {
      own = scratch(0);
      make.need_scratch(1);
      make.copy(input(0), own);
    }
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

bool has_algorithm(Op op, Algorithm algorithm, int group_size, bool in_place) noexcept {
  switch (algorithm) {
    case Algorithm::direct:
      return op != Op::broadcast;
    case Algorithm::exchange:
      return op == Op::all_reduce;
    case Algorithm::doubling:  // of two ranks one would write where it sends from
      return op == Op::all_reduce && group_size > 2 &&
             std::has_single_bit(static_cast<unsigned>(group_size));
    case Algorithm::binomial:
      return op == Op::broadcast || (group_size > 1 && (op == Op::reduce || op == Op::all_reduce));
    case Algorithm::pairwise:
      return op == Op::all_to_all && !in_place;
    case Algorithm::ring:
      return op == Op::broadcast || op == Op::all_gather;
  }
  return false;
}

bool combines_parts(Op op, Algorithm algorithm) noexcept {
  return op != Op::broadcast &&
         (algorithm == Algorithm::doubling || algorithm == Algorithm::binomial);
}

Schedule make_schedule(const Shape& shape) {
  Maker make(shape);
  switch (shape.op) {
    case Op::broadcast:
      make_broadcast(make, shape.algorithm);
      break;
    case Op::all_reduce:
      make_all_reduce(make, shape.algorithm);
      break;
    case Op::reduce:
      make_reduce(make, shape.algorithm);
      break;
    case Op::gather:
      make_gather(make);
      break;
    case Op::all_gather:
      make_all_gather(make, shape.algorithm);
      break;
    case Op::scatter:
      make_scatter(make);
      break;
    case Op::reduce_scatter:
      make_reduce_scatter(make);
      break;
    case Op::all_to_all:
      make_all_to_all(make, shape.algorithm, shape.in_place);
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
