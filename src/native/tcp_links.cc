#include "native/tcp_links.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "native/operation.h"

namespace tutti::native {
namespace {

/// Time is counted in looks: this process may have been stopped meanwhile, with the thread that
/// learns what has become of others.
constexpr std::chrono::milliseconds kLookAgain{20};
constexpr int kLooks = static_cast<int>(TcpLinks::kExplained / kLookAgain);
/// In the last of them it is asked whether anybody is at the peer's door.
constexpr int kLooksAtTheDoor = 25;

/// What the peer has sent goes on its way before this end closes: what lies here unread would make
/// that a reset, which discards what is under way.
void end_in_order(const TcpConnection& connection) noexcept {
  if (!connection.is_open() || connection.end()) return;
  ::shutdown(connection.socket(), SHUT_WR);
  std::array<std::byte, 4096> unread;
  const iovec part{unread.data(), unread.size()};
  constexpr int kMost = 256;  // a peer that goes on sending is not waited for
  for (int i = 0; i < kMost; ++i)
    if (net::receive_parts(connection.socket(), {&part, 1}).bytes == 0) return;
}

}  // namespace

TcpLinks::TcpLinks(control::PeerSockets& sockets, control::Membership& membership,
                   const std::vector<int>& world_ranks)
    : sockets_(sockets), membership_(membership), world_ranks_(tutti::world_ranks(world_ranks)) {
  membership_.watch_sent([this] { return has_sent(); });
}

TcpLinks::~TcpLinks() {
  membership_.watch_sent({});
  for (LaneEnds& lane : lanes_) {
    for (const auto& each : lane.ends) {
      each->watched.reset();
      end_in_order(*each->connection);
    }
  }
}

PeerLink TcpLinks::link(int peer, Lane lane) {
  const std::lock_guard lock(mutex_);
  auto& end = *lane_at(lane).ends.emplace_back(std::make_unique<End>());
  end.peer = peer;
  const auto take = [this, lane, rank = world_ranks_[static_cast<std::size_t>(peer)]](bool makes) {
    const GroupId group = membership_.id();
    const auto number = static_cast<std::uint8_t>(lane);
    if (!makes && !sockets_.has_come(group, rank, number)) return net::Secured();
    return sockets_.try_take(group, rank, number);
  };
  const auto on_end = [this] {
    ends_.fetch_add(1);
    membership_.wake_driver();
  };
  // Who receives a message need not make the connection: its sender does.
  end.connection = std::make_shared<TcpConnection>(
      TcpConnection::Origin{peer, take, lane == Lane::collective, on_end});
  return {.receiver = std::make_unique<TcpReceiver>(end.connection),
          .open_sender = [of = end.connection] { return std::make_unique<TcpSender>(of); },
          .connection = end.connection};
}

bool TcpLinks::arm(Lane lane, bool late) noexcept {
  bool has_armed = false;
  try {
    for (const auto& each : lane_at(lane).ends) has_armed = arm(*each, lane, late) || has_armed;
  } catch (...) {
    membership_.fail_with_thrown();
  }
  return has_armed;
}

bool TcpLinks::arm(End& end, Lane lane, bool late) {
  using Want = net::Events::Want;
  TcpConnection& connection = *end.connection;
  if (!connection.is_open() || connection.end()) return false;
  const bool reads = connection.is_read_out();
  const bool writes = connection.is_full();
  if (!reads && !writes) return false;
  if (reads) connection.set_alarm(late);
  const std::lock_guard lock(mutex_);
  if (end.watched == nullptr) {
    const auto call = [this, &end, lane] { has_happened(end, lane); };
    end.watched = sockets_.events().watch(connection.socket(), call);
  }
  return end.watched->arm(!writes ? Want::read : !reads ? Want::write : Want::both);
}

void TcpLinks::has_happened(End& end, Lane lane) noexcept {
  end.connection->has_rung();
  ring(*membership_.waiter().bell);
  if (lane == Lane::message && listening_.load()) membership_.wake_driver();
}

/// Of messages. Data of a collective may lie with a rank that does not read them, in another call,
/// for as long as that lasts; and they let nobody go on who awaits a rank that has not called it.
bool TcpLinks::has_sent() {
  if (membership_.abort_word().load() != 0) return false;
  if (has_ends()) return true;  // what was under way there is lost, and not yet known to be
  bool has_sent = false, is_to_ask = false;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : lane_at(Lane::message).ends) {
      TcpConnection& connection = *each->connection;
      if (connection.end()) continue;
      const bool is_unread = connection.is_unread();
      has_sent = has_sent || is_unread || connection.owes();
      is_to_ask = (is_unread && connection.want_to_know()) || is_to_ask;
    }
  }
  if (is_to_ask) membership_.wake_driver();
  return has_sent;
}

bool TcpLinks::awaits_connections() const noexcept {
  const auto& ends = lane_at(Lane::message).ends;
  return std::any_of(ends.begin(), ends.end(), [](const auto& each) {
    return !each->connection->is_open() && !each->connection->end();
  });
}

void TcpLinks::look_at_ends(Clock::time_point now, Clock::time_point* next) noexcept {
  if (membership_.abort_word().load() != 0) return;
  try {
    const control::GroupFacts facts = membership_.read_facts();
    for (LaneEnds& lane : lanes_) {
      for (const auto& each : lane.ends) {
        if (each->connection->end() && !each->is_settled) look_at(*each, facts, now, next);
      }
    }
  } catch (...) {
    membership_.fail_with_thrown();
  }
}

void TcpLinks::look_at(End& end, const control::GroupFacts& facts, Clock::time_point now,
                       Clock::time_point* next) {
  if (facts.has_gone(end.peer) || membership_.is_lost(end.peer)) {
    end.is_settled = true;
    ends_.fetch_sub(1);
    return;
  }
  const std::string what = fmt::format("the connection to {} {}", membership_.person(end.peer),
                                       end.connection->how_ended());
  if (end.connection->is_lacking_here()) {
    return membership_.fail({ErrorCode::kSystem,
                             fmt::format("rank {}: {}", membership_.rank(), what),
                             {membership_.rank()},
                             {}});
  }
  if (end.connection->is_distrusted()) {
    return membership_.fail({ErrorCode::kUnauthenticated, what, {end.peer}, {}});
  }
  if (now >= end.next_look) {
    end.next_look = now + kLookAgain;
    ++end.looks;
  }
  *next = std::min(*next, end.next_look);
  if (end.looks <= kLooks - kLooksAtTheDoor) return;
  const WorldRank rank = world_ranks_[static_cast<std::size_t>(end.peer)];
  const bool has_ended = sockets_.has_ended(rank);
  if (end.looks <= kLooks) return;
  // The relay of its host would say how, and is stopped.
  if (has_ended) {
    return membership_.fail({ErrorCode::kPeerLost,
                             fmt::format("{} has ended: nobody is at its door, and its host does "
                                         "not say how",
                                         membership_.person(end.peer)),
                             {end.peer},
                             {}});
  }
  membership_.fail({ErrorCode::kSystem, what, {end.peer}, {}});
}

}  // namespace tutti::native
