#include "agent/door.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <utility>

#include "control/board/describe.h"
#include "control/board/notice.h"
#include "net/process_info.h"
#include "net/system_error.h"
#include "net/unix_socket.h"
#include "tutti/error.h"

namespace tutti::agent {
namespace {

/// In which the keeper tells what it has started, after the process could run.
constexpr std::chrono::seconds kNoteComes{1};

}  // namespace

Door::Door(int rank_count, std::string who)
    : who_(std::move(who)),
      address_(net::random_address("tutti")),
      listener_(net::listen(address_)),
      board_fd_(control::Board::make(rank_count)),
      board_(board_fd_),
      joined_(static_cast<std::size_t>(rank_count)),
      slots_(static_cast<std::size_t>(rank_count)),
      pids_(static_cast<std::size_t>(rank_count)) {
  std::iota(slots_.begin(), slots_.end(), 0);
}

store::ServerOptions Door::open() {
  // Our ranks may have become another user before they come.
  const auto trusts = [](const net::Peer& peer) {
    return net::is_trusted(peer) || net::descends_from(peer.pid, ::getpid());
  };
  return {.listener = std::move(listener_),
          .trusts = trusts,
          .admit = [this](const store::Hello& hello,
                          const net::Peer& peer) { return admit(hello, peer); },
          .descriptor = board_fd_.get()};
}

std::optional<Error> Door::admit(const store::Hello& hello, const net::Peer& peer) {
  if (!net::descends_from(peer.pid, ::getpid())) {
    if (const net::Fd self(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
        !self && (errno == EMFILE || errno == ENFILE)) {
      return net::system_error(
          fmt::format("{} (pid {}) cannot see who started process {}", who_, ::getpid(), peer.pid),
          errno);
    }
    if (!net::has_own_proc()) {
      return Error(ErrorCode::kUnauthenticated,
                   fmt::format("{} (pid {}) cannot see who started process {}: /proc is "
                               "missing, or shows another pid namespace; mount this one's (unshare "
                               "--mount-proc, or mount -t proc proc /proc)",
                               who_, ::getpid(), peer.pid));
    }
    return Error(ErrorCode::kUnauthenticated,
                 fmt::format("{} was not started by this {} (pid {})",
                             net::describe_process(peer.pid), who_, ::getpid()));
  }
  if (hello.rank >= 0 && hello.world_size == board_.world_size() &&
      hello.rank < board_.slot_count()) {
    const auto rank = static_cast<std::size_t>(started_as(peer.pid, hello.rank));
    const std::lock_guard lock(mutex_);
    // The board shows the first world; later ones may number as they like.
    if (board_.state_of(SlotIndex(slots_[rank])) == control::RankState::absent) {
      slots_[rank] = hello.rank;
      if (pids_[rank] != 0) board_.set_pid(SlotIndex(hello.rank), pids_[rank]);
    }
    joined_[rank] = true;
    pid_t nobody = -1;
    first_joined_.compare_exchange_strong(nobody, peer.pid);
    news_.signal();
  }
  return std::nullopt;
}

/// The rank as which we started the process, or its ancestor; as it says if that is not known. A
/// process may come before the keeper has told which it has started.
int Door::started_as(pid_t pid, int said) {
  const auto is_below = [&](const pid_t started) {
    return started != 0 && net::descends_from(pid, started);
  };
  Deadline deadline = Deadline::after(kNoteComes);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (is_below(pids_[static_cast<std::size_t>(said)])) return said;
    const auto found = std::find_if(pids_.begin(), pids_.end(), is_below);
    if (found != pids_.end()) return static_cast<int>(found - pids_.begin());
    if (std::count(pids_.begin(), pids_.end(), 0) == 0 || !started_.wait(lock, deadline))
      return said;
  }
}

void Door::rank_started(int rank, pid_t pid) noexcept {
  const std::lock_guard lock(mutex_);
  pids_[static_cast<std::size_t>(rank)] = pid;
  // Before that another one may have this number in the world.
  if (joined_[static_cast<std::size_t>(rank)]) board_.set_pid(slot_of(rank), pid);
  started_.notify_all();
}

bool Door::is_in_world(int rank) const {
  const auto state = board_.state_of(slot_of(rank));
  return state == control::RankState::running || state == control::RankState::left ||
         state == control::RankState::elsewhere;
}

std::vector<int> Door::ranks_of(const std::set<WorldRank>& in_world) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < board_.slot_count(); ++rank)
    if (in_world.contains(WorldRank(slot_of(rank).value))) ranks.push_back(rank);
  return ranks;
}

std::vector<int> Door::blamed_by(int rank) const {
  return ranks_of(control::blamed_by(board_, slot_of(rank)));
}

std::optional<UntoldFailure> Door::untold_by(int rank) const {
  const auto found = control::read_untold(board_, SlotIndex(rank));
  if (!found) return std::nullopt;
  return UntoldFailure{found->code, ranks_of({found->culprits.begin(), found->culprits.end()}),
                       found->text, found->is_told};
}

std::string Door::disagreement_of(int rank) const {
  return control::disagreement_of(board_, slot_of(rank)).value_or("");
}

std::string Door::failure_of(int rank) const {
  return control::describe_failure(board_, slot_of(rank));
}

std::string Door::doing_of(int rank) const {
  const auto state = board_.state_of(slot_of(rank));
  if (state == control::RankState::absent || state == control::RankState::elsewhere) return {};
  return control::describe_doing(board_, slot_of(rank));
}

}  // namespace tutti::agent
