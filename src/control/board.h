// The status board: one memfd per host with one 20 KiB slot per rank; what every rank is doing,
// always on, readable after its death.
//
// A *slot* is written by its owner only (the doorbells excepted: peers ring them). The *mark* is a
// robust process-shared mutex which the owner's control thread holds for life: the kernel hands it
// over at the first step of dying. A *line* is what the rank does in one group; it keeps the last
// descriptions so that both sides of a disagreement can be shown. A *notice* is the text of a
// failure that the owner found, a *purpose* what the library did one of the last operations for, or
// the call that made or closes a group. The *verdict* is the set of ranks that the owner, as the
// decider of its host, has declared lost. Texts of call sites are copied once into a table in the
// slot. Everything that crosses processes is an atomic word with one writer; what takes several
// words is read under a version word and dropped if it changed meanwhile.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cores.h"
#include "base/wait.h"
#include "control/memory/memory.h"
#include "net/fd.h"
#include "tutti/request.h"

namespace tutti::control {

inline constexpr std::size_t kSlotBytes = 20 * 1024;
inline constexpr int kLinesPerSlot = 32;
inline constexpr int kHistory = 4;
inline constexpr int kMaxLocalRanks = 256;
inline constexpr int kSites = 64;
inline constexpr std::size_t kSiteBytes = 48;
inline constexpr int kNotices = 4;
inline constexpr std::size_t kNoticeBytes = 800;
inline constexpr int kPurposes = 8;
inline constexpr std::size_t kPurposeBytes = 240;
inline constexpr std::uint64_t kBoardMagic = 0x316472616f624954;  // "TIboard1"
inline constexpr std::uint32_t kBoardVersion = 6;

/// Ranks of the host by slot.
using RankSet = std::bitset<kMaxLocalRanks>;

enum class RankState : std::uint32_t { absent, starting, running, left };
enum class LineState : std::uint32_t {
  free,
  meeting,  ///< the owner has begun to make the group and awaits the other members there
  open,
  closing,  ///< it has said goodbye and awaits that of the others
  closed,   ///< all have said it, or the group has failed
  gave_up,  ///< some have not until the deadline
  gone,     ///< it has no such group any more
  gone_after_gave_up,
  unmade,  ///< nor ever had: the meeting failed
};
constexpr bool has_left(LineState state) noexcept { return state > LineState::open; }
constexpr bool is_gone(LineState state) noexcept { return state >= LineState::gone; }
constexpr bool gave_up(LineState state) noexcept {
  return state == LineState::gave_up || state == LineState::gone_after_gave_up;
}
/// What becomes of the line when its group is destroyed.
constexpr LineState gone_after(LineState state) noexcept {
  if (state == LineState::meeting) return LineState::unmade;
  return gave_up(state) ? LineState::gone_after_gave_up : LineState::gone;
}

/// In Description::op, beside the Op: a v-variant, a monitored_barrier.
inline constexpr std::uint8_t kUnevenBit = 0x80;
inline constexpr std::uint8_t kMonitoredBit = 0x40;
static_assert(kOpCount <= kMonitoredBit);
constexpr std::uint8_t op_byte(const Request& request) noexcept {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(request.op) |
                                   (request.uneven ? kUnevenBit : 0) |
                                   (request.monitored ? kMonitoredBit : 0));
}
/// The Op of such a byte; kOpCount and more where it is none.
constexpr std::size_t op_index(std::uint8_t op) noexcept {
  return op & ~(kUnevenBit | kMonitoredBit);
}

/// What an operation is, as its rank sees it: enough to compare and to print.
struct Description {
  std::uint64_t seq = 0;    ///< messages: their number among the rank's messages of the group
  std::uint64_t chain = 0;  ///< messages: the tag
  std::uint64_t count = 0;
  std::uint8_t op = 0;  ///< op_byte
  std::uint8_t dtype = 0;
  std::uint8_t reduce = 0;
  std::uint8_t site = 0;  ///< index into the slot's table of call sites, 0: not known
  std::int32_t root_or_peer = -1;
};
static_assert(sizeof(Description) == 32);

/// A Description and what else the board can show of an operation.
struct Shown : Description {
  double factor = 1.0;  ///< of premul_sum
};

/// A Shown in shared memory. The seq, never used twice, is its version word: 0 while the
/// owner writes.
class Entry {
 public:
  /// Stores after the zero are releases, so that whoever reads one of them finds the zero as well.
  void write(const Shown& value) noexcept {
    words_[0].store(0, std::memory_order_relaxed);
    words_[1].store(value.chain, std::memory_order_release);
    words_[2].store(value.count, std::memory_order_release);
    words_[3].store(std::bit_cast<std::uint64_t>(value.factor), std::memory_order_release);
    words_[4].store(std::uint64_t{value.op} | std::uint64_t{value.dtype} << 8 |
                        std::uint64_t{value.reduce} << 16 | std::uint64_t{value.site} << 24 |
                        std::uint64_t{static_cast<std::uint32_t>(value.root_or_peer)} << 32,
                    std::memory_order_release);
    words_[0].store(value.seq, std::memory_order_release);
  }
  void clear() noexcept { words_[0].store(0, std::memory_order_release); }
  /// Empty if there is nothing, or if the owner writes right now.
  std::optional<Shown> read() const noexcept;

 private:
  std::array<std::atomic<std::uint64_t>, 5> words_;
};

/// Text in shared memory, written once per use of its place.
template <std::size_t Bytes>
class Text {
 public:
  void write(std::string_view text) noexcept;
  std::string read() const;

 private:
  std::array<std::atomic<std::uint64_t>, Bytes / 8> words_;
};

/// What one rank does in one group.
struct alignas(64) Line {
  std::atomic<GroupId> group;                     ///< 0: free
  std::atomic<std::uint64_t> entered, completed;  ///< seq of the latest collective begun, ended
  std::atomic<std::uint64_t> goodbye_seq, goodbye_chain;
  std::atomic<LineState> state;
  std::atomic<std::uint32_t> failure;   ///< 0, or ErrorCode + 1
  std::atomic<std::uint64_t> progress;  ///< grows with the bytes moved; meeting: with looks
  std::atomic<std::uint64_t> waiting;   ///< an Awaited
  std::atomic<std::int64_t> since;      ///< steady clock, when that wait was found to be long;
                                        ///< meeting: when it failed
  std::array<std::atomic<std::uint64_t>, 4> ranks;  ///< by slot: members; `failure`: the culprits
  Entry message;                        ///< the latest send or recv under way, best effort
  std::array<Entry, kHistory> history;  ///< collective seq is at seq % kHistory
  std::atomic<GroupId> asked_of;        ///< see MembershipOptions
  std::atomic<std::uint32_t> site;      ///< where it was asked for
  std::atomic<std::int32_t> core;       ///< on which the latest operation was entered, + 1
};
static_assert(sizeof(Line) == 320);

/// In Line::waiting: for whom the operation `seq` of a line waits.
struct Awaited {
  std::uint32_t seq = 0;  ///< its lower half
  int member = -1;        ///< rank of the group; -1: all
  int slot = 0;           ///< the same rank's; not of -1

  std::uint64_t pack() const noexcept {
    return std::uint64_t{seq} << 32 | static_cast<std::uint64_t>(slot) << 16 |
           static_cast<std::uint64_t>(member + 1);
  }
  static Awaited unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<int>(word & 0xffff) - 1,
            static_cast<int>(word >> 16 & 0xffff)};
  }
};

/// Under which a rank says by what call it closes a group: "close at train.cc:90".
constexpr std::uint64_t closing_key(GroupId group) noexcept { return ~group; }

/// In Line::failure.
constexpr std::uint32_t failure_word(ErrorCode code) noexcept {
  return static_cast<std::uint32_t>(code) + 1;
}

struct Notice {
  std::atomic<std::uint64_t> version;  ///< odd while the owner writes
  std::atomic<GroupId> group;
  Text<kNoticeBytes> text;
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
  std::array<std::atomic<std::uint64_t>, 4> culprits;
  Text<kNoticeBytes> text;
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
  /// Takes it for the calling thread. False: somebody holds it, or held it when he died.
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
      control_slot;                     ///< whose control_bell the owner's control thread sleeps on
  std::atomic<std::uint32_t> failures;  ///< grows with every line that fails
  std::atomic<std::uint32_t> verdicts;  ///< grows with every verdict; odd while the owner writes
  std::array<std::atomic<std::uint64_t>, 4> verdict;
  std::array<std::atomic<std::uint64_t>, 16> cores;  ///< where the owner may run: see Cores
  std::atomic<std::uint32_t> core_quota;
  std::atomic<std::uint32_t> outlived;  ///< by line: see outlive_failures
  std::array<Text<kSiteBytes>, kSites> sites;
  std::array<Notice, kNotices> notices;
  std::array<PurposeText, kPurposes> purposes;
  UntoldNotice untold;
  std::array<Line, kLinesPerSlot> lines;
};
static_assert(sizeof(Slot) <= kSlotBytes);
static_assert(kLinesPerSlot <= 32, "Slot::outlived has a bit for each");

/// Ahead of the slots. The maker writes it; `exits` belongs to the agent.
struct BoardHeader {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> rank_count;
  struct Exit {
    std::atomic<std::int32_t> pid;          ///< as the agent sees it
    std::atomic<std::uint32_t> known;       ///< 1 once wait_status is there
    std::atomic<std::int32_t> wait_status;  ///< from waitpid
  };
  std::array<Exit, kMaxLocalRanks> exits;
};
static_assert(sizeof(BoardHeader) <= kSlotBytes);

/// A board mapped into this process.
class Board {
 public:
  /// Memory for a board of `rank_count` ranks. Throws kSystem, kInvalidArgument.
  static net::Fd make(int rank_count);
  /// Maps a board that was made or handed over. Throws kSystem if it is not one of ours.
  explicit Board(const net::Fd& memory);

  int rank_count() const noexcept { return rank_count_; }
  /// The same address for all boards of this process that are the same memory.
  std::byte* data() const noexcept { return mapping_->data(); }
  BoardHeader& header() const noexcept { return *reinterpret_cast<BoardHeader*>(data()); }
  Slot& slot(int rank) const noexcept {
    return *reinterpret_cast<Slot*>(data() + kSlotBytes * (static_cast<std::size_t>(rank) + 1));
  }
  /// The line of `rank` for a group, or null. Valid while its `group` stays the same.
  Line* find_line(int rank, GroupId group) const noexcept;

  /// For the agent: how a rank ended.
  void set_pid(int rank, int pid) noexcept;
  void set_exit(int rank, int wait_status) noexcept;

 private:
  Board(std::shared_ptr<Mapping> mapping, int rank_count) noexcept
      : mapping_(std::move(mapping)), rank_count_(rank_count) {}

  std::shared_ptr<Mapping> mapping_;
  int rank_count_ = 0;
};

/// Wakes a control thread, also one that is just about to sleep.
void rouse(Doorbell& control_bell) noexcept;
/// Whether the owner has left in order. It said so; or it has ended, in whatever way, after it had
/// said goodbye to every group it made. Who ends before it has made one has not left: it dies.
bool has_left(const Slot& slot) noexcept;

/// Rouses the control thread of `rank`.
void rouse_control(const Board& board, int rank) noexcept;

/// Those of the owner, which writes them before it is running.
void write_cores(Slot& slot, const Cores& cores) noexcept;
/// Of all ranks that are or were running, together.
Cores cores_of_all(const Board& board) noexcept;

RankSet read_set(const std::array<std::atomic<std::uint64_t>, 4>& words) noexcept;
void write_set(std::array<std::atomic<std::uint64_t>, 4>& words, const RankSet& set) noexcept;
/// The verdict of a slot if it has one and is not being written.
std::optional<RankSet> read_verdict(const Slot& slot) noexcept;

/// The text of the failure that the owner of `slot` found in `group`, if it is still there.
std::optional<std::string> read_notice(const Slot& slot, GroupId group);
/// What an operation with this chain was for, if the owner of `slot` has said so lately; else "".
std::string read_purpose(const Slot& slot, std::uint64_t chain);
/// For the owner, which makes a group or a world: no failure so far is why it will end.
void outlive_failures(Slot& slot) noexcept;
/// The lines whose failure the owner has not outlived.
std::vector<const Line*> failed_lines(const Slot& slot);
/// About what the ranks of a group of `rank` disagreed, if that is why it failed: about an
/// operation, or about how many there are.
std::optional<std::string> disagreement_of(const Board& board, int rank);

/// What a process keeps beside a slot it owns: several of its threads write there.
class SlotOwner {
 public:
  explicit SlotOwner(Slot& slot) noexcept : slot_(slot) {}
  Slot& slot() const noexcept { return slot_; }

  /// Index of a call site in the slot's table; the first call copies the text. A few nanoseconds.
  std::uint8_t site(const Where& where) noexcept;
  /// A line for `group` in state meeting, or null if all are in use.
  Line* open_line(GroupId group, GroupId asked_of, const RankSet& members) noexcept;
  void free_line(Line& line) noexcept;
  /// Writes the failure of `line` where peers find it; `text` may be empty.
  void publish_failure(Line& line, ErrorCode code, const RankSet& culprits,
                       std::string_view text) noexcept;
  void publish_verdict(const RankSet& lost) noexcept;
  /// Writes what the operation with this chain is for; the last kPurposes of them can be read.
  void publish_purpose(std::uint64_t chain, std::string_view text) noexcept;

 private:
  struct Known {
    std::atomic<const char*> file{nullptr};
    std::atomic<int> line{0};
    std::atomic<std::uint8_t> index{0};  ///< written last
  };
  static std::size_t bucket_of(const Where& where) noexcept {
    return (reinterpret_cast<std::uintptr_t>(where.file) * 31 + static_cast<unsigned>(where.line)) *
               0x9e3779b97f4a7c15u >>
           56;
  }
  std::uint8_t add_site(const Where& where) noexcept;

  Slot& slot_;
  std::mutex mutex_;
  std::array<Known, 256> known_;
  int sites_used_ = 0;
  std::uint32_t notices_used_ = 0;
  std::uint32_t purposes_used_ = 0;
};

inline std::uint8_t SlotOwner::site(const Where& where) noexcept {
  const Known& known = known_[bucket_of(where)];
  const std::uint8_t index = known.index.load(std::memory_order_acquire);
  if (index != 0 && known.file.load(std::memory_order_relaxed) == where.file &&
      known.line.load(std::memory_order_relaxed) == where.line)
    return index;
  return add_site(where);
}

/// "killed by SIGKILL", "exit code 1".
std::string describe_wait_status(int wait_status);
/// "all_reduce(f32 x 1000, sum)".
std::string describe(const Shown& shown);
/// " for bucket 1 of 2 of ..."; "" if there is no purpose, or none that can still be read.
std::string describe_purpose(const Slot& slot, const Shown& shown);
/// The operation with its purpose and its call site: "... for ... at train.cc:88".
std::string describe(const Slot& slot, const Shown& shown);
/// What a rank does in a group, for people: "is in all_reduce #41(...) at train.cc:88"; where it
/// does nothing there, also what it does in another.
std::string describe_doing(const Board& board, int rank, GroupId group);
/// The same for the group in which the rank was last active, with ranks of the world: for whoever
/// is in no group with it.
std::string describe_doing(const Board& board, int rank);

}  // namespace tutti::control
