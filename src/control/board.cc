#include "control/board.h"

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

std::size_t board_bytes(int rank_count) noexcept {
  return kSlotBytes * (static_cast<std::size_t>(rank_count) + 1);
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

std::optional<Shown> Entry::read() const noexcept {
  Shown value;
  value.seq = words_[0].load(std::memory_order_acquire);
  if (value.seq == 0) return std::nullopt;
  value.chain = words_[1].load(std::memory_order_acquire);
  value.count = words_[2].load(std::memory_order_acquire);
  value.factor = std::bit_cast<double>(words_[3].load(std::memory_order_acquire));
  const std::uint64_t packed = words_[4].load(std::memory_order_acquire);
  if (words_[0].load(std::memory_order_relaxed) != value.seq) return std::nullopt;
  value.op = static_cast<std::uint8_t>(packed);
  value.dtype = static_cast<std::uint8_t>(packed >> 8);
  value.reduce = static_cast<std::uint8_t>(packed >> 16);
  value.site = static_cast<std::uint8_t>(packed >> 24);
  value.root_or_peer = static_cast<std::int32_t>(packed >> 32);
  return value;
}

template <std::size_t Bytes>
void Text<Bytes>::write(std::string_view text) noexcept {
  const std::size_t used = std::min(text.size(), Bytes - 1);
  for (std::size_t i = 0; i < Bytes / 8; ++i) {
    std::uint64_t word = 0;
    if (i * 8 < used)
      std::memcpy(&word, text.data() + i * 8, std::min<std::size_t>(8, used - i * 8));
    words_[i].store(word, std::memory_order_release);
  }
}

template <std::size_t Bytes>
std::string Text<Bytes>::read() const {
  std::array<char, Bytes> bytes;
  for (std::size_t i = 0; i < Bytes / 8; ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_acquire);
    std::memcpy(bytes.data() + i * 8, &word, 8);
  }
  std::string text(bytes.data(), strnlen(bytes.data(), Bytes));
  // Another process wrote it: nothing in it may steer a terminal. Bytes of UTF-8 stay, but for the
  // controls that it has as well (C2 80 to C2 9F).
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    const bool after_c2 = i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;
    if (code < 0x20 || code == 0x7f || (after_c2 && code < 0xa0)) text[i] = '?';
  }
  return text;
}

template class Text<kSiteBytes>;
template class Text<kNoticeBytes>;
template class Text<kPurposeBytes>;

net::Fd Board::make(int rank_count) {
  if (rank_count < 1 || rank_count > kMaxLocalRanks)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("status board: {} ranks on one host; from 1 to {} are possible",
                            rank_count, kMaxLocalRanks));
  const std::size_t byte_count = board_bytes(rank_count);
  net::Fd memory = make_memory("tutti-board", byte_count);
  reserve_memory(memory, 0, byte_count);
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

Line* Board::find_line(int rank, GroupId group) const noexcept {
  for (Line& line : slot(rank).lines)
    if (line.group.load(std::memory_order_seq_cst) == group) return &line;
  return nullptr;
}

void Board::set_pid(int rank, int pid) noexcept {
  header().exits[static_cast<std::size_t>(rank)].pid.store(pid, std::memory_order_release);
}

void Board::set_exit(int rank, int wait_status) noexcept {
  BoardHeader::Exit& exit = header().exits[static_cast<std::size_t>(rank)];
  exit.wait_status.store(wait_status, std::memory_order_relaxed);
  exit.known.store(1, std::memory_order_release);
}

Mark::State Mark::look() noexcept {
  if (owner_died.load() != 0) return State::owner_died;
  const int error = pthread_mutex_trylock(&mutex);
  if (error == EBUSY) return State::held;
  if (error == EOWNERDEAD) {
    // The word is what lasts. Leaving the mutex inconsistent, which POSIX says is final, is not:
    // glibc's trylock keeps an irrecoverable mutex locked, and the third to look would find it
    // held.
    owner_died.store(1);
    pthread_mutex_consistent(&mutex);
  }
  if (error == 0 || error == EOWNERDEAD) pthread_mutex_unlock(&mutex);
  return owner_died.load() != 0 ? State::owner_died : State::free;
}

bool Mark::take() noexcept { return look() == State::free && pthread_mutex_trylock(&mutex) == 0; }

bool has_left(const Slot& slot) noexcept {
  const RankState state = slot.state.load();
  if (state != RankState::running) return state == RankState::left;
  if (!slot.mark.is_known_dead()) return false;
  // Nobody writes these lines any more: every look finds the same.
  bool has_made_one = false;
  for (const Line& line : slot.lines) {
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

void write_cores(Slot& slot, const Cores& cores) noexcept {
  for (std::size_t i = 0; i < cores.mask.size(); ++i) slot.cores[i].store(cores.mask[i]);
  slot.core_quota.store(cores.quota);
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

void write_set(std::array<std::atomic<std::uint64_t>, 4>& words, const RankSet& set) noexcept {
  const RankSet low_word(~std::uint64_t{0});
  for (std::size_t i = 0; i < 4; ++i)
    words[i].store(((set >> (64 * i)) & low_word).to_ullong(), std::memory_order_release);
}

std::optional<RankSet> read_verdict(const Slot& slot) noexcept {
  const std::uint32_t before = slot.verdicts.load(std::memory_order_acquire);
  if (before == 0 || before % 2 != 0) return std::nullopt;
  const RankSet set = read_set(slot.verdict);
  if (slot.verdicts.load(std::memory_order_relaxed) != before) return std::nullopt;
  return set;
}

std::optional<std::string> read_notice(const Slot& slot, GroupId group) {
  for (const Notice& notice : slot.notices) {
    const std::uint64_t version = notice.version.load(std::memory_order_acquire);
    if (version == 0 || version % 2 != 0 || notice.group.load(std::memory_order_acquire) != group)
      continue;
    std::string text = notice.text.read();
    if (notice.version.load(std::memory_order_relaxed) == version) return text;
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

void outlive_failures(Slot& slot) noexcept {
  for (std::size_t i = 0; i < slot.lines.size(); ++i)
    if (slot.lines[i].failure.load() != 0) slot.outlived.fetch_or(1u << i);
}

std::vector<const Line*> failed_lines(const Slot& slot) {
  const std::uint32_t outlived = slot.outlived.load(std::memory_order_acquire);
  std::vector<const Line*> failed;
  for (std::size_t i = 0; i < slot.lines.size(); ++i) {
    const bool has_failed = slot.lines[i].failure.load(std::memory_order_acquire) != 0;
    if (has_failed && (outlived >> i & 1) == 0) failed.push_back(&slot.lines[i]);
  }
  return failed;
}

std::optional<std::string> disagreement_of(const Board& board, int rank) {
  for (const Line* line : failed_lines(board.slot(rank))) {
    const std::uint32_t failure = line->failure.load(std::memory_order_acquire);
    if (failure != failure_word(ErrorCode::kCollectiveMismatch) &&
        failure != failure_word(ErrorCode::kClosed))
      continue;
    for (int slot = 0; slot < board.rank_count(); ++slot)
      if (auto text = read_notice(board.slot(slot), line->group.load())) return text;
  }
  return std::nullopt;
}

std::uint8_t SlotOwner::add_site(const Where& where) noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t first = bucket_of(where);
  for (std::size_t step = 0; step < known_.size(); ++step) {
    Known& known = known_[(first + step) % known_.size()];
    const std::uint8_t index = known.index.load(std::memory_order_relaxed);
    if (index == 0) {
      // Index 0 means unknown; so do all further sites of a program with more than kSites - 1.
      if (sites_used_ + 1 >= kSites) return 0;
      ++sites_used_;
      const std::string text = name_of(where);
      slot_.sites[static_cast<std::size_t>(sites_used_)].write(
          {text.data(), std::min<std::size_t>(text.size(), kSiteBytes - 1)});
      known.file.store(where.file, std::memory_order_relaxed);
      known.line.store(where.line, std::memory_order_relaxed);
      known.index.store(static_cast<std::uint8_t>(sites_used_), std::memory_order_release);
      return static_cast<std::uint8_t>(sites_used_);
    }
    if (known.file.load(std::memory_order_relaxed) == where.file &&
        known.line.load(std::memory_order_relaxed) == where.line)
      return index;
  }
  return 0;
}

Line* SlotOwner::open_line(GroupId group, GroupId asked_of, const RankSet& members) noexcept {
  const std::lock_guard lock(mutex_);
  for (Line& line : slot_.lines) {
    if (line.state.load(std::memory_order_relaxed) != LineState::free) continue;
    for (auto* word : {&line.entered, &line.completed, &line.goodbye_seq, &line.goodbye_chain,
                       &line.progress, &line.waiting})
      word->store(0, std::memory_order_relaxed);
    line.failure.store(0, std::memory_order_relaxed);
    line.since.store(0, std::memory_order_relaxed);
    line.message.clear();
    for (Entry& entry : line.history) entry.clear();
    line.asked_of.store(asked_of, std::memory_order_relaxed);
    line.site.store(0, std::memory_order_relaxed);
    line.core.store(0, std::memory_order_relaxed);
    write_set(line.ranks, members);
    outlive_failures(slot_);
    line.state.store(LineState::meeting, std::memory_order_relaxed);
    line.group.store(group, std::memory_order_seq_cst);
    return &line;
  }
  return nullptr;
}

void SlotOwner::free_line(Line& line) noexcept {
  line.group.store(0);
  line.state.store(LineState::free);
}

void SlotOwner::publish_failure(Line& line, ErrorCode code, const RankSet& culprits,
                                std::string_view text) noexcept {
  const std::lock_guard lock(mutex_);
  if (!text.empty()) {
    Notice& notice = slot_.notices[notices_used_++ % kNotices];
    const std::uint64_t version = notice.version.load(std::memory_order_relaxed);
    notice.version.store(version + 1, std::memory_order_relaxed);
    notice.group.store(line.group.load(std::memory_order_relaxed), std::memory_order_release);
    notice.text.write(text);
    notice.version.store(version + 2, std::memory_order_release);
  }
  write_set(line.ranks, culprits);
  slot_.outlived.fetch_and(~(1u << (&line - slot_.lines.data())));
  line.failure.store(failure_word(code));
  slot_.failures.fetch_add(1);
}

void SlotOwner::publish_purpose(std::uint64_t chain, std::string_view text) noexcept {
  const std::lock_guard lock(mutex_);
  PurposeText& purpose = slot_.purposes[purposes_used_++ % kPurposes];
  purpose.chain.store(0, std::memory_order_relaxed);
  purpose.text.write(text);
  purpose.chain.store(chain, std::memory_order_release);
}

void SlotOwner::publish_verdict(const RankSet& lost) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint32_t version = slot_.verdicts.load(std::memory_order_relaxed);
  slot_.verdicts.store(version + 1, std::memory_order_relaxed);
  write_set(slot_.verdict, lost);
  slot_.verdicts.store(version + 2);
}

}  // namespace tutti::control
