#include "simulate/votes/world.h"

#include <fmt/format.h>

#include <queue>
#include <utility>

#include "simulate/random.h"
#include "simulate/votes/hosts.h"

namespace tutti::simulate::votes {

namespace {

using control::HostFacts;
using control::VoteFrame;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kLookAtMarks{20}, kSilentRelay{250}, kCutAfter{2000};
constexpr std::chrono::seconds kRest{8};

class World {
 public:
  World(const Plan& plan, Tally& tally)
      : plan_(plan),
        tally_(tally),
        random_(plan.seed ^ 0x766f746573),
        state_(plan),
        checks_(state_, plan),
        cut_known_(static_cast<std::size_t>(state_.count() * state_.count())) {}

  std::string run() {
    begin();
    while (violation_.empty() && !events_.empty() && events_.top().at <= end()) {
      const Event event = events_.top();
      events_.pop();
      state_.now = event.at;
      handle(event);
      if (++handled_ > 200'000) violation_ = "the hosts do not come to rest";
    }
    if (violation_.empty()) {
      state_.now = end();
      violation_ = checks_.at_end(facts_of_all());
    }
    ++tally_.rounds;
    tally_.steps += handled_;
    return violation_;
  }

 private:
  enum class What : std::uint8_t {
    run,      // process b of host a
    want,     // plan_.wanted[a]
    fault,    // plan_.faults[a]
    deliver,  // what flies first to end b of connection a
    unblock,  // from a to b
    know,     // a and b: whether they are cut
    dial,     // a and b
    watch,    // the relay of a
    resume,   // process b of host a
    look,     // the relay of a at its host's marks
  };
  struct Event {
    Time at;
    std::uint64_t order;
    What what;
    int a, b;
    bool operator<(const Event& other) const noexcept {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  // ---- time -----------------------------------------------------------------------------------

  void at(Time when, What what, int a = 0, int b = 0) {
    events_.push({when, ++order_, what, a, b});
  }
  void in(Clock::duration duration, What what, int a = 0, int b = 0) {
    at(state_.now + duration, what, a, b);
  }
  Time end() const { return std::max(state_.calm_since, last_change_) + kRest; }
  Duration some(int first, int last) { return microseconds(random_.from_to(first, last)); }

  /// Something befalls somebody now, and its end does later.
  void disturb(Duration lasts = Duration(0)) {
    state_.calm_since = state_.now;
    if (lasts < Fault::kForEver) last_change_ = std::max(last_change_, state_.now + lasts);
  }

  void begin() {
    const Time start = state_.now;
    for (std::size_t i = 0; i < plan_.wanted.size(); ++i)
      at(start + plan_.wanted[i].at, What::want, static_cast<int>(i));
    for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
      at(start + plan_.faults[i].at, What::fault, static_cast<int>(i));
      last_change_ = std::max(last_change_, start + plan_.faults[i].at);
    }
    for (const Wanted& wanted : plan_.wanted)
      last_change_ = std::max(last_change_, start + wanted.at);
    connections_.emplace_back();  // 0: none
    for (int host = 0; host < state_.count(); ++host) take_over(host, 0);
  }

  void handle(const Event& event) {
    switch (event.what) {
      case What::run:
        return run_process(event.a, event.b);
      case What::want:
        return add_wanted(event.a);
      case What::fault:
        return befall(plan_.faults[static_cast<std::size_t>(event.a)]);
      case What::deliver:
        return deliver(static_cast<std::size_t>(event.a), static_cast<std::size_t>(event.b));
      case What::unblock:
        return unblock(event.a, event.b);
      case What::know:
        return know(event.a, event.b);
      case What::dial:
        return dial(event.a, event.b);
      case What::watch:
        return watch(event.a);
      case What::resume:
        return resume(event.a, event.b);
      case What::look:
        return poke(event.a);
    }
  }

  // ---- processes ------------------------------------------------------------------------------

  Process& process(int host, int index) {
    return state_.host(host).processes[static_cast<std::size_t>(index)];
  }

  /// The relay of a host looks at what is new.
  void poke(int host) {
    if (state_.host(host).relay >= 0) run_soon(host, state_.host(host).relay);
  }
  void run_soon(int host, int index) {
    process(host, index).has_news = true;
    schedule(host, index);
  }
  void schedule(int host, int index) {
    if (std::exchange(process(host, index).runs_at_once, true)) return;
    in(some(5, 50), What::run, host, index);
  }

  void take_over(int host, int index) {
    Host& own = state_.host(host);
    ++own.board.term;
    own.relay = index;
    Process& it = process(host, index);
    it.relay.emplace();
    it.relay->vote = own.board;
    it.relay->connection.resize(static_cast<std::size_t>(state_.count()));
    if (own.board.term > 1) ++tally_.happened["another relay takes over"];
    dial_all(host);
    run_soon(host, index);
  }

  void watch(int host) {
    Host& own = state_.host(host);
    if (own.relay >= 0) {
      const Process& relay = process(host, own.relay);
      const bool is_silent =
          relay.stopped_until > state_.now && relay.stopped_since + kSilentRelay <= state_.now;
      if (!relay.dead && !is_silent) return;
    }
    for (int index = 0; index < static_cast<int>(own.processes.size()); ++index)
      if (!process(host, index).dead && process(host, index).stopped_until <= state_.now)
        return take_over(host, index);
  }

  void die(int host, int index) {
    Process& it = process(host, index);
    if (std::exchange(it.dead, true)) return;
    it.died = state_.now;
    if (it.relay) close_all(host, index);
    it.relay.reset();
    in(some(0, 20'000), What::watch, host);
    in(kLookAtMarks + some(20'000, 40'000), What::look, host);
    if (!state_.host(host).is_dead()) return;
    for (int other = 0; other < state_.count(); ++other) in(some(1000, 20'000), What::look, other);
  }

  void stop(int host, int index, Duration lasts) {
    Process& it = process(host, index);
    if (it.dead || it.stopped_until > state_.now) return;
    it.stopped_since = state_.now;
    it.stopped_until = state_.now + lasts;
    at(it.stopped_until, What::resume, host, index);
    in(kSilentRelay + some(0, 20'000), What::watch, host);
  }

  void resume(int host, int index) {
    if (process(host, index).dead) return;
    disturb();
    run_soon(host, index);
    in(some(0, 20'000), What::watch, host);
  }

  // ---- what befalls them ----------------------------------------------------------------------

  void add_wanted(int index) {
    for (const int host : plan_.wanted[static_cast<std::size_t>(index)].hosts) {
      state_.host(host).pending.push_back({static_cast<GroupId>(index + 1), state_.now});
      poke(host);
    }
  }

  void befall(const Fault& fault) {
    if (fault.effects > 0) {
      armed_.push_back({fault, state_.host(fault.host).effects + fault.effects});
      return;
    }
    happen(fault);
  }

  /// Befalls the relay of `host` at this effect of it what the plan has for it.
  void befall_at_effect(int host) {
    const std::uint64_t effect = ++state_.host(host).effects;
    for (std::size_t i = 0; i < armed_.size(); ++i) {
      if (armed_[i].first.host != host || armed_[i].second > effect) continue;
      const Fault fault = armed_[i].first;
      armed_.erase(armed_.begin() + static_cast<std::ptrdiff_t>(i));
      return happen(fault);
    }
  }

  void happen(const Fault& fault) {
    Host& host = state_.host(fault.host);
    ++tally_.faults[name_of(fault.kind)];
    disturb(fault.lasts);
    const auto count = static_cast<int>(host.processes.size());
    const int one = fault.other < 0 ? host.relay : fault.other % count;
    switch (fault.kind) {
      case FaultKind::die:
        return die(fault.host, one);
      case FaultKind::stop:
        return stop(fault.host, one, fault.lasts);
      case FaultKind::leave:
        host.has_left |= !host.is_dead();
        [[fallthrough]];
      case FaultKind::lose_host:
        for (int index = 0; index < count; ++index) die(fault.host, index);
        return;
      case FaultKind::stop_host:
        for (int index = 0; index < count; ++index) stop(fault.host, index, fault.lasts);
        return;
      case FaultKind::cut:
        block(fault.other, fault.host, fault.lasts);
        [[fallthrough]];
      case FaultKind::one_way:
        return block(fault.host, fault.other, fault.lasts);
      case FaultKind::divide:
        for (int from = 0; from < state_.count(); ++from)
          for (int to = 0; to < state_.count(); ++to) {
            const bool between = from == fault.other || to == fault.other;
            const bool apart = ((fault.side >> from) & 1) != ((fault.side >> to) & 1);
            if (apart && !between) block(from, to, fault.lasts);
          }
        return;
    }
  }

  // ---- links ----------------------------------------------------------------------------------

  std::size_t pair(int one, int other) const {
    return static_cast<std::size_t>(std::min(one, other) * state_.count() + std::max(one, other));
  }

  void block(int from, int to, Duration lasts) {
    const bool was_up = state_.links.is_up(from, to);
    state_.links.block(from, to, state_.now);
    if (was_up) {
      cut_known_[pair(from, to)] = state_.now + kCutAfter + some(0, 500'000);
      at(cut_known_[pair(from, to)], What::know, from, to);
    }
    in(lasts, What::unblock, from, to);
  }

  bool is_cut(int one, int other) const {
    return !state_.links.is_up(one, other) && cut_known_[pair(one, other)] <= state_.now;
  }

  void unblock(int from, int to) {
    disturb();
    state_.links.unblock(from, to, state_.now);
    for (std::size_t id = 1; id < connections_.size(); ++id)
      for (std::size_t end = 0; end < 2; ++end)
        if (connections_[id].ends[end].host == to && connections_[id].ends[1 - end].host == from)
          in(some(1, 1000), What::deliver, static_cast<int>(id), static_cast<int>(end));
    for (const int host : {from, to}) in(some(1000, 20'000), What::look, host);
    in(some(1000, 20'000), What::dial, from, to);
  }

  void know(int one, int other) {
    if (!is_cut(one, other)) return;
    for (std::size_t id = 1; id < connections_.size(); ++id) {
      Connection& it = connections_[id];
      if (it.broken || std::minmax(it.ends[0].host, it.ends[1].host) != std::minmax(one, other))
        continue;
      it.broken = true;
      for (const End& end : it.ends) forget(end, id);
    }
    poke(one);
    poke(other);
  }

  void dial_all(int host) {
    for (int other = 0; other < state_.count(); ++other)
      if (other != host) in(some(100, 3000), What::dial, host, other);
  }

  std::size_t& connection_of(const End& end, int other) {
    return process(end.host, end.process).relay->connection[static_cast<std::size_t>(other)];
  }
  void forget(const End& end, std::size_t id) {
    if (!process(end.host, end.process).relay) return;
    for (std::size_t& each : process(end.host, end.process).relay->connection)
      if (each == id) each = 0;
  }

  void dial(int one, int other) {
    const std::array<End, 2> ends = {End{one, state_.host(one).relay},
                                     End{other, state_.host(other).relay}};
    if (!state_.links.is_up(one, other)) return;
    for (const End& end : ends)
      if (end.process < 0 || !process(end.host, end.process).relay) return;
    const std::size_t there = connection_of(ends[0], other);
    if (there != 0 && there == connection_of(ends[1], one)) return;
    connections_.emplace_back();
    connections_.back().ends = ends;
    connection_of(ends[0], other) = connection_of(ends[1], one) = connections_.size() - 1;
    poke(one);
    poke(other);
  }

  /// All that the process has sent still comes, and then EOF.
  void close_all(int host, int index) {
    const End own{host, index};
    for (std::size_t id = 1; id < connections_.size(); ++id)
      for (std::size_t end = 0; end < 2; ++end)
        if (connections_[id].ends[end] == own && !std::exchange(connections_[id].shut[end], true))
          fly(id, 1 - end, std::nullopt);
  }

  void fly(std::size_t id, std::size_t end, std::optional<VoteFrame> frame) {
    Connection& it = connections_[id];
    if (it.broken) return;
    const Duration longest = random_.below(16) == 0 ? plan_.longest_delay : plan_.usual_delay;
    const Duration delay(
        static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(longest.count()) + 1)));
    Time when = state_.now + microseconds(20) + delay;
    if (!it.flying[end].empty()) when = std::max(when, it.flying[end].back().first);
    it.flying[end].emplace_back(when, std::move(frame));
    at(when, What::deliver, static_cast<int>(id), static_cast<int>(end));
  }

  void deliver(std::size_t id, std::size_t end) {
    Connection& it = connections_[id];
    const End& to = it.ends[end];
    if (it.broken || !state_.links.passes(it.ends[1 - end].host, to.host)) return;
    auto& flying = it.flying[end];
    while (!flying.empty() && flying.front().first <= state_.now) {
      if (process(to.host, to.process).relay && !it.shut[end])
        process(to.host, to.process)
            .relay->inbox.emplace_back(id, std::move(flying.front().second));
      flying.pop_front();
    }
    run_soon(to.host, to.process);
  }

  // ---- a relay --------------------------------------------------------------------------------

  HostFacts facts_of(int self, const Relay& relay, int other) const {
    const Host& host = state_.host(other);
    HostFacts facts;
    facts.connection = relay.connection[static_cast<std::size_t>(other)];
    if (other == self) return facts;
    if (host.is_dead() && facts.connection == 0 && state_.links.is_up(self, other)) {
      facts.state = host.has_left ? HostFacts::State::left : HostFacts::State::dead;
    } else if (is_cut(self, other)) {
      facts.state = HostFacts::State::cut;
      facts.heard = state_.links.down_since(self, other);
    }
    return facts;
  }
  std::vector<HostFacts> facts_of(int self, const Relay& relay) const {
    std::vector<HostFacts> facts;
    for (int other = 0; other < state_.count(); ++other)
      facts.push_back(facts_of(self, relay, other));
    return facts;
  }
  std::vector<std::vector<HostFacts>> facts_of_all() {
    std::vector<std::vector<HostFacts>> all(state_.hosts.size());
    for (int host = 0; host < state_.count(); ++host)
      if (state_.runs(host) && process(host, state_.host(host).relay).relay)
        all[static_cast<std::size_t>(host)] =
            facts_of(host, *process(host, state_.host(host).relay).relay);
    return all;
  }

  void run_process(int host, int index) {
    Process& it = process(host, index);
    it.runs_at_once = false;
    if (it.dead || it.stopped_until > state_.now || !it.relay) return;
    if (!it.relay->effects.empty()) {
      befall_at_effect(host);
      if (it.dead || it.stopped_until > state_.now) return;
      do_effect(host, index);
    } else {
      it.has_news = false;
      step(host, index);
    }
    if (!it.relay) return;
    if (!it.relay->effects.empty() || !it.relay->inbox.empty() || it.has_news)
      schedule(host, index);
  }

  void step(int host, int index) {
    Relay& relay = *process(host, index).relay;
    std::optional<VoteFrame> frame;
    int from = -1;
    if (!relay.inbox.empty()) {
      const std::size_t id = relay.inbox.front().first;
      const auto& ends = connections_[id].ends;
      from = ends[ends[0].host == host ? 1 : 0].host;
      frame = std::move(relay.inbox.front().second);
      relay.inbox.pop_front();
      if (!frame) {
        forget({host, index}, id);
        in(some(1000, 20'000), What::dial, host, from);
      }
    }
    const std::vector<HostFacts> facts = facts_of(host, relay);
    const std::optional<Entry> want = state_.want_of(host, facts);
    if (want) checks_.wanted(*want);
    keep_time_of(host, want.has_value());
    if (frame)
      must_be_ignored(host, relay, {host, state_.now, facts, want, from, &*frame, plan_.kept});
    act(host, relay,
        step_vote(relay.vote, relay.memory,
                  {host, state_.now, facts, want, from, frame ? &*frame : nullptr, plan_.kept}));
  }

  /// A frame from a host that was cut off, or of an old term, is as good as none.
  void must_be_ignored(int, const Relay& relay, control::VoteInput input) {
    const auto& peers = relay.memory.peers;
    const auto from = static_cast<std::size_t>(input.from);
    const bool off = relay.vote.vote.cut_off.contains(input.from);
    const bool old = from < peers.size() && input.frame->term < peers[from].term;
    if (!off && !old) return;
    ++tally_.happened[off ? "a frame of a host cut off" : "a frame of an old term"];
    HostVote with = relay.vote, without = relay.vote;
    control::VoteMemory memory = relay.memory, other = relay.memory;
    step_vote(with, memory, input);
    input.frame = nullptr;
    step_vote(without, other, input);
    violate(checks_.ignored(without, with, off ? "its host was cut off" : "its term was over"));
    const auto shown = [&](const control::VoteMemory& it) { return it.peers[from].seen; };
    if (old && !off && shown(memory) != shown(other)) violate("a frame of an old term is believed");
  }

  void violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  void keep_time_of(int index, bool wants) {
    Host& host = state_.host(index);
    if (wants == (host.wants_since != Time::max())) return;
    if (!wants) violate(checks_.settled(index, host.wants_since));
    host.wants_since = wants ? state_.now : Time::max();
    host.held_up = false;
  }

  void act(int host, Relay& relay, control::VoteStep step) {
    if (step.next < Time::max()) at(std::max(step.next, state_.now), What::look, host);
    if (step.held_up && !std::exchange(state_.host(host).held_up, true))
      ++tally_.happened["a host tells its own ranks"];
    if (step.missed) ++tally_.happened["entries were slept through"];
    relay.effects.push_back({-1, relay.vote, {}});
    for (auto& [to, frame] : step.frames) relay.effects.push_back({to, {}, std::move(frame)});
  }

  void do_effect(int host, int index) {
    Relay& relay = *process(host, index).relay;
    const Effect effect = std::move(relay.effects.front());
    relay.effects.pop_front();
    if (effect.to < 0) return write(host, index, effect.write);
    const std::size_t id = relay.connection[static_cast<std::size_t>(effect.to)];
    if (id == 0) return;
    ++tally_.frames;
    fly(id, connections_[id].ends[0].host == host ? 1 : 0, effect.frame);
  }

  void write(int index, int process_index, const HostVote& next) {
    Host& host = state_.host(index);
    if (!may_replace(host.board, next)) {
      ++tally_.happened["an old relay finds that it is none"];
      close_all(index, process_index);
      process(index, process_index).relay.reset();
      return;
    }
    if (host.board == next) return;
    const HostVote before = std::exchange(host.board, next);
    violate(checks_.written(index, before, next));
    if (before.vote.cut_off - before.vote.gone != next.vote.cut_off - next.vote.gone)
      ++tally_.happened["a host parts"];
    for (std::uint64_t number = before.vote.number + 1; number <= next.vote.number; ++number)
      apply(index, number);
    if (next.vote.number > before.vote.number) keep_time_of(index, false);
  }

  /// What the ranks of a host make of an entry.
  void apply(int index, std::uint64_t number) {
    Host& host = state_.host(index);
    const Entry* const entry = control::entry_of(host.board, number);
    host.entries.push_back(entry != nullptr ? *entry : Entry{});
    host.has_slept_through.push_back(entry == nullptr);
    host.lost.insert(host.board.lost_before.begin(), host.board.lost_before.end());
    if (entry == nullptr) {
      // What failed meanwhile is read off the members' lines.
      for (const Host& other : state_.hosts)
        if (number <= other.entries.size()) settle(host, other.entries[number - 1].verdict);
      return;
    }
    settle(host, entry->verdict);
  }
  static void settle(Host& host, const control::Verdict& verdict) {
    if (verdict.is_loss()) {
      host.lost.insert(verdict.culprits.begin(), verdict.culprits.end());
    } else {
      std::erase_if(host.pending, [&](const Pending& each) { return verdict.fails(each.group); });
    }
  }

  const Plan& plan_;
  Tally& tally_;
  Random random_;
  State state_;
  Checks checks_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0, handled_ = 0;
  std::vector<Connection> connections_;
  std::vector<Time> cut_known_;
  std::vector<std::pair<Fault, std::uint64_t>> armed_;
  Time last_change_ = {};
  std::string violation_;
};

}  // namespace

std::string run_round(const Plan& plan, Tally& tally) { return World(plan, tally).run(); }

}  // namespace tutti::simulate::votes
