// The hosts of a simulated world: a board for each, what each knows of the ranks of the others, and
// the links between their relays.
//
// A *courier* carries everything, later than it was sent: what one host sends another on one of the
// two *streams* (facts; frames of relays) stays in its order. While a link is cut nothing arrives;
// what was under way is lost once that is found out after 2 s. Facts are read by the courier, step
// by step, while a relay of their host runs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/of_rank.h"
#include "base/roster.h"
#include "control/board/board.h"
#include "control/board/members.h"
#include "control/hosts/other_hosts.h"
#include "net/fd.h"
#include "simulate/kernel.h"
#include "simulate/program.h"

namespace tutti::simulate {

class Network {
 public:
  /// Of a plan with several hosts.
  Network(const Plan& plan, Kernel& kernel, Happened& happened);
  ~Network();

  /// The courier, once all processes of the plan are there; and what befalls links.
  void start();
  /// `host` from another one or all others, as the fault says.
  void cut(int host, const Fault& fault);
  /// A process has died; the program of a rank has ended.
  void died(const Proc& process);
  void ended(int rank);

  /// No process of the host is left.
  bool is_over(int host) const { return host_at(host).is_over; }
  /// The link between them has once been down for so long that one of them was told so.
  bool was_cut(int one, int other) const { return cut_.contains(std::minmax(one, other)); }
  int board_fd(int host) const { return host_at(host).memory.get(); }
  const Roster& roster(int host) const { return *host_at(host).roster; }
  control::OtherHosts& others_of(int rank);

 private:
  class Side;
  enum Stream : std::uint8_t { kFacts, kFrames };
  static constexpr std::size_t kStreams = 2;
  using Task = std::function<void()>;

  /// What a host knows of a rank of another.
  struct Known {
    struct Line {
      std::optional<control::LineFacts> facts;
      Clock::time_point asked = {};
      Clock::time_point heard = {};
    };
    std::map<GroupId, Line> lines;
    std::vector<control::MeetingFacts> meetings;
    control::WaitFacts wait;
    bool has_left = false;
  };
  struct Host {
    net::Fd memory;
    std::unique_ptr<control::Board> board;
    std::unique_ptr<Roster> roster;
    std::vector<Known> known;  ///< by rank
    int relay = -1;            ///< rank whose links are open
    /// Frames that have come and were not received, by host: lost with the process of the relay.
    std::deque<std::pair<int, std::string>> inbox;
    std::map<GroupId, std::unique_ptr<control::BoardMembers>> groups;
    control::HostSet parted;
    bool is_over = false;
  };
  struct Link {
    struct Parcel {
      Clock::time_point arrives;
      Task deliver;
    };
    std::array<std::deque<Parcel>, kStreams> parcels;
    Clock::time_point blocked_until = {}, down_since = {};
    std::chrono::nanoseconds asked_after{0};  ///< that, by the receiving host
    std::uint64_t connection = 0;             ///< of relays, as the receiving host knows it
    std::set<Stream> over = {};               ///< on which the end of the sending host has come
    bool has_left = false;                    ///< its ranks had all left in order
  };

  Host& host_at(int host) { return hosts_[static_cast<std::size_t>(host)]; }
  const Host& host_at(int host) const { return hosts_[static_cast<std::size_t>(host)]; }
  Known& known(int host, int rank) { return of_rank(host_at(host).known, rank); }
  int count() const noexcept { return static_cast<int>(hosts_.size()); }
  int host_of(int rank) const;
  Link& link(int from, int to) { return links_[static_cast<std::size_t>(from * count() + to)]; }
  bool is_down(int one, int other);
  std::optional<Clock::time_point> down_since(int one, int other);
  bool is_cut(int one, int other);

  // ---- the courier
  void carry();
  void at(Clock::time_point time, Task task);
  void post(int from, int to, Stream stream, Task deliver);
  Task next_task(Clock::time_point* due);

  // ---- facts
  bool is_reporting(int host);
  void report(int rank, int to, std::optional<int> ring);
  void answer(GroupId group, int rank, int asker, Clock::time_point asked);
  void answer_wait(int rank, int to);
  std::optional<control::LineFacts> line_of(GroupId group, int rank);
  void send_line(GroupId group, int rank, int to, std::optional<Clock::time_point> asked);
  const control::BoardMembers& members(GroupId group, int host);
  void report_all(int from, int to);

  // ---- links
  void block(int from, int to, std::chrono::nanoseconds lasts);
  void lose(int one, int other);
  void heal(int one, int other);
  void connect(int from, int to);
  void close_relay(int host);
  void rouse(int host);
  void check_over(int host);

  const Plan& plan_;
  Kernel& kernel_;
  Happened& happened_;
  std::vector<Host> hosts_;
  std::vector<Link> links_;
  std::set<std::pair<int, int>> cut_;         ///< pairs of hosts
  std::vector<std::unique_ptr<Side>> sides_;  ///< by rank
  std::multimap<Clock::time_point, Task> timers_;
  std::map<std::tuple<int, GroupId, int>, std::pair<control::LineState, bool>> reported_;
  // While no relay of their host runs.
  std::set<std::tuple<int, int, std::optional<int>>> held_reports_;
  std::map<std::tuple<GroupId, int, int>, Clock::time_point> held_questions_;
  std::uint64_t connections_ = 0;
};

}  // namespace tutti::simulate
