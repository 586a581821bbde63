// Ranks that wait for each other are told so, with the right circle; ranks that somebody comes to
// help are not.
//
// A *knot* is a world of 2 to 8 ranks in which each is in one call that does not end, or only looks
// on; a model says for whom each waits and who is stuck. A *program* is a world whose ranks wait as
// if they were stuck until one of them, the *helper*, comes late, gives up a call with a timeout of
// its own, or has a second thread go on. Several worlds live at a time, each in a process of its
// own with ranks that are threads or processes.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "soak/soak.h"
#include "tutti/init.h"
#include "tutti/log.h"
#include "tutti/test_kit.h"

namespace tutti::soak {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;
using namespace std::chrono_literals;

/// At a time, each in a process. Over hosts half as many: each rank has connections and the thread
/// of a host beside its own, and two cores would be what is measured.
constexpr int worlds_at_a_time(int hosts) { return hosts > 1 ? 8 : 16; }
constexpr int kProgramsPerRound = 10;
constexpr std::chrono::seconds kTold{3};
constexpr std::size_t kLarge = 100'000;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
  int from_to(int first, int last) { return first + below(last - first + 1); }
  bool chance(int of) { return below(of) == 0; }
  std::vector<int> shuffled(int size) {
    std::vector<int> all(static_cast<std::size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    for (int i = size; i > 1; --i)
      std::swap(all[static_cast<std::size_t>(i - 1)], all[static_cast<std::size_t>(below(i))]);
    return all;
  }

 private:
  std::mt19937_64 random_;
};

// ---- knots -------------------------------------------------------------------------------------

/// `churn`: makes groups with `peer` and aborts them, for a while: its entries of the log come
/// between the looks of the others.
enum class Do { look_on, send, recv, recv_any, wait_any, collective, churn };
enum class Form { blocking, work };

/// The one call of a rank. Every rank has a tag of its own, so that no messages ever match.
struct Call {
  Do what = Do::look_on;
  Form form = Form::blocking;
  int peer = -1, other = -1;  ///< of the world. `other`: of wait_any the second one
  int group = 0;
  Op op = Op::barrier;
  std::size_t count = 1;
};

struct Knot {
  std::vector<Call> calls = {};               ///< by rank
  std::vector<std::vector<int>> groups = {};  ///< ranks of the world, by rank: the world first

  int size() const { return static_cast<int>(calls.size()); }
  const Call& of(int rank) const { return calls[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members(int group) const {
    return groups[static_cast<std::size_t>(group)];
  }
};

enum class Kind { sends, receives, crossed, groups, any_source, mixed, apart };
constexpr std::array<const char*, 7> kKinds = {"sends in a ring",
                                               "receives in a ring",
                                               "a collective crossed with a receive",
                                               "two groups in opposite order",
                                               "any-source",
                                               "mixed",
                                               "circles in groups of their own"};

Call random_message(Dice& dice, int rank, int size) {
  Call call;
  call.what = dice.chance(2) ? Do::send : Do::recv;
  call.form = dice.chance(3) ? Form::work : Form::blocking;
  call.peer = (rank + dice.from_to(1, size - 1)) % size;
  call.count = dice.chance(3) ? kLarge : 1;
  if (size > 2 && call.what == Do::recv && dice.chance(5)) {
    call.what = Do::wait_any;
    call.other = (call.peer + 1) % size == rank ? (call.peer + 2) % size : (call.peer + 1) % size;
  }
  return call;
}

constexpr std::array kCollectives = {Op::barrier, Op::all_reduce, Op::all_gather};

Call random_collective(Dice& dice, int group, Op op) {
  return {.what = Do::collective,
          .form = dice.chance(3) ? Form::work : Form::blocking,
          .group = group,
          .op = op};
}

/// The world, and two more groups of all ranks.
Knot among(int size) {
  Knot knot{std::vector<Call>(static_cast<std::size_t>(size)), {}};
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  knot.groups = {all, all, {all.rbegin(), all.rend()}};
  return knot;
}

/// Circles that know nothing of each other, each in a group of its members; and perhaps two ranks
/// whose groups fail meanwhile.
Knot circles_apart(Dice& dice) {
  const int size = dice.from_to(4, 8);
  Knot knot = among(size);
  const std::vector<int> order = dice.shuffled(size);
  for (int first = 0; first < size;) {
    const bool is_last = size - first < 4;
    const int in_ring = is_last ? size - first : dice.from_to(2, size - first - 2);
    const std::vector<int> ring(order.begin() + first, order.begin() + first + in_ring);
    const bool churns = first > 0 && in_ring == 2 && dice.chance(2);
    const bool is_crossed = !churns && dice.chance(3), sends = dice.chance(2);
    if (!churns) knot.groups.push_back(ring);
    const int group = churns ? 0 : static_cast<int>(knot.groups.size()) - 1;
    for (int i = 0; i < in_ring; ++i) {
      Call& call = knot.calls[static_cast<std::size_t>(ring[static_cast<std::size_t>(i)])];
      if (is_crossed && i > 0) {
        call = random_collective(dice, group, Op::all_reduce);
        continue;
      }
      call = {.what = churns                 ? Do::churn
                      : sends && !is_crossed ? Do::send
                                             : Do::recv,
              .peer = ring[static_cast<std::size_t>((i + 1) % in_ring)],
              .group = group,
              .count = dice.chance(3) ? kLarge : 1};
    }
    first += in_ring;
  }
  return knot;
}

Knot random_knot(Dice& dice, Kind kind) {
  if (kind == Kind::apart) return circles_apart(dice);
  const int size = dice.from_to(kind == Kind::any_source ? 3 : 2, 8);
  Knot knot = among(size);
  const auto of = [&](int rank) -> Call& { return knot.calls[static_cast<std::size_t>(rank)]; };
  const std::vector<int> order = dice.shuffled(size);
  const int in_ring = dice.from_to(2, size);
  const Op op = kCollectives[static_cast<std::size_t>(dice.below(kCollectives.size()))];
  for (int i = 0; i < size; ++i) {
    const int rank = order[static_cast<std::size_t>(i)];
    Call& call = of(rank);
    call = random_message(dice, rank, size);
    if (kind == Kind::sends || kind == Kind::receives) {
      if (i >= in_ring) {
        if (dice.chance(2)) call = {};
        continue;
      }
      call.what = kind == Kind::sends ? Do::send : Do::recv;
      call.peer = order[static_cast<std::size_t>((i + 1) % in_ring)];
    } else if (kind == Kind::crossed) {
      if (i > 0) call = random_collective(dice, 0, op);
    } else if (kind == Kind::groups) {
      call = random_collective(dice, i == 0 ? 1 : i == 1 ? 2 : dice.from_to(1, 2), op);
    } else if (kind == Kind::any_source) {
      call =
          i == 0 || dice.chance(3) ? Call{.what = Do::recv_any} : random_message(dice, rank, size);
    } else if (dice.chance(3)) {
      call = random_collective(dice, dice.below(3), op);
    } else if (dice.chance(6)) {
      call = dice.chance(2) ? Call{.what = Do::recv_any} : Call{};
    }
  }
  return knot;
}

/// For whom a rank waits: one part of it suffices, all or any of whose ranks are needed.
struct Part {
  std::set<int> ranks;
  bool any = false;
};

std::vector<Part> awaited(const Knot& knot, int rank) {
  const Call& own = knot.of(rank);
  std::set<int> others;
  for (const int each : knot.members(own.group)) {
    const Call& call = knot.of(each);
    const bool is_in_it = call.what == Do::collective && call.group == own.group;
    if (each != rank && !(own.what == Do::collective && is_in_it)) others.insert(each);
  }
  switch (own.what) {
    case Do::look_on:
    case Do::churn:
      return {};
    case Do::send:
    case Do::recv:
      return {{{own.peer}}};
    case Do::wait_any:
      return {{{own.peer}}, {{own.other}}};
    case Do::recv_any:
      return {{others, true}};
    case Do::collective:
      return {{others}};
  }
  return {};
}

using Links = std::map<int, std::set<int>>;  ///< who waits for whom

/// Those who wait for each other, whatever the ranks of `others` do.
std::set<int> stuck_in(const Knot& knot, const Links& others = {}) {
  std::set<int> stuck;
  for (int rank = 0; rank < knot.size(); ++rank)
    if (!others.contains(rank) && !awaited(knot, rank).empty()) stuck.insert(rank);
  const auto can_end = [&](int rank) {
    const std::vector<Part> parts = awaited(knot, rank);
    return std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
      const auto waiting = std::count_if(part.ranks.begin(), part.ranks.end(),
                                         [&](int each) { return stuck.contains(each); });
      return part.any ? waiting < std::ssize(part.ranks) : waiting == 0;
    });
  };
  while (std::erase_if(stuck, can_end) > 0) {
  }
  return stuck;
}

/// The groups that must fail are among those in which somebody is stuck.
Knot make_knot(Dice& dice, Kind kind) {
  for (;;) {
    const Knot knot = random_knot(dice, kind);
    if (!stuck_in(knot).empty()) return knot;
  }
}

/// Who waits for whom, as the message says it.
Links links_in(const std::string& text) {
  static const std::regex link(
      "(?:rank (\\d+) |which )waits in .*? for (?:(?:world )?rank (\\d+)|(itself)|any of the "
      "(?:world )?ranks ([-0-9, ]*\\d))(?=[,;.])");
  Links links;
  int who = -1;
  for (std::sregex_iterator found(text.begin(), text.end(), link), end; found != end; ++found) {
    const std::smatch& match = *found;
    if (match[1].matched) who = std::stoi(match[1]);
    std::set<int>& to = links[who];
    if (match[2].matched) to.insert(std::stoi(match[2]));
    if (match[3].matched) to.insert(who);
    const std::string list = match[4];
    static const std::regex run("(\\d+)(?:-(\\d+))?");  // "3", "5-8"
    for (std::sregex_iterator each(list.begin(), list.end(), run); each != end; ++each) {
      const int first = std::stoi((*each)[1]);
      const int last = (*each)[2].matched ? std::stoi((*each)[2]) : first;
      for (int rank = first; rank <= last; ++rank) to.insert(rank);
    }
    if (match[2].matched) who = std::stoi(match[2]);  // whom "which" means
  }
  return links;
}

/// Who may have left when the circle of `links` is told: those of circles that know nothing of it,
/// and were told before, and who only looks on.
std::set<int> first_to_leave(const Knot& knot, const Links& links) {
  std::set<int> first = stuck_in(knot, links);
  if (first.empty()) return first;
  for (int rank = 0; rank < knot.size(); ++rank)
    if (knot.of(rank).what == Do::look_on) first.insert(rank);
  return first;
}

/// Empty if the circle is one of this knot: everybody in it waits for those it is said to wait for,
/// and none of them can go on without another one. Who has left helps nobody.
std::string judge_links(const Knot& knot, const Links& links, const std::set<int>& have_left,
                        const std::vector<int>& culprits) {
  std::vector<int> ranks;
  for (const auto& [rank, to] : links) ranks.push_back(rank);
  if (ranks.empty()) return "no circle";
  for (const auto& [rank, to] : links) {
    if (rank < 0 || rank >= knot.size()) return "a rank that is not there";
    for (const Part& part : awaited(knot, rank)) {
      const auto is_told = [&, &to = to](int each) {
        return to.contains(each) || have_left.contains(each);
      };
      const bool well = part.any ? std::all_of(part.ranks.begin(), part.ranks.end(), is_told)
                                 : std::any_of(part.ranks.begin(), part.ranks.end(), is_told);
      if (!well) return fmt::format("rank {} may go on", rank);
    }
    for (const int each : to) {
      if (!links.contains(each))
        return fmt::format("rank {} waits for {}, which does not wait", rank, each);
      const std::vector<Part> parts = awaited(knot, rank);
      if (std::none_of(parts.begin(), parts.end(),
                       [&](const Part& part) { return part.ranks.contains(each); }))
        return fmt::format("rank {} does not wait for {}", rank, each);
    }
  }
  if (ranks != culprits) return fmt::format("culprits [{}]", fmt::join(culprits, " "));
  return {};
}

std::string judge_links(const Knot& knot, const std::string& text,
                        const std::vector<int>& culprits) {
  const Links links = links_in(text);
  const std::string wrong = judge_links(knot, links, {}, culprits);
  return wrong.empty() ? wrong : judge_links(knot, links, first_to_leave(knot, links), culprits);
}

/// Does its call, or looks on, until the group of it fails. Throws that.
class KnotRank {
 public:
  KnotRank(ProcessGroup& world, const Knot& knot) : world_(world) {
    for (std::size_t group = 1; group < knot.groups.size(); ++group)
      further_.push_back(world.new_group(knot.groups[group]));
    data_.resize(kLarge);
    all_.resize(static_cast<std::size_t>(world.world_size()));
  }

  void operator()(const Knot& knot) {
    const Call& call = knot.of(world_.rank());
    if (call.what == Do::look_on) return look_on();
    if (call.what == Do::churn) return churn(call.peer);
    begin(call, knot.members(call.group));
  }

 private:
  void look_on() {
    const auto end = Clock::now() + 20s;
    while (Clock::now() < end) {
      if (const auto failure = world_.error()) throw *failure;
      for (ProcessGroup& group : further_)
        if (const auto failure = group.error()) throw *failure;
      std::this_thread::sleep_for(2ms);
    }
  }

  /// Longer than it takes until the others are told.
  void churn(int peer) {
    const auto end = Clock::now() + 2s;
    std::uint8_t goes_on = 1;
    while (goes_on != 0) {
      ProcessGroup pair =
          world_.new_group({std::min(world_.rank(), peer), std::max(world_.rank(), peer)});
      if (pair.rank() == 0) goes_on = Clock::now() < end ? 1 : 0;
      pair.broadcast(goes_on, {.root = 0});
      pair.barrier();
      if (pair.rank() == 0) pair.abort("churn");
      while (!pair.error()) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(20ms);
    }
  }

  /// `members`: of its group, by rank.
  void begin(const Call& in_world, const std::vector<int>& members) {
    ProcessGroup& group =
        in_world.group == 0 ? world_ : further_[static_cast<std::size_t>(in_world.group - 1)];
    const auto rank_of = [&](int rank) {
      return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    };
    Call call = in_world;
    call.peer = rank_of(in_world.peer);
    call.other = rank_of(in_world.other);
    const int tag = 100 + world_.rank();
    const std::span<float> data(data_.data(), call.count);
    const bool is_work = call.form == Form::work;
    switch (call.what) {
      case Do::look_on:
      case Do::churn:
        return;
      case Do::send:
        if (is_work) return group.send(data, call.peer, {.tag = tag}, async).wait();
        return group.send(data, call.peer, {.tag = tag});
      case Do::recv:
        if (is_work) return group.recv(data, call.peer, {.tag = tag}, async).wait();
        group.recv(data, call.peer, {.tag = tag});
        return;
      case Do::recv_any:
        group.recv(data, kAnyRank, {.tag = tag});
        return;
      case Do::wait_any: {
        std::vector<Work> works;
        works.push_back(group.recv(x_, call.peer, {.tag = tag}, async));
        works.push_back(group.recv(y_, call.other, {.tag = tag + 100}, async));
        return works[wait_any(works)].wait();
      }
      case Do::collective:
        return collective(group, call.op, is_work);
    }
  }

  void collective(ProcessGroup& group, Op op, bool is_work) {
    if (op == Op::barrier) return is_work ? group.barrier(async).wait() : group.barrier();
    if (op == Op::all_reduce)
      return is_work ? group.all_reduce(x_, async).wait() : group.all_reduce(x_);
    return is_work ? group.all_gather(x_, all_, async).wait() : group.all_gather(x_, all_);
  }

  ProcessGroup& world_;
  std::vector<ProcessGroup> further_;
  std::vector<float> data_, all_;
  float x_ = 0, y_ = 0;
};

/// What the message says from "deadlock: " on; "" of another one.
std::string told_by(const std::string& text) {
  const std::size_t at = text.find("deadlock: ");
  return at == std::string::npos ? std::string() : text.substr(at);
}

/// The culprits of an error that `rank` was told, as ranks of the world.
std::vector<int> world_culprits(const Knot& knot, int rank, const Error& error) {
  const Call& call = knot.of(rank);
  std::vector<int> culprits;
  if (call.what == Do::look_on) {  // of whichever group it was
    for (const auto& [link, to] : links_in(error.what())) culprits.push_back(link);
    return culprits;
  }
  for (const int culprit : error.context().culprits)
    culprits.push_back(knot.members(call.group)[static_cast<std::size_t>(culprit)]);
  std::sort(culprits.begin(), culprits.end());
  return culprits;
}

/// Returns what it was told, what was wrong with that, and after how many milliseconds.
std::string run_knot(const test_kit::Rank& me, const Knot& knot) {
  ProcessGroup world = init_process_group(me.init);
  KnotRank rank(world, knot);
  world.barrier();
  const auto begin = Clock::now();
  std::string text = "nothing", wrong;
  try {
    rank(knot);
  } catch (const Error& error) {
    text = error.what();
    if (error.code() == ErrorCode::kDeadlock)
      wrong = judge_links(knot, text, world_culprits(knot, me.rank, error));
  }
  const auto took = Clock::now() - begin;
  return ordered_json{{"text", text},
                      {"wrong", wrong},
                      {"ms", std::chrono::duration<double, std::milli>(took).count()}}
      .dump();
}

/// The groups whose failure a rank is sure to see: all of them if it looks on, else its call's.
std::set<int> groups_of(const Call& call) {
  if (call.what == Do::churn) return {};
  return call.what == Do::look_on ? std::set<int>{0, 1, 2} : std::set<int>{call.group};
}

/// Ranks that the circle of `links` waits for, too, and does not name: they must have left.
std::set<int> unnamed_in(const Knot& knot, const Links& links) {
  std::set<int> unnamed;
  for (const auto& [rank, to] : links)
    for (const Part& part : awaited(knot, rank))
      for (const int each : part.ranks)
        if (part.any && !to.contains(each)) unnamed.insert(each);
  return unnamed;
}

/// One line that a world's process writes: at most PIPE_BUF, so that it comes in one piece.
struct Line {
  std::string series, kind, wrong;
  std::vector<double> ms = {};
};

/// All who are in a group that a circle goes through are told of it, with the same words. Who is in
/// another one may be told that the first ones left; but nobody leaves a circle that knows no
/// other.
std::string judge_told(const Knot& knot, const std::vector<std::string>& texts,
                       const std::vector<double>& milliseconds, double scale, Line& line) {
  std::map<int, std::string> by_group;
  for (const std::string& text : texts)
    for (const auto& [rank, to] : links_in(told_by(text)))
      by_group.try_emplace(knot.of(rank).group, told_by(text));
  if (by_group.empty()) return fmt::format("nobody was told; rank 0: {}", texts.at(0));
  for (int group = static_cast<int>(among(2).groups.size()); group < std::ssize(knot.groups);
       ++group) {
    if (!by_group.contains(group))
      return fmt::format("nobody of [{}] was told; one of them: {}",
                         fmt::join(knot.members(group), " "),
                         texts[static_cast<std::size_t>(knot.members(group)[0])]);
  }
  for (const auto& [group, text] : by_group)
    for (const int rank : unnamed_in(knot, links_in(text)))
      if (told_by(texts[static_cast<std::size_t>(rank)]) == text)
        return fmt::format("rank {} was there still, and is not named: {}", rank, text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    bool must_know = false, is_told = false;
    for (const int group : groups_of(knot.calls[rank])) {
      must_know |= by_group.contains(group);
      is_told |= by_group.contains(group) && by_group[group] == told_by(texts[rank]);
    }
    if (!must_know) continue;
    line.ms.push_back(milliseconds[rank]);
    if (!is_told) return fmt::format("rank {} was told: {}", rank, texts[rank]);
    if (milliseconds[rank] > std::chrono::duration<double, std::milli>(kTold).count() * scale)
      return fmt::format("rank {} was told after {} ms", rank, milliseconds[rank]);
  }
  return {};
}

// ---- programs ----------------------------------------------------------------------------------

enum class Shape { receives, sends, crossed, groups, any_source };
constexpr std::array<const char*, 5> kShapes = {"receives in a ring", "sends in a ring",
                                                "a collective crossed with a receive", "two groups",
                                                "any-source"};
enum class Help { late, deadline, thread };
constexpr std::array<const char*, 3> kHelps = {"a late rank", "a deadline", "a second thread"};

struct Program {
  Shape shape = Shape::receives;
  Help help = Help::late;
  int size = 2, helper = 0;
  std::chrono::milliseconds when{60};
  std::size_t count = 1;
};

Program make_program(Dice& dice) {
  Program program;
  program.shape = static_cast<Shape>(dice.below(5));
  program.help = static_cast<Help>(dice.below(3));
  program.size = dice.from_to(2, 8);
  // Rank 0 receives from any, or is the one that others wait for.
  program.helper = dice.from_to(1, program.size - 1);
  program.when = std::chrono::milliseconds(dice.from_to(60, 500));
  program.count = dice.chance(3) ? kLarge : 1;
  return program;
}

/// One rank of a program. A call that must wait is `wait(timeout)`, what ends the waits of the
/// others `rescue()`, and what comes then `rest()`.
class ProgramRank {
 public:
  ProgramRank(ProcessGroup& world, const Program& program) : world_(world), program_(program) {
    std::vector<int> all(static_cast<std::size_t>(world.world_size()));
    std::iota(all.begin(), all.end(), 0);
    if (program.shape == Shape::groups) other_ = world.new_group(all);
    in_.resize(program.count);
    out_.resize(program.count);
    next_ = (world.rank() + 1) % world.world_size();
    previous_ = (world.rank() + world.world_size() - 1) % world.world_size();
  }

  void operator()() {
    const bool is_helper = world_.rank() == program_.helper;
    if (program_.help == Help::thread) return with_thread(is_helper);
    if (!is_helper) {
      wait({});
      return rest();
    }
    if (program_.help == Help::late) {
      std::this_thread::sleep_for(program_.when);
    } else if (!passes()) {
      throw std::runtime_error("a call with a timeout of its own ended before that");
    }
    rescue();
    if (program_.shape != Shape::crossed && program_.shape != Shape::groups) return wait({});
    wait_for_message({});
  }

 private:
  /// Whether the helper's call gives up in its time.
  bool passes() {
    try {
      wait_for_message(program_.when);
      return false;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      return true;
    }
  }

  void with_thread(bool is_helper) {
    if (!is_helper) {
      if (world_.rank() == previous_of_helper()) world_.recv(first_, program_.helper, {.tag = 9});
      wait({});
      return rest();
    }
    std::atomic<bool> has_called{false};
    std::exception_ptr failure;
    std::thread thread([&] {
      try {
        world_.send(first_, previous_, {.tag = 9});
        has_called.store(true);
        std::this_thread::sleep_for(program_.when);
        rescue();
      } catch (...) {
        failure = std::current_exception();
        has_called.store(true);
      }
    });
    while (!has_called.load()) std::this_thread::sleep_for(100us);
    try {
      wait_for_message({});
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    thread.join();
    if (failure) std::rethrow_exception(failure);
  }

  int previous_of_helper() const {
    return (program_.helper + world_.world_size() - 1) % world_.world_size();
  }

  /// The helper's call that does not end, of the same kind as those of the others where they are
  /// messages.
  void wait_for_message(Timeout timeout) {
    switch (program_.shape) {
      case Shape::receives:
        world_.recv(in_, previous_, {.timeout = timeout});
        return;
      case Shape::sends:
        return world_.send(out_, next_, {.timeout = timeout});
      case Shape::crossed:
      case Shape::any_source:
        world_.recv(in_, 0, {.timeout = timeout});
        return;
      case Shape::groups:
        other_.recv(in_, 0, {.timeout = timeout});
        return;
    }
  }

  /// What the others wait in.
  void wait(Timeout timeout) {
    if (program_.shape == Shape::crossed || program_.shape == Shape::groups) {
      world_.all_reduce(x_);
      return;
    }
    if (program_.shape == Shape::any_source && world_.rank() == 0) {
      world_.recv(in_, kAnyRank, {.tag = 1});
      return;
    }
    wait_for_message(timeout);
  }

  void rescue() {
    switch (program_.shape) {
      case Shape::receives:
        return world_.send(out_, next_);
      case Shape::sends:
        world_.recv(in_, previous_);
        return;
      case Shape::crossed:
      case Shape::groups:
        return world_.all_reduce(y_);
      case Shape::any_source:
        return world_.send(out_, 0, {.tag = 1});
    }
  }

  void rest() {
    switch (program_.shape) {
      case Shape::receives:
        return world_.send(out_, next_);
      case Shape::sends:
        world_.recv(in_, previous_);
        return;
      case Shape::crossed:
        if (world_.rank() == 0) world_.send(out_, program_.helper);
        return;
      case Shape::groups:
        if (world_.rank() == 0) other_.send(out_, program_.helper);
        return;
      case Shape::any_source:
        for (int rank = 1; world_.rank() == 0 && rank < world_.world_size(); ++rank)
          world_.send(out_, rank);
        return;
    }
  }

  ProcessGroup& world_;
  ProcessGroup other_;
  const Program& program_;
  std::vector<float> in_, out_;
  int next_ = 0, previous_ = 0;
  float x_ = 0, y_ = 0, first_ = 0;
};

std::string run_program(const test_kit::Rank& me, const Program& program) {
  ProcessGroup world = init_process_group(me.init);
  ProgramRank rank(world, program);
  rank();
  world.close();
  return {};
}

// ---- many of them ------------------------------------------------------------------------------

std::string text_of(const Line& line) {
  return ordered_json{{"series", line.series},
                      {"kind", line.kind},
                      {"wrong", line.wrong.substr(0, 2500)},
                      {"ms", line.ms}}
             .dump() +
         "\n";
}

void silence() {
  set_log_callback([](LogLevel, std::string_view) {});
}

/// Ranks that are threads or processes, and take turns on the hosts.
test_kit::RunOptions options_for(Dice& dice, std::size_t world_size, int hosts) {
  test_kit::RunOptions options{
      .as = dice.chance(2) ? test_kit::As::threads : test_kit::As::processes, .deadline = 60s};
  for (std::size_t rank = 0; hosts > 1 && rank < world_size; ++rank)
    options.hosts.push_back(static_cast<int>(rank) % hosts);
  return options;
}

Line do_knot(const Words& words, int round) {
  Dice dice(words.seed * 1'000'003 + static_cast<std::uint64_t>(round));
  const auto kind = static_cast<Kind>(round % static_cast<int>(kKinds.size()));
  const Knot knot = make_knot(dice, kind);
  const test_kit::RunOptions options = options_for(dice, knot.calls.size(), words.hosts);
  const auto outcomes = test_kit::collect_ranks(
      knot.size(),
      [&](const test_kit::Rank& me) {
        silence();
        return run_knot(me, knot);
      },
      options);
  Line line{"knots", kKinds[static_cast<std::size_t>(kind)], ""};
  std::vector<std::string> texts;
  std::vector<double> milliseconds;
  for (const test_kit::Outcome& outcome : outcomes) {
    std::string wrong = outcome.failure;
    if (wrong.empty()) {
      const ordered_json told = ordered_json::parse(outcome.result);
      texts.push_back(told["text"]);
      wrong = told["wrong"];
      if (!wrong.empty()) wrong += ": " + texts.back();
      milliseconds.push_back(told["ms"]);
    }
    if (!wrong.empty() && line.wrong.empty())
      line.wrong =
          fmt::format("knot {}, rank {} of {}: {}", round, outcome.rank, knot.size(), wrong);
  }
  if (line.wrong.empty()) {
    const std::string wrong = judge_told(knot, texts, milliseconds, words.scale, line);
    if (!wrong.empty())
      line.wrong = fmt::format("knot {} of {} ranks: {}", round, knot.size(), wrong);
  }
  return line;
}

Line do_program(const Words& words, int round) {
  Dice dice((words.seed ^ 0x5eed) * 1'000'003 + static_cast<std::uint64_t>(round));
  const Program program = make_program(dice);
  test_kit::RunOptions options =
      options_for(dice, static_cast<std::size_t>(program.size), words.hosts);
  options.init.settings = {{"deadlock_after", "50ms"}};
  const auto outcomes = test_kit::collect_ranks(
      program.size,
      [&](const test_kit::Rank& me) {
        silence();
        return run_program(me, program);
      },
      options);
  Line line{"programs",
            fmt::format("{}, {}", kShapes[static_cast<std::size_t>(program.shape)],
                        kHelps[static_cast<std::size_t>(program.help)]),
            ""};
  for (const test_kit::Outcome& outcome : outcomes)
    if (!outcome.failure.empty() && line.wrong.empty())
      line.wrong = fmt::format("program {} ({}; helper {} of {} after {} ms), rank {}: {}", round,
                               line.kind, program.helper, program.size, program.when.count(),
                               outcome.rank, outcome.failure);
  return line;
}

/// The rounds of one worker, one after the other.
void work_through(const Words& words, int first, int out) {
  const int step = worlds_at_a_time(words.hosts);
  const auto write_line = [&](const Line& line) {
    const std::string text = text_of(line);
    if (::write(out, text.data(), text.size()) != std::ssize(text)) std::_Exit(1);
  };
  for (int round = first; words.only != "programs" && round < words.rounds; round += step)
    write_line(do_knot(words, round));
  for (int round = first; words.only != "knots" && round < kProgramsPerRound * words.rounds;
       round += step)
    write_line(do_program(words, round));
}

std::vector<pid_t> start_workers(const Words& words, int out) {
  std::vector<pid_t> workers;
  for (int first = 0; first < worlds_at_a_time(words.hosts); ++first) {
    const pid_t worker = ::fork();
    if (worker == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      silence();
      work_through(words, first, out);
      std::_Exit(0);
    }
    workers.push_back(worker);
  }
  return workers;
}

struct Total {
  std::map<std::string, std::map<std::string, int>> kinds;  // by series
  std::vector<std::string> failures;
  Figures told;
  int done = 0;
};

void add(Total& total, const std::string& text) {
  const ordered_json line = ordered_json::parse(text);
  ++total.kinds[line["series"]][line["kind"]];
  for (const double ms : line["ms"]) total.told.samples.push_back(ms);
  if (const std::string wrong = line["wrong"]; !wrong.empty()) total.failures.push_back(wrong);
  ++total.done;
}

Total collect(int in, int expected) {
  Total total;
  Progress progress("deadlocks", expected);
  std::string rest;
  std::array<char, 65536> buffer;
  for (ssize_t got; (got = ::read(in, buffer.data(), buffer.size())) > 0;) {
    rest.append(buffer.data(), static_cast<std::size_t>(got));
    for (std::size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
      add(total, rest.substr(0, end));
      progress.advance("worlds", static_cast<int>(total.failures.size()));
    }
  }
  return total;
}

int run(const Words& words) {
  fmt::print(stderr, "deadlocks: seed {}\n", words.seed);
  const int knots = words.only == "programs" ? 0 : words.rounds;
  const int programs = words.only == "knots" ? 0 : kProgramsPerRound * words.rounds;
  std::array<int, 2> ends;
  if (::pipe(ends.data()) != 0) return 1;
  const std::vector<pid_t> workers = start_workers(words, ends[1]);
  ::close(ends[1]);
  Total total = collect(ends[0], knots + programs);
  for (const pid_t worker : workers) ::waitpid(worker, nullptr, 0);
  if (total.done != knots + programs)
    total.failures.push_back(fmt::format("{} of {} worlds were run", total.done, knots + programs));
  fmt::print("deadlocks: {} knots told after {}; {} programs resolved; {} failed\n", knots,
             total.told.summary(), programs, total.failures.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(total.failures.size(), 20); ++i)
    fmt::print("  {}\n", total.failures[i]);
  write_evidence(words, "deadlocks",
                 {{"knots", ordered_json(total.kinds["knots"]).dump()},
                  {"told_ms_p50", fmt::format("{:.1f}", total.told.percentile(0.5))},
                  {"told_ms_max", fmt::format("{:.1f}", total.told.percentile(1))},
                  {"programs", ordered_json(total.kinds["programs"]).dump()},
                  {"failures", std::to_string(total.failures.size())}});
  return total.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) { return tutti::soak::run(tutti::soak::read_words(argc, argv)); }
