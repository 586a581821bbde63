#include "control/hosts/data_calls.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

constexpr std::chrono::milliseconds kBetweenCalls{50};
/// How long a call that crosses ours may take to come.
constexpr std::chrono::seconds kCrossing{1};
/// So often nobody may be at a door before nobody will be: what that rank has called for before it
/// went has been accepted here by then.
constexpr int kMostRefusals = 3;

}  // namespace

DataCalls::DataCalls(net::Events& events, WorldRank rank, const Shortage& shortage, Begin begin,
                     OnThere on_there)
    : events_(events),
      rank_(rank),
      shortage_(shortage),
      begin_(std::move(begin)),
      on_there_(std::move(on_there)) {}

void DataCalls::expect(GroupId group) {
  const std::lock_guard lock(mutex_);
  expected_.insert(group);
}

void DataCalls::forget(GroupId group) noexcept {
  {
    const std::lock_guard lock(mutex_);
    expected_.erase(group);
  }
  events_.post([this, group] { drop_lines(group); });
}

net::Secured DataCalls::try_take(GroupId group, WorldRank peer, std::uint8_t lane) {
  const Key key{group, peer, lane};
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = lines_.try_emplace(key);
  Line& line = place->second;
  if (line.socket) {
    net::Secured socket = std::move(line.socket);
    lines_.erase(place);
    return socket;
  }
  if (line.refusals >= kMostRefusals)
    throw Error(ErrorCode::kPeerLost, "its process takes no calls any more");
  if (line.is_changed) {
    throw Error(ErrorCode::kUnauthenticated,
                "what its door answered was changed on its way, or comes from somebody else");
  }
  if (!std::exchange(line.is_wanted, true)) events_.post([this, key] { call(key); });
  if (const auto error = shortage_.lasting(Clock::now())) throw *error;
  return {};
}

bool DataCalls::has_come(GroupId group, WorldRank peer, std::uint8_t lane) {
  const std::lock_guard lock(mutex_);
  const auto found = lines_.find({group, peer, lane});
  return found != lines_.end() && static_cast<bool>(found->second.socket);
}

void DataCalls::call(const Key& key) try {
  const std::lock_guard lock(mutex_);
  const auto found = lines_.find(key);
  if (found == lines_.end() || found->second.socket || found->second.call) return;
  const Hello hello{
      .role = Role::data, .from = rank_, .to = key.peer, .group = key.group, .lane = key.lane};
  found->second.next_call = Clock::now() + kBetweenCalls;
  found->second.call =
      begin_(hello, [this, key](Call::Outcome outcome) { on_outcome(key, std::move(outcome)); });
} catch (const Error&) {  // a shortage; it is tried again
}

void DataCalls::on_outcome(const Key& key, Call::Outcome outcome) {
  const bool is_there = static_cast<bool>(outcome.socket);
  bool is_over = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = lines_.find(key);
    if (found == lines_.end()) return;
    Line& line = found->second;
    drop(std::move(line.call));
    if (!outcome.distrust.empty() && !std::exchange(line.has_told, true))
      log(LogLevel::error, outcome.distrust);
    line.refusals = outcome.error_number == ECONNREFUSED ? line.refusals + 1 : 0;
    // That rank has the connection by now, and takes its end for ours.
    line.is_changed = outcome.error_number == EPROTO;
    is_over = line.refusals == kMostRefusals || line.is_changed;
    if (outcome.answer == Answer::crossing) line.next_call = Clock::now() + kCrossing;
    if (is_there) line.socket = std::move(outcome.socket);
  }
  if (is_there || is_over) on_there_();
}

Answer DataCalls::on_hello(const Hello& hello) {
  const std::lock_guard lock(mutex_);
  // It would call again and again. It is given a connection that ends, as if it had come before.
  if (!expected_.contains(hello.group)) return Answer::welcome;
  Line& line = lines_[{hello.group, hello.from, hello.lane}];
  if (line.socket) return Answer::refused;
  if (line.call && rank_ < hello.from) return Answer::crossing;
  drop(std::move(line.call));
  return Answer::welcome;
}

void DataCalls::on_guest(const Hello& hello, net::Secured socket) {
  {
    const std::lock_guard lock(mutex_);
    if (!expected_.contains(hello.group)) return;
    lines_[{hello.group, hello.from, hello.lane}].socket = std::move(socket);
  }
  on_there_();
}

Clock::time_point DataCalls::sweep(Clock::time_point now) {
  std::vector<Key> due;
  auto next = Clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, line] : lines_) {
      const bool waits =
          line.is_wanted && !line.socket && !line.is_changed && line.refusals < kMostRefusals;
      if (!waits) continue;
      if (now >= line.next_call && !line.call) due.push_back(key);
      if (line.call && line.refusals == 0) continue;  // it may take long
      next = std::min(next, std::max(line.next_call, now + kBetweenCalls));
    }
  }
  for (const Key& key : due) call(key);
  return next;
}

void DataCalls::drop_lines(GroupId group) {
  const std::lock_guard lock(mutex_);
  auto line = lines_.lower_bound({group, WorldRank(0), 0});
  while (line != lines_.end() && line->first.group == group) {
    drop(std::move(line->second.call));
    line = lines_.erase(line);
  }
}

void DataCalls::drop(std::unique_ptr<Call> call) {
  if (call == nullptr) return;
  call->give_up();
  events_.discard(std::move(call));
}

}  // namespace tutti::control
