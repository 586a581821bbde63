// Every order of what can happen to two or three hosts, up to a depth: nobody may ever disagree.
//
// Depth first, in one process. A step is: a frame arrives (in order on each link), a host looks
// although nothing has come (its time has run as far as it waits for), a host is lost and this
// becomes known to one that has read all from it, a relay dies between writing and sending, a link
// is cut for one that then parts, a host begins to want something. Times mean nothing here: any
// clock may run ahead of any other.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "control/vote/vote.h"

namespace tutti::simulate::votes {
namespace {

using control::Clock;
using control::Entry;
using control::HostFacts;
using control::HostVote;
using control::Vote;
using control::VoteFrame;

constexpr int kMost = 3;

struct Host {
  HostVote board;
  control::VoteMemory memory;
  Clock::time_point now = Clock::time_point(std::chrono::hours(1));
  Clock::time_point next = Clock::time_point::max();
  std::uint64_t connection = 1;
  bool dead = false;
  int relays_left = 0;
};

struct World {
  std::vector<Host> hosts;
  std::array<std::array<std::deque<VoteFrame>, kMost>, kMost> flying;
  std::array<std::array<bool, kMost>, kMost> cut = {};
  int deaths = 0, cuts = 0;
};

class Explorer {
 public:
  Explorer(int hosts, int depth, int deaths, int cuts, int relays) : hosts_(hosts), depth_(depth) {
    World world;
    for (int i = 0; i < hosts; ++i) {
      Host host;
      host.board = control::first_vote(hosts);
      host.board.term = 1;
      host.relays_left = relays;
      world.hosts.push_back(host);
    }
    world.deaths = deaths;
    world.cuts = cuts;
    // All have met.
    for (int host = 0; host < hosts; ++host) look(world, host, -1, nullptr, false);
    for (int to = 0; to < hosts; ++to)
      for (int from = 0; from < hosts; ++from)
        while (!world.flying[at(from)][at(to)].empty()) arrive(world, from, to, false);
    explore(world, 0);
  }

  std::uint64_t states() const { return seen_.size(); }
  std::uint64_t entries() const { return entries_; }
  const std::string& violation() const { return violation_; }

 private:
  static std::size_t at(int host) { return static_cast<std::size_t>(host); }

  /// A step of the relay of a host; `dies`: it has written, and sends nothing.
  void look(World& world, int self, int from, const VoteFrame* frame, bool wants,
            bool dies = false) {
    Host& host = world.hosts[at(self)];
    std::vector<HostFacts> facts(at(hosts_));
    for (int other = 0; other < hosts_; ++other) {
      HostFacts& it = facts[at(other)];
      it.connection = world.hosts[at(other)].connection + host.connection;
      if (world.cut[at(self)][at(other)]) it.state = HostFacts::State::cut;
      if (world.hosts[at(other)].dead && world.flying[at(other)][at(self)].empty() &&
          !world.cut[at(self)][at(other)])
        it.state = HostFacts::State::dead;
    }
    std::optional<Entry> want;
    if (wants && host.board.vote.number == 0) {
      want.emplace();
      want->verdict.groups = {1};
      want->verdict.finder = WorldRank(self);
    }
    const std::uint64_t before = host.board.vote.number;
    control::VoteStep step =
        step_vote(host.board, host.memory, {self, host.now, facts, want, from, frame});
    host.next = step.next;
    if (host.board.vote.number > before) ++entries_;
    if (dies) {
      ++host.board.term;
      host.memory = {};
      ++host.connection;
      --host.relays_left;
      for (int other = 0; other < hosts_; ++other) world.flying[at(other)][at(self)].clear();
      return;
    }
    for (auto& [to, sent] : step.frames)
      if (!world.hosts[at(to)].dead) world.flying[at(self)][at(to)].push_back(std::move(sent));
  }

  void arrive(World& world, int from, int to, bool wants, bool dies = false) {
    const VoteFrame frame = std::move(world.flying[at(from)][at(to)].front());
    world.flying[at(from)][at(to)].pop_front();
    look(world, to, from, &frame, wants, dies);
  }

  void explore(const World& world, int depth) {
    check(world);
    if (depth == depth_ || !violation_.empty() || !is_new(world, depth)) return;
    const auto go = [&](const auto& change) {
      World next = world;
      change(next);
      explore(next, depth + 1);
    };
    for (int host = 0; host < hosts_; ++host) {
      const Host& it = world.hosts[at(host)];
      if (it.dead) continue;
      for (int from = 0; from < hosts_; ++from) {
        if (world.flying[at(from)][at(host)].empty() || world.cut[at(host)][at(from)]) continue;
        go([&](World& next) { arrive(next, from, host, true); });
        if (it.relays_left > 0) go([&](World& next) { arrive(next, from, host, true, true); });
      }
      go([&](World& next) {
        Host& own = next.hosts[at(host)];
        if (own.next > own.now && own.next < Clock::time_point::max()) own.now = own.next;
        look(next, host, -1, nullptr, true);
      });
      if (world.deaths > 0)
        go([&](World& next) {
          next.hosts[at(host)].dead = true;
          --next.deaths;
          for (int from = 0; from < hosts_; ++from) next.flying[at(from)][at(host)].clear();
        });
      for (int other = 0; other < host; ++other)
        if (world.cuts > 0 && !world.cut[at(host)][at(other)])
          go([&](World& next) {
            next.cut[at(host)][at(other)] = next.cut[at(other)][at(host)] = true;
            --next.cuts;
          });
    }
  }

  void check(const World& world) {
    for (int one = 0; one < hosts_; ++one)
      for (int other = 0; other < one; ++other) {
        const Host &a = world.hosts[at(one)], &b = world.hosts[at(other)];
        if (a.dead || b.dead || a.board.vote.cut_off.contains(other) ||
            b.board.vote.cut_off.contains(one))
          continue;
        const Entry* const first = control::entry_of(a.board, 1);
        const Entry* const second = control::entry_of(b.board, 1);
        if (first != nullptr && second != nullptr && *first != *second)
          violation_ = fmt::format("entry 1 differs on host {} and host {}", one, other);
      }
  }

  // ---- states that have been seen at the same depth or above

  static std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    hash ^= value + 0x9e3779b97f4a7c15 + (hash << 12) + (hash >> 4);
    hash *= 0xbf58476d1ce4e5b9;
    return hash ^ (hash >> 29);
  }
  static std::uint64_t mix(std::uint64_t hash, const control::HostSet& set) {
    for (const int host : set.members()) hash = mix(hash, static_cast<std::uint64_t>(host));
    return mix(hash, 99);
  }
  static std::uint64_t mix(std::uint64_t hash, const Vote& vote) {
    hash = mix(hash, vote.number);
    for (const auto& ballot : {vote.promised, vote.accepted})
      hash = mix(mix(hash, ballot.round), static_cast<std::uint64_t>(ballot.host));
    hash = mix(hash, static_cast<std::uint64_t>(vote.value.verdict.finder.value));
    return mix(mix(hash, vote.cut_off), vote.gone);
  }
  static std::uint64_t mix(std::uint64_t hash, const HostVote& board) {
    hash = mix(mix(hash, board.term), board.vote);
    for (const Entry& entry : board.entries)
      hash = mix(hash, static_cast<std::uint64_t>(entry.verdict.finder.value));
    return mix(hash, board.hosts);
  }
  /// Times count as what is left of them.
  static std::uint64_t mix(std::uint64_t hash, const Host& host) {
    hash = mix(mix(mix(hash, host.board), host.connection), host.dead ? 1 : 0);
    for (const auto& peer : host.memory.peers) {
      hash = mix(mix(mix(hash, peer.term), peer.connection), peer.told_number);
      hash = mix(mix(hash, peer.seen ? 1 : 0), peer.seen.value_or(Vote{}));
      hash = mix(mix(hash, peer.told ? 1 : 0), peer.told.value_or(Vote{}));
      hash =
          mix(hash, static_cast<std::uint64_t>(peer.want ? peer.want->verdict.finder.value : 77));
    }
    hash = mix(hash, static_cast<std::uint64_t>(host.memory.tries));
    const auto left = [&](Clock::time_point when) {
      return static_cast<std::uint64_t>((when - host.now).count());
    };
    hash = mix(hash, host.next == Clock::time_point::max() ? 1 : left(host.next));
    return mix(mix(hash, left(host.memory.active)), static_cast<std::uint64_t>(host.relays_left));
  }

  bool is_new(const World& world, int depth) {
    std::uint64_t hash = mix(static_cast<std::uint64_t>(world.deaths * 16 + world.cuts),
                             static_cast<std::uint64_t>(depth_ - depth));
    for (const Host& host : world.hosts) hash = mix(hash, host);
    for (int from = 0; from < hosts_; ++from)
      for (int to = 0; to < hosts_; ++to) {
        hash = mix(hash, world.cut[at(from)][at(to)] ? 3 : 4);
        for (const VoteFrame& frame : world.flying[at(from)][at(to)]) {
          hash = mix(mix(hash, frame.term), frame.vote);
          for (const Entry& entry : frame.entries)
            hash = mix(hash, static_cast<std::uint64_t>(entry.verdict.finder.value));
        }
      }
    return seen_.insert(hash).second;
  }

  int hosts_, depth_;
  std::unordered_set<std::uint64_t> seen_;
  std::uint64_t entries_ = 0;
  std::string violation_;
};

struct Case {
  int hosts, depth, deaths, cuts, relays;
};

}  // namespace
}  // namespace tutti::simulate::votes

int main(int argc, char** argv) {
  using namespace tutti::simulate::votes;
  int deeper = 0;
  CLI::App app{"Every order of events among two or three hosts that vote"};
  app.add_option("--deeper", deeper, "so many steps more than the tests take");
  CLI11_PARSE(app, argc, argv);
  for (const Case& each : {Case{2, 14, 1, 0, 0}, Case{2, 14, 0, 1, 0}, Case{2, 10, 1, 1, 1},
                           Case{3, 9, 1, 0, 0}, Case{3, 9, 0, 1, 0}, Case{3, 7, 2, 0, 1}}) {
    const auto began = std::chrono::steady_clock::now();
    const Explorer explorer(each.hosts, each.depth + deeper, each.deaths, each.cuts, each.relays);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    fmt::print(
        "{} hosts, {} steps, {} deaths, {} cuts, {} relays a host: {} states, {} entries in {:.1f} "
        "s\n",
        each.hosts, each.depth + deeper, each.deaths, each.cuts, each.relays + 1, explorer.states(),
        explorer.entries(), took.count());
    if (explorer.violation().empty()) continue;
    fmt::print("VIOLATED: {}\n", explorer.violation());
    return 1;
  }
  return 0;
}
