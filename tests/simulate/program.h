// The program of one rank, over the public API, and what it tells those who check.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "control/judge/verdict.h"
#include "simulate/round.h"
#include "simulate/surroundings.h"
#include "simulate/told.h"
#include "tutti/error.h"

namespace tutti::simulate {

/// What a rank's group has ended with, with ranks of the world.
struct Outcome {
  ErrorCode code = ErrorCode::kInternal;
  std::vector<int> culprits;
  bool operator==(const Outcome&) const = default;
};

/// What has happened in a round so far, as somebody who sees everything knows it. Groups by their
/// id: ranks that have failed a group may ask for another one of the same members.

struct Happened {
  struct Wait {
    std::uint64_t seq = 0;
    Clock::time_point since = {};
    bool names_all = false;
  };
  struct Group {
    std::vector<int> world_ranks;
    GroupId parent = 0;
    std::vector<std::optional<Outcome>> outcomes;                            // by member
    std::map<std::uint64_t, std::vector<Clock::time_point>> entered, ended;  // seq -> by member
    /// What was called, by its chain; seq -> by member.
    std::map<std::uint64_t, std::vector<std::optional<std::uint64_t>>> chains;
    std::map<int, Wait> waiting;            // by rank
    std::set<int> parted;                   // ranks of the world that have closed it well
    std::set<int> leaving;                  // and those that may have said a goodbye
    std::map<int, Clock::time_point> made;  // rank of the world: since when it can be seen there
  };
  /// A message that waited for its peer until its time was over.
  struct InVain {
    int rank = 0, peer = 0;  // of the world
    Clock::time_point began = {}, ended = {};
  };
  struct Mail {
    bool is_sent = false, is_taken_back = false, is_received = false;
    Clock::time_point last_posted = {};  // of its two ends
    bool both_posted = false;
  };

  const Plan& plan;
  Tally& tally;
  Surroundings& around;
  /// Whether this is about all ranks, and told by the product's inside as well; else about one.
  bool sees_all = true;
  std::vector<Told>* told = nullptr;  ///< by rank; null: nobody wants to know
  std::string violation = {};
  bool has_failed_call = false;        ///< a rank was told of one, and goes on without it
  std::chrono::nanoseconds paused{0};  ///< by programs that look at a Work only now and then
  std::map<GroupId, Group> groups = {};
  std::map<std::pair<GroupId, std::size_t>, Mail> mail = {};  // by step
  /// Group, from, to, tag: step of the receive -> step of the send.
  std::map<std::tuple<GroupId, int, int, int>, std::map<std::size_t, std::size_t>> received = {};
  std::map<int, std::set<GroupId>> made = {};  // rank of the world: groups it has begun to make
  std::map<int, GroupId> made_last = {};       // the same; 0: it could not begin
  std::map<int, std::string_view> doing = {};  // rank of the world: what it has begun last
  std::string_view befallen = {};  ///< what a rank did at a fault: an operation, or empty
  std::map<int, Clock::time_point> left = {};
  std::set<int> joined = {};       // ranks of the world that have made it
  std::set<int> leaving = {};      // ranks of the world that may have said a goodbye
  std::multiset<int> inside = {};  // ranks of the world, once for each call they are in
  std::map<int, Clock::time_point> came_out = {};  // rank of the world: of its last call
  std::vector<InVain> in_vain = {};
  std::vector<bool> done = {};
  using Log = std::vector<std::pair<control::Verdict, Clock::time_point>>;
  Log log = {};
  std::map<int, Log> logs = {};  ///< by host: parted ones differ

  void violated(std::string what) {
    if (violation.empty()) violation = std::move(what);
  }
  std::chrono::nanoseconds pauses() const;
  bool has_fault(FaultKind kind) const;
  /// Whether a host may have stopped for so long that others told their own ranks of what they had
  /// found before there was an entry, which may then say something else.
  bool may_be_held_up() const;
  /// Within which an entry is known to all; another relay may have to take over.
  std::chrono::nanoseconds soon() const;
  /// Where nothing is late an operation has `ended` soon after all had come to it, at `since`. Not
  /// for messages that may be taken back: another one comes in their place.
  void check_prompt(Clock::time_point since, Clock::time_point ended, const std::string& what);
  /// All are told the reason in the same words. Who has slept through it may know the code alone.
  void check_reason(GroupId group, int rank, const Error& error);
  /// Who stays in a group is told of its failure soon.
  void check_untold(GroupId group, int rank);
};

/// Rank `rank` of the plan, from joining to leaving. In a thread of its own, or a fiber.
void run_program(Happened& happened, int rank);

}  // namespace tutti::simulate
