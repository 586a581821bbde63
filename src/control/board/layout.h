// The status board: one memfd per host with one 64 KiB slot per rank; what every rank is doing,
// always on, readable after its death.
//
// A *slot* is written by its owner only (the doorbells excepted: peers ring them). The *mark* is a
// robust process-shared mutex which the owner's control thread holds for life: the kernel hands it
// over at the first step of dying. A *line* is what the rank does in one group; it keeps the last
// descriptions so that both sides of a disagreement can be shown. A *proposal* is a verdict that
// the owner has come to: a failure that it found, or, as the decider of its host, ranks that are
// lost; the *log* says which ones count (log.h). A *purpose* is what the library did one of the
// last operations for, or the call that made or closes a group. A *wait* is what the only thread of
// the owner's program that calls the world waits for, once that lasts. With several hosts a *wish*
// is the verdict that the owner would have next; the *relay* of the host, one of its ranks, speaks
// for it with the other hosts, and keeps the host's vote and what was chosen in an area behind the
// slots. Texts of call sites are copied once into a table in the slot. Everything that crosses
// processes is an atomic word, with one writer but for the log, the vote and `told`; what takes
// several words is read under a version word and dropped if it changed meanwhile.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/wait.h"
#include "control/board/limits.h"
#include "control/board/line.h"
#include "control/judge/verdict.h"

namespace tutti::control {

/// Lines in the slot; further ones lie behind the slots and are reserved as many at a time.
inline constexpr int kLinesPerSlot = 32;
inline constexpr int kSites = 64;
inline constexpr std::size_t kSiteBytes = 48;
inline constexpr std::size_t kNoticeBytes = 800;
inline constexpr int kPurposes = 8;
inline constexpr std::size_t kPurposeBytes = 240;
inline constexpr std::uint64_t kBoardMagic = 0x316472616f624954;  // "TIboard1"
inline constexpr std::uint32_t kBoardVersion = 14;
inline constexpr std::size_t kLogEntries = 256;
/// As many bits of a proposal's number as the log has room for.
inline constexpr std::uint64_t kProposalMask = 0xfffff;

/// Text in shared memory, written once per use of its place.
template <std::size_t Bytes>
class Text {
 public:
  void write(std::string_view text) noexcept;
  std::string read() const;

 private:
  std::array<std::atomic<std::uint64_t>, Bytes / 8> words_;
};

/// Under which a rank says by what call it closes a group: "close at train.cc:90".
constexpr std::uint64_t closing_key(GroupId group) noexcept { return ~group; }

/// In Line::failure: the owner's program has gone on after it. See outlive_failures.
inline constexpr std::uint32_t kOutlived = 0x80000000;
/// The same: its number among the failures of the slot's owner, from 1. All beyond the last number
/// have that one.
inline constexpr int kFailureOrderShift = 8;
inline constexpr std::uint32_t kLastFailure = (kOutlived >> kFailureOrderShift) - 1;
/// In Line::failure, in a proposal and in a notice; the latter two give no order.
constexpr std::uint32_t failure_word(ErrorCode code, std::uint32_t order = 0) noexcept {
  return (static_cast<std::uint32_t>(code) + 1) | order << kFailureOrderShift;
}
constexpr std::uint32_t failure_order(std::uint32_t word) noexcept {
  return (word & ~kOutlived) >> kFailureOrderShift;
}
/// Of a word that is not 0.
constexpr ErrorCode failure_code(std::uint32_t word) noexcept {
  const std::uint32_t code = word & ((1u << kFailureOrderShift) - 1);
  const bool is_known = code > 0 && code <= kErrorCodeCount;
  return is_known ? static_cast<ErrorCode>(code - 1) : ErrorCode::kInternal;
}

struct Proposal {
  std::atomic<std::uint64_t> number;  ///< of the owner's, from 1; 0: being written, or withdrawn
  std::array<std::atomic<GroupId>, kVerdictGroups> groups;  ///< that fail, up to the first 0
  std::atomic<std::uint32_t> failure;
  std::atomic<std::int32_t> finder;
  RankWords culprits;
  Text<kVerdictBytes> text;
};

/// Of a slot's owner while it is the relay of its host. Reserved when it joins a world of several
/// hosts: a relay must not fail for want of memory.
struct alignas(64) RelayArea {
  struct Place {
    std::atomic<std::uint64_t> byte_count;
    std::array<std::atomic<std::uint64_t>, kVoteBytes / 8> words;
  };
  std::array<Place, 2> votes;  ///< used in turns: see vote_place.h
  std::array<Proposal, kChosen> chosen;
};

struct PurposeText {
  /// Of the operation; or a group's id, for the call that made it; or its closing_key; 0: being
  /// written.
  std::atomic<std::uint64_t> chain;
  Text<kPurposeBytes> text;
};

/// On the agent's board: the first failure that the owner's program has not been told of; untold.h.
struct UntoldNotice {
  std::atomic<std::uint32_t> failure;  ///< 0: none, or ErrorCode + 1; written last
  std::atomic<std::uint32_t> is_told;  ///< this program was; somebody whom it concerns had left
  RankWords culprits;
  Text<kNoticeBytes> text;
};

/// In ShownPart::kind: what a WaitPart says beside its operation.
inline constexpr std::uint32_t kMakesGroup = 1;
inline constexpr std::uint32_t kOneSuffices = 2;
struct ShownPart {
  std::atomic<GroupId> group;
  std::atomic<std::uint32_t> kind;
  SharedShown what;  ///< its seq is 1 if it has none
  RankWords awaited;
};
/// What the owner's program waits for; see judge/deadlock.
struct ShownWait {
  std::atomic<std::uint64_t> version;  ///< never used twice; 0: nothing, or it is being written
  std::atomic<std::uint64_t> looks;    ///< that have found nothing new, of all waits
  std::atomic<std::int64_t> since;     ///< steady clock
  std::atomic<std::uint32_t> part_count;
  std::atomic<std::uint32_t> has_several_threads;  ///< 1 once a second one has called the world
  std::array<ShownPart, kWaitParts> parts;
};

/// A robust mutex and what was found out about it.
struct Mark {
  pthread_mutex_t mutex;
  std::atomic<std::uint32_t>
      owner_died;  ///< 1 once anybody has seen it: the only word with many writers

  enum class State : std::uint8_t { held, free, owner_died };
  /// Looks at it without keeping it. Once a death was seen every later look sees it too.
  State look() noexcept;
  /// What somebody has seen already.
  bool is_known_dead() const noexcept { return owner_died.load() != 0; }
  /// Takes it for the calling thread. False: a living thread holds it, or its holder died.
  bool take() noexcept;
  void let_go() noexcept { pthread_mutex_unlock(&mutex); }
};

struct alignas(64) Slot {
  Mark mark;
  alignas(64) Doorbell bell;  ///< for waits; the owner's threads sleep here
  Doorbell control_bell;      ///< for control threads: see control_slot
  alignas(64) std::atomic<RankState> state;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t>
      control_slot;   ///< whose control_bell the owner's control thread sleeps on
  RankWords lost;     ///< as far as the owner has applied the log
  RankWords held_up;  ///< while the owner, a relay, is held up: lost by mark, and in no entry yet
  std::array<std::atomic<std::uint64_t>, 16> cores;  ///< where the owner may run: see Cores
  std::atomic<std::uint32_t> core_quota;
  std::atomic<std::uint32_t> more_lines;  ///< that are reserved behind the slots
  std::array<Text<kSiteBytes>, kSites> sites;
  std::array<Proposal, kProposals> proposals;
  std::atomic<std::uint64_t> wish;  ///< number of the proposal; 0: none
  std::atomic<std::uint64_t>
      news;  ///< grows with each change that other hosts are told of unasked: see Report
  std::atomic<std::uint64_t> told;  ///< how much of `news` all other hosts have been told
  std::atomic<std::uint64_t>
      beat;  ///< of the control thread, with other hosts: grows while it runs
  std::array<PurposeText, kPurposes> purposes;
  UntoldNotice untold;
  ShownWait wait;
  std::array<Line, kLinesPerSlot> lines;
};
static_assert(sizeof(Slot) <= kSlotBytes);
inline constexpr std::size_t kMoreLineBytes =
    static_cast<std::size_t>(kMaxLines - kLinesPerSlot) * sizeof(Line);

/// Ahead of the slots. The maker writes it; `exits` belongs to the agent, `log` and `vote` to all
/// ranks.
struct BoardHeader {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> slot_count;
  std::atomic<std::uint32_t> world_size;
  struct Exit {
    std::atomic<std::int32_t> pid;          ///< as the agent sees it
    std::atomic<std::uint32_t> known;       ///< 1 once wait_status is there
    std::atomic<std::int32_t> wait_status;  ///< from waitpid
  };
  std::array<Exit, kMaxLocalRanks> exits;
  std::array<std::atomic<std::uint64_t>, kLogEntries> log;  ///< see log.h
  std::atomic<std::uint64_t> vote;                          ///< of the host: see vote_place.h
};
static_assert(sizeof(BoardHeader) <= kSlotBytes);

}  // namespace tutti::control
