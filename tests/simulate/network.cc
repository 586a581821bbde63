#include "simulate/network.h"

#include <algorithm>
#include <utility>

#include "base/wait.h"
#include "control/board/describe.h"
#include "control/board/layout.h"
#include "control/board/waits.h"

namespace tutti::simulate {

using namespace std::chrono_literals;
using control::HostFacts;
using control::LineState;

namespace {

/// A link without an ACK for so long is cut; and how much later an end of it finds that out.
constexpr auto kCut = 2s;
constexpr auto kBetweenBeats = 500ms;
/// How soon somebody is told again who could not be told at once.
constexpr auto kAgain = 5ms;

}  // namespace

/// What one rank is given of the network.
class Network::Side final : public control::OtherHosts, public control::RelayLinks {
 public:
  Side(Network& network, int rank) : network_(network), rank_(rank), host_(network.host_of(rank)) {}

  control::MemberFacts facts_of(GroupId group, WorldRank rank) const override {
    const Known& known = known_of(rank);
    control::MemberFacts facts{
        .has_left_world = known.has_left,
        .asked = known.has_left ? Clock::time_point::max() : Clock::time_point{}};
    if (const auto line = known.lines.find(group); line != known.lines.end()) {
      facts.line = line->second.facts;
      facts.heard = line->second.heard;
      if (!known.has_left) facts.asked = line->second.asked;
    }
    if (!known.has_left) facts.meetings = known.meetings;
    return facts;
  }
  std::optional<LineState> state_of(GroupId group, WorldRank rank) const noexcept override {
    const control::LineFacts* const line = line_of(group, rank);
    return line != nullptr ? std::optional(line->state) : std::nullopt;
  }
  bool shows_failure(GroupId group, WorldRank rank) const noexcept override {
    const control::LineFacts* const line = line_of(group, rank);
    return line != nullptr && line->failure;
  }
  bool has_left(WorldRank rank) const noexcept override { return known_of(rank).has_left; }
  std::vector<GroupId> said_goodbye_to(WorldRank rank) const override {
    std::vector<GroupId> groups;
    for (const auto& [group, line] : known_of(rank).lines) {
      if (!line.facts) continue;
      if (!control::has_left(line.facts->state)) return {};
      groups.push_back(group);
    }
    return groups;
  }
  std::map<GroupId, control::FailureFacts> failures_of(WorldRank rank) const override {
    std::map<GroupId, control::FailureFacts> failures;
    for (const auto& [group, line] : known_of(rank).lines)
      if (line.facts && line.facts->failure) failures.emplace(group, *line.facts->failure);
    return failures;
  }
  void ask(GroupId group, WorldRank rank) noexcept override {
    const auto now = network_.kernel_.now();
    Clock::time_point& last = asked_[{group, rank.value}];
    if (last != Clock::time_point{} && now < last + 1ms) return;
    last = now;
    network_.post(host_, network_.host_of(rank.value), kFacts,
                  [this, group, rank, now] { network_.answer(group, rank.value, rank_, now); });
  }
  control::WaitFacts wait_of(WorldRank rank) const override { return known_of(rank).wait; }
  void ask_wait(WorldRank rank) noexcept override {
    network_.post(host_, network_.host_of(rank.value), kFacts,
                  [this, rank] { network_.answer_wait(rank.value, host_); });
  }
  void notify(WorldRank rank) noexcept override {
    const int to = rank.value;
    network_.at(network_.kernel_.now(),
                [this, to] { network_.report(rank_, network_.host_of(to), to); });
  }
  RelayLinks& links() noexcept override { return *this; }

  void open() override {
    network_.host_at(host_).relay = rank_;
    for (int other = 0; other < network_.count(); ++other)
      if (other != host_) network_.connect(host_, other);
  }
  void close() noexcept override {
    if (network_.host_at(host_).relay == rank_) network_.close_relay(host_);
  }
  std::vector<HostFacts> facts() const override {
    std::vector<HostFacts> all(static_cast<std::size_t>(network_.count()));
    for (int other = 0; other < network_.count(); ++other) {
      if (other == host_) continue;
      const Link& link = network_.link(other, host_);
      HostFacts& facts = all[static_cast<std::size_t>(other)];
      facts.connection = link.connection;
      const auto& inbox = network_.host_at(host_).inbox;
      const bool is_read = std::none_of(inbox.begin(), inbox.end(),
                                        [&](const auto& frame) { return frame.first == other; });
      if (link.over.size() == kStreams && is_read) {
        facts.state = link.has_left ? HostFacts::State::left : HostFacts::State::dead;
      } else if (const auto since = network_.down_since(host_, other)) {
        const auto silent = network_.kernel_.now() - (*since + link.asked_after);
        if (silent >= kCut / 2) facts.state = HostFacts::State::doubtful;
        if (silent >= kCut) {
          facts.state = HostFacts::State::cut;
          network_.cut_.insert(std::minmax(host_, other));
        }
        facts.heard = std::max(link.down_since, network_.link(host_, other).down_since);
      }
    }
    return all;
  }
  std::optional<std::pair<int, std::string>> receive() override {
    auto& inbox = network_.host_at(host_).inbox;
    if (inbox.empty()) return std::nullopt;
    auto first = std::move(inbox.front());
    inbox.pop_front();
    return first;
  }
  void await_sent() noexcept override {}  // what a process has posted comes, though it ends
  void report() override {}               // the courier does
  void part_from(const control::HostSet& hosts) override { network_.host_at(host_).parted = hosts; }
  void send(int host, std::string frame) override {
    const std::uint64_t connection = network_.link(host, host_).connection;
    if (connection == 0) return;
    network_.post(host_, host, kFrames,
                  [this, host, connection, bytes = std::move(frame)]() mutable {
                    const int relay = network_.host_at(host).relay;
                    if (relay < 0 || network_.link(host_, host).connection != connection) return;
                    network_.host_at(host).inbox.emplace_back(host_, std::move(bytes));
                    network_.rouse(host);
                  });
  }

 private:
  const Known& known_of(WorldRank rank) const noexcept { return network_.known(host_, rank.value); }
  const control::LineFacts* line_of(GroupId group, WorldRank rank) const noexcept {
    const Known& known = known_of(rank);
    const auto line = known.lines.find(group);
    return line != known.lines.end() && line->second.facts ? &*line->second.facts : nullptr;
  }

  Network& network_;
  const int rank_, host_;
  std::map<std::pair<GroupId, int>, Clock::time_point> asked_;
};

Network::Network(const Plan& plan, Kernel& kernel, Happened& happened)
    : plan_(plan), kernel_(kernel), happened_(happened) {
  std::vector<Roster::HostRanks> all(static_cast<std::size_t>(plan.hosts()));
  for (int rank = 0; rank < plan.ranks(); ++rank)
    all[static_cast<std::size_t>(plan.host_of(rank))].ranks.emplace_back(rank);
  for (std::size_t host = 0; host < all.size(); ++host)
    all[host].name = "host-" + std::to_string(host);
  for (int host = 0; host < plan.hosts(); ++host) {
    Host& each = hosts_.emplace_back();
    const auto slots = static_cast<int>(all[static_cast<std::size_t>(host)].ranks.size());
    each.memory = control::Board::make(slots, plan.ranks());
    each.board = std::make_unique<control::Board>(each.memory);
    each.roster = std::make_unique<Roster>(all, host);
    each.known.resize(static_cast<std::size_t>(plan.ranks()));
  }
  links_.resize(hosts_.size() * hosts_.size());
  for (int rank = 0; rank < plan.ranks(); ++rank)
    sides_.push_back(std::make_unique<Side>(*this, rank));
}

Network::~Network() = default;

int Network::host_of(int rank) const { return plan_.host_of(rank); }
control::OtherHosts& Network::others_of(int rank) {
  return *sides_[static_cast<std::size_t>(rank)];
}

// ---- the courier -------------------------------------------------------------------------------

void Network::start() {
  for (const Fault& fault : plan_.faults)
    if (fault.kind == FaultKind::cut && !fault.is_pinned)
      at(kernel_.now() + std::chrono::microseconds(fault.at),
         [this, fault] { cut(fault.who, fault); });
  kernel_.spawn(&kernel_.add_process(), [this] { carry(); });
}

void Network::cut(int host, const Fault& fault) {
  for (int other = 0; other < count(); ++other) {
    if (other == host || (fault.other >= 0 && other != fault.other)) continue;
    block(host, other, fault.lasts);
    if (!fault.one_way) block(other, host, fault.lasts);
  }
}

void Network::at(Clock::time_point time, Task task) {
  timers_.emplace(time, std::move(task));
  kernel_.wake(this);
}

void Network::post(int from, int to, Stream stream, Task deliver) {
  auto& parcels = link(from, to).parcels[stream];
  const auto delay =
      std::chrono::nanoseconds(1 + kernel_.random().below(static_cast<std::uint64_t>(
                                       std::chrono::nanoseconds(plan_.delay).count())));
  Clock::time_point arrives = kernel_.now() + delay;
  if (!parcels.empty()) arrives = std::max(arrives, parcels.back().arrives);
  parcels.push_back({arrives, std::move(deliver)});
  kernel_.wake(this);
}

Network::Task Network::next_task(Clock::time_point* due) {
  Task none;
  std::deque<Link::Parcel>* first = nullptr;
  *due = timers_.empty() ? Clock::time_point::max() : timers_.begin()->first;
  for (Link& each : links_)
    for (auto& parcels : each.parcels) {
      if (parcels.empty()) continue;
      const auto arrives = std::max(parcels.front().arrives, each.blocked_until);
      if (arrives >= *due) continue;
      *due = arrives;
      first = &parcels;
    }
  if (*due > kernel_.now()) return none;
  Task task;
  if (first != nullptr) {
    task = std::move(first->front().deliver);
    first->pop_front();
  } else {
    task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
  }
  return task;
}

void Network::carry() {
  for (;;) {
    Clock::time_point due;
    if (const Task task = next_task(&due)) {
      task();
    } else {
      kernel_.block(this, due);
    }
  }
}

// ---- facts -------------------------------------------------------------------------------------

/// Whether a relay of the host runs.
bool Network::is_reporting(int host) {
  const int relay = host_at(host).relay;
  if (relay < 0) return false;
  const Proc& process = kernel_.process(plan_.process_of[static_cast<std::size_t>(relay)]);
  return !process.dead && process.stopped_until <= kernel_.now();
}

const control::BoardMembers& Network::members(GroupId group, int host) {
  Host& of = host_at(host);
  auto& found = of.groups[group];
  if (!found)
    found = std::make_unique<control::BoardMembers>(
        *of.board, *of.roster, group, world_ranks(happened_.groups[group].world_ranks), 0);
  return *found;
}

/// What `rank` has changed, to the host `to`; then the bell of a rank there.
void Network::report(int rank, int to, std::optional<int> ring) {
  const int from = host_of(rank);
  if (host_at(from).is_over || host_at(from).parted.contains(to)) return;
  if (!is_reporting(from)) {
    if (!held_reports_.insert({rank, to, ring}).second) return;
    return at(kernel_.now() + kAgain, [this, rank, to, ring] {
      held_reports_.erase({rank, to, ring});
      report(rank, to, ring);
    });
  }
  for (const GroupId id : happened_.made[rank]) {
    const auto& all = members(id, from);
    const int member = all.member_of(WorldRank(rank));
    const auto state = all.state_of(member);
    if (!state) continue;
    const std::pair now = {*state, all.shows_failure(member)};
    const auto [place, is_new] = reported_.try_emplace({to, id, rank}, now);
    if (!is_new && place->second == now) continue;
    place->second = now;
    send_line(id, rank, to, std::nullopt);
  }
  const SlotIndex slot = roster(from).slot_of(WorldRank(rank));
  const bool has_left = control::has_left(*host_at(from).board, slot);
  if (!has_left && !ring) return;
  post(from, to, kFacts, [this, rank, to, ring, has_left] {
    if (has_left) known(to, rank).has_left = true;
    if (ring) tutti::ring(host_at(to).board->bell(roster(to).slot_of(WorldRank(*ring))));
  });
}

/// As other hosts are told of it.
std::optional<control::LineFacts> Network::line_of(GroupId group, int rank) {
  const auto& all = members(group, host_of(rank));
  const int member = all.member_of(WorldRank(rank));
  if (member < 0) return std::nullopt;
  auto line = all.facts_of(member).line;
  if (line && line->failure)
    for (int& culprit : line->failure->culprits) culprit = all.world_rank_of(culprit).value;
  return line;
}

void Network::send_line(GroupId group, int rank, int to, std::optional<Clock::time_point> asked) {
  const int from = host_of(rank);
  if (host_at(from).parted.contains(to)) return;
  const auto& all = members(group, from);
  const int member = all.member_of(WorldRank(rank));
  if (member < 0) return;
  auto line = line_of(group, rank);
  auto meetings = all.meetings_of(member);
  post(from, to, kFacts,
       [this, group, rank, to, asked, line = std::move(line), meetings = std::move(meetings)] {
         Known& of_sender = known(to, rank);
         Known::Line& last = of_sender.lines[group];
         last.facts = line;
         last.heard = kernel_.now();
         if (asked) last.asked = std::max(last.asked, *asked);
         of_sender.meetings = meetings;
       });
}

void Network::answer(GroupId group, int rank, int asker, Clock::time_point asked) {
  const int from = host_of(rank);
  if (host_at(from).is_over) return;
  if (!is_reporting(from)) {
    const auto [held, is_new] = held_questions_.try_emplace({group, rank, asker}, asked);
    held->second = std::max(held->second, asked);
    if (!is_new) return;
    return at(kernel_.now() + kAgain, [this, group, rank, asker] {
      const auto last = held_questions_.extract({group, rank, asker}).mapped();
      answer(group, rank, asker, last);
    });
  }
  send_line(group, rank, host_of(asker), asked);
  report(rank, host_of(asker), asker);
}

/// It is asked again where nothing is answered.
void Network::answer_wait(int rank, int to) {
  const int from = host_of(rank);
  if (!is_reporting(from)) return;
  const control::Board& board = *host_at(from).board;
  const SlotIndex slot = roster(from).slot_of(WorldRank(rank));
  control::WaitFacts wait = control::read_wait(board, slot);
  if (board.is_known_dead(slot)) wait.is_running = false;
  for (control::WaitPart& part : wait.parts) part.words = control::describe_wait(board, slot, part);
  post(from, to, kFacts, [this, rank, to, wait = std::move(wait)] { known(to, rank).wait = wait; });
}

void Network::report_all(int from, int to) {
  for (const WorldRank rank : roster(from).own().ranks) {
    std::erase_if(reported_, [&](const auto& each) {
      return std::get<0>(each.first) == to && std::get<2>(each.first) == rank.value;
    });
    report(rank.value, to, std::nullopt);
  }
}

// ---- links -------------------------------------------------------------------------------------

bool Network::is_down(int one, int other) {
  return std::max(link(one, other).blocked_until, link(other, one).blocked_until) > kernel_.now();
}

std::optional<Clock::time_point> Network::down_since(int one, int other) {
  std::optional<Clock::time_point> first;
  for (const Link* each : {&link(one, other), &link(other, one)})
    if (each->blocked_until > kernel_.now())
      first = std::min(first.value_or(each->down_since), each->down_since);
  return first;
}

bool Network::is_cut(int one, int other) {
  const auto since = down_since(one, other);
  return since && kernel_.now() >= *since + kCut;
}

/// Each end notices by its own beats.
void Network::block(int from, int to, std::chrono::nanoseconds lasts) {
  Link& each = link(from, to);
  const auto now = kernel_.now();
  if (!is_down(from, to)) {
    for (const auto& [one, other] : {std::pair(from, to), std::pair(to, from)}) {
      const auto asked_after = std::chrono::nanoseconds(kernel_.random().below(
          static_cast<std::uint64_t>(std::chrono::nanoseconds(kBetweenBeats).count())));
      link(one, other).asked_after = asked_after;
      for (const auto when : {asked_after + kCut / 2, asked_after + kCut})
        at(now + when, [this, host = other] { rouse(host); });
    }
  }
  if (each.blocked_until <= now) each.down_since = now;
  each.blocked_until = std::max(each.blocked_until, now + lasts);
  at(now + kCut, [this, from, to] {
    if (is_cut(from, to)) lose(from, to);
  });
  at(each.blocked_until, [this, from, to] {
    if (!is_down(from, to)) heal(from, to);
  });
}

/// It has been found out that the link is cut: what was under way is lost.
void Network::lose(int one, int other) {
  for (Link* each : {&link(one, other), &link(other, one)}) {
    for (auto& parcels : each->parcels) parcels.clear();
    each->connection = 0;
  }
  rouse(one);
  rouse(other);
}

void Network::heal(int one, int other) {
  if (link(one, other).connection == 0) connect(one, other);
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
    report_all(from, to);
    check_over(from);
  }
}

/// The relays of two hosts have a connection, once both are there.
void Network::connect(int from, int to) {
  if (is_cut(from, to)) return;
  post(from, to, kFrames, [this, from, to] {
    if (host_at(from).relay < 0 || host_at(to).relay < 0) return;
    link(from, to).connection = link(to, from).connection = ++connections_;
    rouse(from);
    rouse(to);
  });
}

void Network::close_relay(int host) {
  host_at(host).relay = -1;
  for (int other = 0; other < count(); ++other) {
    if (other == host) continue;
    link(other, host).connection = 0;
    const std::uint64_t connection = link(host, other).connection;
    post(host, other, kFrames, [this, host, other, connection] {
      if (link(host, other).connection != connection) return;
      link(host, other).connection = 0;
      rouse(other);
    });
  }
}

void Network::rouse(int host) {
  const int relay = host_at(host).relay;
  if (relay < 0) return;
  control::rouse_control(*host_at(host).board, roster(host).slot_of(WorldRank(relay)));
}

// ---- ends --------------------------------------------------------------------------------------

void Network::died(const Proc& process) {
  at(kernel_.now(), [this, id = process.id] {
    for (int rank = 0; rank < plan_.ranks(); ++rank) {
      if (plan_.process_of[static_cast<std::size_t>(rank)] != id) continue;
      if (host_at(host_of(rank)).relay == rank) {
        host_at(host_of(rank)).inbox.clear();
        close_relay(host_of(rank));
      }
      check_over(host_of(rank));
    }
  });
}

void Network::ended(int rank) {
  at(kernel_.now(), [this, rank] {
    const int host = host_of(rank);
    for (int other = 0; other < count(); ++other)
      if (other != host) report(rank, other, std::nullopt);
    check_over(host);
  });
}

/// Once no process of the host is left the others find that out, after all that came from it.
void Network::check_over(int host) {
  Host& own = host_at(host);
  const auto ranks = own.roster->own().ranks;
  const bool is_over = std::all_of(ranks.begin(), ranks.end(), [&](WorldRank rank) {
    return kernel_.process(plan_.process_of[rank.index()]).dead || happened_.done[rank.index()];
  });
  if (!is_over) return;
  own.is_over = true;
  std::vector<int> left;
  std::map<std::pair<GroupId, int>, control::LineFacts> lines;  // the last one leaves a note
  for (const WorldRank rank : ranks)
    for (const GroupId group : happened_.made[rank.value])
      if (auto line = line_of(group, rank.value)) lines[{group, rank.value}] = *std::move(line);
  for (const WorldRank rank : ranks) {
    const SlotIndex slot = own.roster->slot_of(rank);
    own.board->slot(slot).mark.look();
    if (control::has_left(*own.board, slot)) left.push_back(rank.value);
  }
  for (int other = 0; other < count(); ++other) {
    if (other == host) continue;
    const bool says_so = !own.parted.contains(other);
    for (const Stream stream : {kFacts, kFrames})
      post(host, other, stream,
           [this, host, other, stream, says_so, left, lines, count = ranks.size()] {
             if (says_so) {
               for (const auto& [of, line] : lines)
                 known(other, of.second).lines[of.first].facts = line;
               for (const int rank : left) known(other, rank).has_left = true;
             }
             link(host, other).has_left = says_so && left.size() == count;
             // What it has said before may still be under way on the other stream.
             if (stream == kFrames) link(host, other).connection = 0;
             link(host, other).over.insert(stream);
             rouse(other);
           });
  }
}

}  // namespace tutti::simulate
