#include "control/board/board.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::control {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

std::size_t slots_bytes(int rank_count) noexcept {
  return kSlotBytes * (static_cast<std::size_t>(rank_count) + 1);
}

std::size_t board_bytes(int rank_count) noexcept {
  return slots_bytes(rank_count) + kMoreLineBytes * static_cast<std::size_t>(rank_count);
}

/// The mark must survive its owner and be seen by other processes.
void init_mark(Mark& mark) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&mark.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error != 0) throw net::system_error("status board: cannot make a robust mutex", error);
}

}  // namespace

net::Fd Board::make(int rank_count) {
  if (rank_count < 1 || rank_count > kMaxLocalRanks)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("status board: {} ranks on one host; from 1 to {} are possible",
                            rank_count, kMaxLocalRanks));
  const std::size_t byte_count = board_bytes(rank_count);
  net::Fd memory = make_memory("tutti-board", byte_count);
  reserve_memory(memory, 0, slots_bytes(rank_count));
  // Fresh pages are zero, the first state of every word; only marks and header are not.
  Board board(map_shared(memory, byte_count, true), rank_count);
  for (int rank = 0; rank < rank_count; ++rank) init_mark(board.slot(rank).mark);
  board.header().rank_count.store(static_cast<std::uint32_t>(rank_count));
  board.header().version.store(kBoardVersion);
  board.header().magic.store(kBoardMagic);
  return memory;
}

Board::Board(const net::Fd& memory) {
  struct stat status;
  if (fstat(memory.get(), &status) != 0) throw net::system_error("status board: fstat", errno);
  const auto byte_count = static_cast<std::size_t>(status.st_size);
  if (byte_count >= board_bytes(1) && byte_count <= board_bytes(kMaxLocalRanks)) {
    mapping_ = map_shared(memory, byte_count, true);
    rank_count_ = static_cast<int>(header().rank_count.load());
    if (header().magic.load() == kBoardMagic && header().version.load() != kBoardVersion)
      throw Error(ErrorCode::kSystem,
                  fmt::format("status board: version {} was handed over, this library has version "
                              "{}; use the same Tutti everywhere",
                              header().version.load(), kBoardVersion));
  }
  if (!mapping_ || header().magic.load() != kBoardMagic || rank_count_ < 1 ||
      board_bytes(rank_count_) != byte_count)
    throw Error(ErrorCode::kSystem, "status board: the descriptor handed over is not a board");
}

int Board::line_count(int rank) const noexcept {
  constexpr std::uint32_t kMost = kMaxLines - kLinesPerSlot;
  const std::uint32_t more = slot(rank).more_lines.load(std::memory_order_acquire);
  return kLinesPerSlot + static_cast<int>(std::min(more, kMost));
}

Line& Board::line(int rank, int index) const noexcept {
  if (index < kLinesPerSlot) return slot(rank).lines[static_cast<std::size_t>(index)];
  return reinterpret_cast<Line*>(data() + more_lines_offset(rank))[index - kLinesPerSlot];
}

Line* Board::find_line(int rank, GroupId group) const noexcept {
  for (Line& line : Lines(*this, rank))
    if (line.group.load(std::memory_order_seq_cst) == group) return &line;
  return nullptr;
}

RankState Board::state_of(int rank) const noexcept {
  return slot(rank).state.load(std::memory_order_acquire);
}

std::optional<int> Board::exit_of(int rank) const noexcept {
  const BoardHeader::Exit& exit = header().exits[static_cast<std::size_t>(rank)];
  if (exit.known.load(std::memory_order_acquire) == 0) return std::nullopt;
  return exit.wait_status.load();
}

int Board::pid_of(int rank) const noexcept {
  const int told =
      header().exits[static_cast<std::size_t>(rank)].pid.load(std::memory_order_acquire);
  return told != 0 ? told : slot(rank).pid.load();
}

void Board::set_pid(int rank, int pid) noexcept {
  header().exits[static_cast<std::size_t>(rank)].pid.store(pid, std::memory_order_release);
}

void Board::set_exit(int rank, int wait_status) noexcept {
  BoardHeader::Exit& exit = header().exits[static_cast<std::size_t>(rank)];
  exit.wait_status.store(wait_status, std::memory_order_relaxed);
  exit.known.store(1, std::memory_order_release);
}

bool has_left(const Board& board, int rank) noexcept {
  const Slot& slot = board.slot(rank);
  const RankState state = slot.state.load();
  if (state != RankState::running) return state == RankState::left;
  if (!slot.mark.is_known_dead()) return false;
  // Nobody writes these lines any more: every look finds the same.
  bool has_made_one = false;
  for (const Line& line : Lines(board, rank)) {
    const LineState line_state = line.state.load();
    if (line_state == LineState::free) continue;
    if (!has_left(line_state)) return false;
    has_made_one = true;
  }
  return has_made_one;
}

void rouse(Doorbell& control_bell) noexcept {
  control_bell.rings.fetch_add(1);
  ring(control_bell);
}

void rouse_control(const Board& board, int rank) noexcept {
  int target = board.slot(rank).control_slot.load();
  if (target < 0 || target >= board.rank_count()) target = rank;
  rouse(board.slot(target).control_bell);
}

Cores cores_of_all(const Board& board) noexcept {
  Cores all;
  for (int rank = 0; rank < board.rank_count(); ++rank) {
    const Slot& slot = board.slot(rank);
    Cores cores{.mask = {}, .quota = slot.core_quota.load()};
    for (std::size_t i = 0; i < cores.mask.size(); ++i) cores.mask[i] = slot.cores[i].load();
    all.join(cores);
  }
  return all;
}

RankSet read_set(const std::array<std::atomic<std::uint64_t>, 4>& words) noexcept {
  RankSet set;
  for (std::size_t i = 4; i-- > 0;) {
    set <<= 64;
    set |= RankSet(words[i].load(std::memory_order_acquire));
  }
  return set;
}

std::vector<int> ranks_in(const RankSet& set) {
  std::vector<int> ranks;
  for (int rank = 0; rank < kMaxLocalRanks; ++rank)
    if (set.test(static_cast<std::size_t>(rank))) ranks.push_back(rank);
  return ranks;
}

std::optional<Verdict> read_proposal(const Board& board, int rank, std::uint64_t number) {
  const Proposal& place =
      board.slot(rank).proposals[number % static_cast<std::uint64_t>(kProposals)];
  const std::uint64_t stands = place.number.load();
  if (stands == 0 || (stands & kProposalMask) != (number & kProposalMask)) return std::nullopt;
  Verdict verdict;
  verdict.group = place.group.load(std::memory_order_acquire);
  verdict.code = failure_code(place.failure.load(std::memory_order_acquire));
  verdict.culprits = ranks_in(read_set(place.culprits));
  std::erase_if(verdict.culprits, [&](int culprit) { return culprit >= board.rank_count(); });
  verdict.text = place.text.read();
  verdict.finder = rank;
  if (place.number.load(std::memory_order_acquire) != stands) return std::nullopt;
  return verdict;
}

std::string read_site(const Slot& slot, std::uint32_t site) {
  return site != 0 && site < kSites ? slot.sites[site].read() : std::string();
}

std::optional<std::string> read_failure_text(const Slot& slot, GroupId group) {
  for (const Proposal& place : slot.proposals) {
    const std::uint64_t number = place.number.load(std::memory_order_acquire);
    if (number == 0 || place.group.load(std::memory_order_acquire) != group) continue;
    std::string text = place.text.read();
    if (place.number.load(std::memory_order_relaxed) == number) return text;
  }
  return std::nullopt;
}

std::string read_purpose(const Slot& slot, std::uint64_t chain) {
  for (const PurposeText& purpose : slot.purposes) {
    if (chain == 0 || purpose.chain.load(std::memory_order_acquire) != chain) continue;
    std::string text = purpose.text.read();
    if (purpose.chain.load(std::memory_order_relaxed) == chain) return text;
  }
  return {};
}

std::vector<const Line*> failed_lines(const Board& board, int rank) {
  std::vector<const Line*> failed;
  for (const Line& line : Lines(board, rank)) {
    const std::uint32_t failure = line.failure.load(std::memory_order_acquire);
    if (failure != 0 && (failure & kOutlived) == 0) failed.push_back(&line);
  }
  return failed;
}

RankSet blamed_by(const Board& board, int rank) noexcept {
  RankSet blamed;
  for (const Line* line : failed_lines(board, rank)) {
    const ErrorCode code = failure_code(line->failure.load(std::memory_order_acquire));
    if (code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout ||
        code == ErrorCode::kAborted || code == ErrorCode::kClosed)
      blamed |= read_set(line->ranks);
  }
  return blamed;
}

std::optional<std::string> disagreement_of(const Board& board, int rank) {
  for (const Line* line : failed_lines(board, rank)) {
    const ErrorCode code = failure_code(line->failure.load(std::memory_order_acquire));
    if (code != ErrorCode::kCollectiveMismatch && code != ErrorCode::kClosed) continue;
    for (int slot = 0; slot < board.rank_count(); ++slot)
      if (auto text = read_failure_text(board.slot(slot), line->group.load())) return text;
  }
  return std::nullopt;
}

}  // namespace tutti::control
