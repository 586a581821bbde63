#include "control/board/board.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "control/board/layout.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::control {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

std::size_t slots_bytes(int slot_count) noexcept {
  return kSlotBytes * (static_cast<std::size_t>(slot_count) + 1);
}

std::size_t board_bytes(int slot_count) noexcept {
  return slots_bytes(slot_count) +
         (kMoreLineBytes + sizeof(RelayArea)) * static_cast<std::size_t>(slot_count);
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

net::Fd Board::make(int slot_count, int world_size) {
  if (slot_count < 1 || slot_count > kMaxLocalRanks) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("status board: {} ranks on one host; from 1 to {} are possible",
                            slot_count, kMaxLocalRanks));
  }
  if (world_size < slot_count || world_size > kMaxWorldRanks) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("status board: {} ranks in a world, {} of them on this host; from {} "
                            "to {} are possible",
                            world_size, slot_count, slot_count, kMaxWorldRanks));
  }
  const std::size_t byte_count = board_bytes(slot_count);
  net::Fd memory = make_memory("tutti-board", byte_count);
  reserve_memory(memory, 0, slots_bytes(slot_count));
  // Fresh pages are zero, the first state of every word; only marks and header are not.
  Board board(map_shared(memory, byte_count, true), slot_count, world_size);
  for (const SlotIndex slot : board.slots()) init_mark(board.slot(slot).mark);
  board.header().slot_count.store(static_cast<std::uint32_t>(slot_count));
  board.header().world_size.store(static_cast<std::uint32_t>(world_size));
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
    slot_count_ = static_cast<int>(header().slot_count.load());
    world_size_ = static_cast<int>(header().world_size.load());
    if (header().magic.load() == kBoardMagic && header().version.load() != kBoardVersion) {
      throw Error(ErrorCode::kSystem,
                  fmt::format("status board: version {} was handed over, this library has version "
                              "{}; use the same Tutti everywhere",
                              header().version.load(), kBoardVersion));
    }
  }
  if (!mapping_ || header().magic.load() != kBoardMagic)
    throw Error(ErrorCode::kSystem, "status board: the descriptor handed over is not a board");
  if (slot_count_ < 1 || board_bytes(slot_count_) != byte_count || world_size_ < slot_count_ ||
      world_size_ > kMaxWorldRanks) {
    throw Error(ErrorCode::kSystem,
                fmt::format("status board: its header says {} ranks on this host and {} in the "
                            "world, which cannot be in its {} bytes: something has written over it",
                            header().slot_count.load(), header().world_size.load(), byte_count));
  }
}

BoardHeader& Board::header() const noexcept { return *reinterpret_cast<BoardHeader*>(data()); }

std::size_t Board::more_lines_offset(SlotIndex of) const noexcept {
  return slots_bytes(slot_count_) + kMoreLineBytes * of.index();
}

RelayArea& Board::relay_area(SlotIndex of) const noexcept {
  const std::size_t first = more_lines_offset(SlotIndex(slot_count_));
  return *reinterpret_cast<RelayArea*>(data() + first + sizeof(RelayArea) * of.index());
}

int Board::line_count(SlotIndex of) const noexcept {
  constexpr std::uint32_t kMost = kMaxLines - kLinesPerSlot;
  const std::uint32_t more = slot(of).more_lines.load(std::memory_order_acquire);
  return kLinesPerSlot + static_cast<int>(std::min(more, kMost));
}

Line& Board::line(SlotIndex of, int index) const noexcept {
  if (index < kLinesPerSlot) return slot(of).lines[static_cast<std::size_t>(index)];
  return reinterpret_cast<Line*>(data() + more_lines_offset(of))[index - kLinesPerSlot];
}

Line* Board::find_line(SlotIndex of, GroupId group) const noexcept {
  for (Line& line : Lines(*this, of))
    if (line.group.load(std::memory_order_seq_cst) == group) return &line;
  return nullptr;
}

RankState Board::state_of(SlotIndex of) const noexcept {
  return slot(of).state.load(std::memory_order_acquire);
}

bool Board::is_known_dead(SlotIndex of) const noexcept { return slot(of).mark.is_known_dead(); }

bool Board::is_running(SlotIndex of) const noexcept {
  return slot(of).state.load() == RankState::running && !is_known_dead(of);
}

bool Board::has_died(SlotIndex of) const noexcept {
  return slot(of).state.load() == RankState::running &&
         slot(of).mark.look() == Mark::State::owner_died;
}

Doorbell& Board::bell(SlotIndex of) const noexcept { return slot(of).bell; }
Doorbell& Board::control_bell(SlotIndex of) const noexcept { return slot(of).control_bell; }
std::uint64_t Board::news_of(SlotIndex of) const noexcept { return slot(of).news.load(); }
std::uint64_t Board::told_of(SlotIndex of) const noexcept { return slot(of).told.load(); }
std::uint64_t Board::beat_of(SlotIndex of) const noexcept { return slot(of).beat.load(); }
std::uint64_t Board::wish_of(SlotIndex of) const noexcept { return slot(of).wish.load(); }

std::vector<WorldRank> Board::lost_by(SlotIndex of) const {
  return read_set(slot(of).lost, world_size_);
}

std::vector<WorldRank> Board::held_up_by(SlotIndex of) const {
  return read_set(slot(of).held_up, world_size_);
}

int Board::own_pid_of(SlotIndex of) const noexcept { return slot(of).pid.load(); }

std::optional<int> Board::exit_of(SlotIndex slot) const noexcept {
  const BoardHeader::Exit& exit = header().exits[slot.index()];
  if (exit.known.load(std::memory_order_acquire) == 0) return std::nullopt;
  return exit.wait_status.load();
}

int Board::pid_of(SlotIndex of) const noexcept {
  const int told = header().exits[of.index()].pid.load(std::memory_order_acquire);
  return told != 0 ? told : own_pid_of(of);
}

void Board::set_pid(SlotIndex slot, int pid) noexcept {
  header().exits[slot.index()].pid.store(pid, std::memory_order_release);
}

void Board::show_told(SlotIndex of, std::uint64_t news) const noexcept {
  std::atomic<std::uint64_t>& told = slot(of).told;
  std::uint64_t before = told.load();
  while (before < news && !told.compare_exchange_weak(before, news)) {
  }
  if (before < news) ring(bell(of));
}

void Board::set_exit(SlotIndex slot, int wait_status) noexcept {
  BoardHeader::Exit& exit = header().exits[slot.index()];
  exit.wait_status.store(wait_status, std::memory_order_relaxed);
  exit.known.store(1, std::memory_order_release);
}

GroupId group_of(const Line& line) noexcept { return line.group.load(std::memory_order_acquire); }

LineState state_of(const Line& line) noexcept { return line.state.load(); }

bool shows_failure(const Line& line) noexcept { return line.failure.load() != 0; }

bool has_left(const Board& board, SlotIndex of) noexcept {
  const Slot& slot = board.slot(of);
  const RankState state = slot.state.load();
  if (state != RankState::running) return state == RankState::left;
  if (!slot.mark.is_known_dead()) return false;
  // Nobody writes these lines any more: every look finds the same.
  bool has_made_one = false;
  for (const Line& line : Lines(board, of)) {
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

void rouse_control(const Board& board, SlotIndex slot) noexcept {
  SlotIndex target(board.slot(slot).control_slot.load());
  if (target.value < 0 || target.value >= board.slot_count()) target = slot;
  rouse(board.slot(target).control_bell);
}

void rouse_others(const Board& board, SlotIndex own) noexcept {
  for (const SlotIndex slot : board.slots())
    if (slot != own) rouse_control(board, slot);
}

Cores cores_of_all(const Board& board) noexcept {
  Cores all;
  for (const SlotIndex each : board.slots()) {
    const Slot& slot = board.slot(each);
    Cores cores{.mask = {}, .quota = slot.core_quota.load()};
    for (std::size_t i = 0; i < cores.mask.size(); ++i) cores.mask[i] = slot.cores[i].load();
    all.join(cores);
  }
  return all;
}

std::optional<Verdict> read_proposal(const Board& board, const Proposal& place,
                                     std::uint64_t number) {
  const std::uint64_t stands = place.number.load();
  if (stands == 0 || (stands & kProposalMask) != (number & kProposalMask)) return std::nullopt;
  Verdict verdict;
  for (const auto& group : place.groups) {
    const GroupId failed = group.load(std::memory_order_acquire);
    if (failed == 0) break;
    verdict.groups.push_back(failed);
  }
  verdict.code = failure_code(place.failure.load(std::memory_order_acquire));
  verdict.culprits = read_set(place.culprits, board.world_size());
  verdict.finder = WorldRank(place.finder.load(std::memory_order_acquire));
  verdict.text = place.text.read();
  if (place.number.load(std::memory_order_acquire) != stands) return std::nullopt;
  return verdict;
}

std::optional<Verdict> read_wish(const Board& board, SlotIndex slot) {
  const std::uint64_t number = board.slot(slot).wish.load();
  if (number == 0) return std::nullopt;
  return read_proposal(board, board.slot(slot).proposals[number % kProposals], number);
}

std::string read_site(const Slot& slot, std::uint32_t site) {
  return site != 0 && site < kSites ? slot.sites[site].read() : std::string();
}

std::optional<std::string> read_failure_text(const Board& board, SlotIndex slot, GroupId group,
                                             ErrorCode code,
                                             const std::vector<WorldRank>& culprits) {
  for (const Proposal& place : board.slot(slot).proposals) {
    const auto found = read_proposal(board, place, place.number.load());
    if (!found || !found->fails(group) || found->code != code) continue;
    const auto names = [&](WorldRank culprit) {
      return std::find(found->culprits.begin(), found->culprits.end(), culprit) !=
             found->culprits.end();
    };
    if (std::all_of(culprits.begin(), culprits.end(), names)) return found->text;
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

std::vector<const Line*> failed_lines(const Board& board, SlotIndex slot) {
  // Its owner may fail once more meanwhile: each word is read once.
  std::vector<std::pair<std::uint32_t, const Line*>> failed;
  for (const Line& line : Lines(board, slot)) {
    const std::uint32_t failure = line.failure.load(std::memory_order_acquire);
    if (failure != 0 && (failure & kOutlived) == 0)
      failed.emplace_back(failure_order(failure), &line);
  }
  std::stable_sort(failed.begin(), failed.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<const Line*> lines;
  for (const auto& [order, line] : failed) lines.push_back(line);
  return lines;
}

std::set<WorldRank> blamed_by(const Board& board, SlotIndex slot) {
  const std::vector<const Line*> failed = failed_lines(board, slot);
  if (failed.empty()) return {};
  const Line& first = *failed.front();
  const ErrorCode code = failure_code(first.failure.load(std::memory_order_acquire));
  if (code == ErrorCode::kCollectiveMismatch || code == ErrorCode::kDeadlock) return {};
  const std::vector<WorldRank> culprits = read_set(first.ranks, board.world_size());
  return {culprits.begin(), culprits.end()};
}

}  // namespace tutti::control
