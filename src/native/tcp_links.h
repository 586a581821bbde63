// The connections of a rank to those members of a group that are on other hosts, one per lane.
//
// Threads that run read them. A thread that is about to sleep *arms* those of its lane that it has
// read to the end, or found full; what happens there then rings the bell of the rank. What lies in
// others unread is for a later round: it must not ring again and again.
//
// Messages must be read when nobody waits for one as well: a peer may want one back. So while the
// program neither sends nor receives the progress thread *listens*: it keeps the lane of messages
// armed, and is woken by what comes.
//
// A connection that ends is looked at by the progress thread. Who has left in order ends its
// connections, and so does who dies; either is told on other ways, which may take longer. Only an
// end that nothing has explained for kExplained fails the group.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "base/wait.h"
#include "control/hosts/peer_sockets.h"
#include "control/membership.h"
#include "native/channel/tcp.h"
#include "native/channels.h"

namespace tutti::native {

/// Threads  Any, but for `link`, and `look_at_ends`, which is for one at a time.
class TcpLinks {
 public:
  using Clock = Deadline::Clock;
  /// Hosts that reach nobody part in less, and say so then.
  static constexpr std::chrono::milliseconds kExplained{3500};

  /// `world_ranks`: by member. Both references outlive it.
  TcpLinks(control::PeerSockets& sockets, control::Membership& membership,
           const std::vector<int>& world_ranks);
  ~TcpLinks();
  TcpLinks(const TcpLinks&) = delete;
  TcpLinks& operator=(const TcpLinks&) = delete;

  /// Asked once for each member elsewhere, before anything else is.
  PeerLink link(int peer, Lane lane);
  Alarm& alarm(Lane lane) noexcept { return lane_at(lane); }
  /// Arms as the alarm of that lane does, but a part of a long frame does not ring before it is
  /// worth that. For the progress thread: woken for each few kilobytes it would take the core from
  /// the program.
  bool arm_late(Lane lane) noexcept { return arm(lane, true); }

  /// Whether what comes on the lane of messages wakes the progress thread.
  bool is_listening() const noexcept { return listening_.load(); }
  void start_listening() noexcept { listening_.store(true); }
  /// False: it did not.
  bool stop_listening() noexcept { return listening_.load() && listening_.exchange(false); }
  /// Whether there are members whose messages come over a connection that is yet to be made.
  bool awaits_connections() const noexcept;

  /// Whether a peer has yet to read a frame of messages, or to be sent one that is wanted; or a
  /// connection has ended, and nothing explains that yet. Never in a group that has failed. Peers
  /// that may have read all are asked, once, by the thread that next looks at messages.
  bool has_sent();

  bool has_ends() const noexcept { return ends_.load() > 0; }
  /// Fails the group over an end that nothing has explained. When to look again is put into `next`.
  void look_at_ends(Clock::time_point now, Clock::time_point* next) noexcept;

 private:
  struct End {
    int peer = -1;
    std::shared_ptr<TcpConnection> connection;
    std::unique_ptr<net::Events::Watched> watched;  // mutex_
    // By who looks at ends:
    bool is_settled = false;
    int looks = 0;
    Clock::time_point next_look = {};
  };
  class LaneEnds final : public Alarm {
   public:
    LaneEnds(TcpLinks& links, Lane lane) noexcept : links_(links), lane_(lane) {}
    bool arm() noexcept override { return links_.arm(lane_, false); }
    std::vector<std::unique_ptr<End>> ends;  // grows under mutex_

   private:
    TcpLinks& links_;
    const Lane lane_;
  };

  LaneEnds& lane_at(Lane lane) noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
  const LaneEnds& lane_at(Lane lane) const noexcept {
    return lanes_[static_cast<std::size_t>(lane)];
  }
  bool arm(Lane lane, bool late) noexcept;
  bool arm(End& end, Lane lane, bool late);
  void has_happened(End& end, Lane lane) noexcept;
  void look_at(End& end, const control::GroupFacts& facts, Clock::time_point now,
               Clock::time_point* next);

  control::PeerSockets& sockets_;
  control::Membership& membership_;
  const std::vector<WorldRank> world_ranks_;
  std::array<LaneEnds, kLaneCount> lanes_{LaneEnds{*this, Lane::collective},
                                          LaneEnds{*this, Lane::message}};
  mutable std::mutex mutex_;
  std::atomic<bool> listening_{false};
  std::atomic<int> ends_{0};
};

}  // namespace tutti::native
