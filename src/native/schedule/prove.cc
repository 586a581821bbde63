#include "native/schedule/prove.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/of_rank.h"

namespace tutti::native {

namespace {

using Space = Place::Space;
using Expression = int;  // index into the table of Expressions; equal expressions, equal index

class Expressions {
 public:
  Expression leaf(int rank, int chunk) { return intern({-1 - rank, chunk}); }
  Expression identity() { return intern({kNothing, kNothing}); }
  Expression pair(Expression left, Expression right) { return intern({left, right}); }
  /// The canonical order: tree(v) = tree(first k) + tree(rest).
  Expression tree(std::span<const Expression> operands) {
    if (operands.size() == 1) return operands[0];
    const std::size_t k = std::bit_floor(operands.size() - 1);
    const Expression left = tree(operands.first(k));
    return pair(left, tree(operands.subspan(k)));
  }

 private:
  static constexpr int kNothing = std::numeric_limits<int>::min();

  Expression intern(std::pair<int, int> key) {
    return table_.try_emplace(key, static_cast<int>(table_.size())).first->second;
  }
  std::map<std::pair<int, int>, Expression> table_;
};

/// In place, some chunks of input and output are the same memory; this is the name they share.
Place location(const Shape& shape, int rank, Place place) {
  if (!shape.in_place) return place;
  switch (shape.op) {
    case Op::gather:
    case Op::all_gather:  // the input is the own part of the output
      return place.space == Space::input ? Place{Space::output, rank} : place;
    case Op::scatter:
    case Op::reduce_scatter:  // the output is the own part of the input
      return place.space == Space::output ? Place{Space::input, rank} : place;
    case Op::broadcast:
    case Op::all_reduce:
    case Op::reduce:
    case Op::all_to_all:
    case Op::barrier:
    case Op::scan:
    case Op::exclusive_scan:
    case Op::send:
    case Op::recv:
      break;
  }
  return place.space == Space::input ? Place{Space::output, place.chunk} : place;
}

class Prover {
 public:
  Prover(const Shape& shape, std::span<const Schedule> by_rank) : shape_(shape), by_rank_(by_rank) {
    const auto n = static_cast<std::size_t>(shape.group_size);
    ranks_.resize(n);
    for (std::size_t r = 0; r < n; ++r) ranks_[r].heard.insert(static_cast<int>(r));
    fill_inputs();
  }

  std::string run() {
    for (int r = 0; r < shape_.group_size; ++r) {
      if (schedule(r).parts != schedule(0).parts) wrong(r, "splits the buffer as rank 0 does not");
    }
    for (int r = 0; r < shape_.group_size && wrong_.empty(); ++r) begin_round(r);
    bool moved = true;
    while (moved && wrong_.empty()) {
      moved = false;
      for (int r = 0; r < shape_.group_size && wrong_.empty(); ++r) moved = advance(r) || moved;
    }
    if (wrong_.empty()) check_end();
    for (int r = 0; r < shape_.group_size && wrong_.empty(); ++r) check_outputs(r);
    return wrong_;
  }

 private:
  using Key = std::tuple<Space, std::int32_t>;
  struct Rank {
    std::map<Key, Expression> memory;
    std::set<int> heard;  // ranks whose entry this one knows of
    std::size_t round = 0;
    std::uint32_t next_step = 0;            // first step of the round
    std::map<int, std::uint32_t> sends;     // of this round, by peer: step
    std::map<int, std::uint32_t> receives;  // of this round, by peer: step
    std::map<int, Expression> received;     // for the reduce steps of this round
    std::set<std::uint32_t> unfinished;     // steps of this round
  };

  static Key key(Place place) { return {place.space, place.chunk}; }
  Place at(int rank, Place place) const { return location(shape_, rank, place); }
  Rank& rank(int r) { return of_rank(ranks_, r); }
  const Schedule& schedule(int r) const { return of_rank(by_rank_, r); }
  void wrong(int r, std::string what) {
    if (wrong_.empty()) wrong_ = fmt::format("rank {}, round {}: {}", r, rank(r).round, what);
  }

  bool rooted_input() const { return shape_.op == Op::scatter || shape_.op == Op::broadcast; }
  int input_chunks() const {
    const bool many = shape_.op == Op::scatter || shape_.op == Op::reduce_scatter ||
                      shape_.op == Op::all_to_all || shape_.op == Op::all_reduce;
    if (shape_.op == Op::all_reduce && schedule(0).parts == 0) return 1;
    return shape_.op == Op::barrier ? 0 : many ? shape_.group_size : 1;
  }

  void fill_inputs() {
    for (int r = 0; r < shape_.group_size; ++r) {
      if (rooted_input() && r != shape_.root) continue;
      for (int chunk = 0; chunk < input_chunks(); ++chunk) {
        rank(r).memory[key(at(r, {Space::input, chunk}))] = expressions_.leaf(r, chunk);
      }
    }
  }

  Expression read(int r, Place place) {
    const auto found = rank(r).memory.find(key(at(r, place)));
    if (found != rank(r).memory.end()) return found->second;
    if (place.space != Space::nothing) wrong(r, "reads a place that holds nothing");
    return -1;
  }

  void write(int r, Place place, Expression value) {
    if (place.space == Space::nothing) return;
    if (place.space == Space::input) wrong(r, "writes its input");
    if (place.space == Space::scratch && place.chunk >= schedule(r).scratch_chunks) {
      wrong(r, "writes beyond its scratch memory");
    }
    rank(r).memory[key(at(r, place))] = value;
  }

  /// Registers the steps of rank r's current round and looks for conflicts between them.
  void begin_round(int r) {
    Rank& me = rank(r);
    me.sends.clear();
    me.receives.clear();
    me.received.clear();
    if (me.round >= schedule(r).round_ends.size()) return;
    std::map<Key, int> reads, writes;
    for (std::uint32_t i = me.next_step; i < schedule(r).round_ends[me.round]; ++i) {
      const Step& step = schedule(r).steps[i];
      me.unfinished.insert(i);
      register_edges(r, i, step);
      const Place source = at(r, step.source), target = at(r, step.target);
      if (step.kind == Step::Kind::copy && source == target) continue;
      if (step.kind == Step::Kind::send || step.kind == Step::Kind::copy) ++reads[key(source)];
      if (step.kind != Step::Kind::send) ++writes[key(target)];
      for (const Operand& operand : schedule(r).operands_of(step)) {
        const Place place = at(r, operand.place);
        if (operand.peer < 0 && place != target) ++reads[key(place)];
      }
    }
    for (const auto& [place, times] : writes) {
      if (std::get<0>(place) == Space::nothing) continue;
      if (times > 1 || reads.count(place) > 0) wrong(r, "two steps of a round are in conflict");
    }
  }

  void register_edges(int r, std::uint32_t index, const Step& step) {
    const auto edge = [&](std::map<int, std::uint32_t>& edges, int peer) {
      if (peer < 0 || peer >= shape_.group_size || peer == r) wrong(r, "a peer that is not one");
      if (!edges.emplace(peer, index).second) wrong(r, "two messages of a pair in one round");
    };
    if (step.kind == Step::Kind::send) {
      if (!rank(r).receives.empty()) wrong(r, "sends after it has begun to receive");
      edge(rank(r).sends, step.peer);
    }
    if (step.kind == Step::Kind::recv) edge(rank(r).receives, step.peer);
    for (const Operand& operand : schedule(r).operands_of(step)) {
      if (operand.peer >= 0) edge(rank(r).receives, operand.peer);
    }
  }

  /// Lets rank r do what it can: its sends whose receiver is ready, then its local steps.
  bool advance(int r) {
    Rank& me = rank(r);
    bool moved = false;
    for (auto send = me.sends.begin(); send != me.sends.end();) {
      const int peer = send->first;
      const auto receive = rank(peer).receives.find(r);
      if (receive == rank(peer).receives.end()) {
        ++send;
        continue;
      }
      deliver(r, schedule(r).steps[send->second], peer, receive->second);
      rank(peer).receives.erase(receive);
      me.unfinished.erase(send->second);
      send = me.sends.erase(send);
      moved = true;
    }
    for (auto i = me.unfinished.begin(); i != me.unfinished.end();) {
      const bool did = try_local(r, schedule(r).steps[*i]);
      moved = moved || did;
      i = did ? me.unfinished.erase(i) : std::next(i);
    }
    if (me.unfinished.empty() && me.round < schedule(r).round_ends.size()) {
      me.next_step = schedule(r).round_ends[me.round++];
      begin_round(r);
      moved = true;
    }
    return moved;
  }

  void deliver(int from, const Step& send, int to, std::uint32_t receiving_step) {
    const Expression value = read(from, send.source);
    const Step& receive = schedule(to).steps[receiving_step];
    if (rank(to).round != rank(from).round) {
      wrong(to, fmt::format("receives what rank {} sends in round {}", from, rank(from).round));
    }
    if (receive.kind == Step::Kind::recv) {
      if ((send.source.space == Space::nothing) != (receive.target.space == Space::nothing)) {
        wrong(to, fmt::format("expects data from rank {} and gets none, or the reverse", from));
      }
      write(to, receive.target, value);
      rank(to).unfinished.erase(receiving_step);
    } else {
      rank(to).received[from] = value;
    }
    rank(to).heard.insert(rank(from).heard.begin(), rank(from).heard.end());
  }

  bool try_local(int r, const Step& step) {
    if (step.kind == Step::Kind::copy) {
      write_unless_same(r, step);
      return true;
    }
    if (step.kind == Step::Kind::identity) {
      write(r, step.target, expressions_.identity());
      return true;
    }
    if (step.kind != Step::Kind::reduce) return false;
    std::vector<Expression> values;
    for (const Operand& operand : schedule(r).operands_of(step)) {
      if (operand.peer < 0) {
        values.push_back(read(r, operand.place));
      } else {
        const auto found = rank(r).received.find(operand.peer);
        if (found == rank(r).received.end()) return false;
        values.push_back(found->second);
      }
    }
    write(r, step.target, expressions_.tree(values));
    return true;
  }

  void write_unless_same(int r, const Step& copy) {
    const Expression value = read(r, copy.source);
    if (at(r, copy.source) != at(r, copy.target)) write(r, copy.target, value);
  }

  void check_end() {
    for (int r = 0; r < shape_.group_size; ++r) {
      if (rank(r).round < schedule(r).round_ends.size()) {
        return wrong(r, "waits for ever: deadlock, or a message that nobody sends or receives");
      }
    }
  }

  /// What the operation owes rank r in output chunk `chunk`; empty: it must be left alone.
  std::optional<Expression> owed(int r, int chunk) {
    const auto reduced_below = [&](int end, int part) {
      if (end == 0) return expressions_.identity();
      std::vector<Expression> leaves;
      for (int p = 0; p < end; ++p) leaves.push_back(expressions_.leaf(p, part));
      return expressions_.tree(leaves);
    };
    const auto reduced = [&](int part) { return reduced_below(shape_.group_size, part); };
    const bool first = chunk == 0;
    const bool at_root = r == shape_.root;
    switch (shape_.op) {
      case Op::broadcast:
        return first ? std::optional(expressions_.leaf(shape_.root, 0)) : std::nullopt;
      case Op::all_reduce:
        return chunk < input_chunks() ? std::optional(reduced(chunk)) : std::nullopt;
      case Op::reduce:
        return first && at_root ? std::optional(reduced(0)) : std::nullopt;
      case Op::gather:
        return at_root ? std::optional(expressions_.leaf(chunk, 0)) : std::nullopt;
      case Op::all_gather:
        return expressions_.leaf(chunk, 0);
      case Op::scatter:
        return first ? std::optional(expressions_.leaf(shape_.root, r)) : std::nullopt;
      case Op::reduce_scatter:
        return first ? std::optional(reduced(r)) : std::nullopt;
      case Op::all_to_all:
        return expressions_.leaf(chunk, r);
      case Op::scan:
        return first ? std::optional(reduced_below(r + 1, 0)) : std::nullopt;
      case Op::exclusive_scan:
        return first ? std::optional(reduced_below(r, 0)) : std::nullopt;
      case Op::barrier:
      case Op::send:
      case Op::recv:
        break;
    }
    return std::nullopt;
  }

  void check_outputs(int r) {
    if (shape_.op == Op::barrier && rank(r).heard.size() != ranks_.size()) {
      return wrong(r, "leaves the barrier without having heard from everybody");
    }
    for (int chunk = 0; chunk < shape_.group_size; ++chunk) {
      const std::optional<Expression> expected = owed(r, chunk);
      const Place place = at(r, {Space::output, chunk});
      if (!expected && shape_.in_place) continue;  // input memory, or unspecified
      const auto found = rank(r).memory.find(key(place));
      const bool right = expected ? found != rank(r).memory.end() && found->second == *expected
                                  : found == rank(r).memory.end();
      if (!right) return wrong(r, fmt::format("output chunk {} is not what it must be", chunk));
    }
  }

  const Shape shape_;
  const std::span<const Schedule> by_rank_;
  Expressions expressions_;
  std::vector<Rank> ranks_;
  std::string wrong_;
};

}  // namespace

std::string disprove(const Shape& shape, std::span<const Schedule> by_rank) {
  if (static_cast<int>(by_rank.size()) != shape.group_size) return "not one schedule per rank";
  return Prover(shape, by_rank).run();
}

}  // namespace tutti::native
