#include "launch/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "net/process_info.h"
#include "net/unix_socket.h"
#include "tutti/error.h"

namespace tutti::launch {

Agent::Agent(int rank_count)
    : address_(net::random_address("tutti")),
      listener_(net::listen(address_)),
      board_fd_(control::Board::make(rank_count)),
      board_(board_fd_),
      joined_(static_cast<std::size_t>(rank_count)) {}

void Agent::serve() {
  server_.emplace(
      store::ServerOptions{.listener = std::move(listener_),
                           .admit = [this](const store::Hello& hello,
                                           const net::Peer& peer) { return admit(hello, peer); },
                           .descriptor = board_fd_.get()});
}

std::optional<Error> Agent::admit(const store::Hello& hello, const net::Peer& peer) {
  if (!net::descends_from(peer.pid, ::getpid())) {
    return Error(ErrorCode::kUnauthenticated,
                 fmt::format("{} was not started by this tutti run (pid {})",
                             net::describe_process(peer.pid), ::getpid()));
  }
  if (hello.rank >= 0 && hello.world_size == board_.rank_count() &&
      hello.rank < board_.rank_count()) {
    joined_[static_cast<std::size_t>(hello.rank)] = true;
    pid_t nobody = -1;
    first_joined_.compare_exchange_strong(nobody, peer.pid);
    news_.signal();
  }
  return std::nullopt;
}

void Agent::fail(const std::string& reason, int lost) {
  server_->fail(Error(ErrorCode::kPeerLost, reason, {.culprits = {lost}}));
}

bool Agent::is_in_world(int rank) const {
  const auto state = board_.slot(rank).state.load(std::memory_order_acquire);
  return state == control::RankState::running || state == control::RankState::left;
}

std::vector<int> Agent::blamed_by(int rank) const {
  std::set<int> blamed;
  for (const control::Line* line : control::failed_lines(board_.slot(rank))) {
    const std::uint32_t failure = line->failure.load(std::memory_order_acquire);
    const auto code = static_cast<ErrorCode>(failure - 1);
    const bool blames = code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout ||
                        code == ErrorCode::kAborted || code == ErrorCode::kClosed;
    if (!blames) continue;
    const control::RankSet culprits = control::read_set(line->ranks);
    for (int other = 0; other < board_.rank_count(); ++other) {
      if (culprits.test(static_cast<std::size_t>(other))) blamed.insert(other);
    }
  }
  return {blamed.begin(), blamed.end()};
}

std::string Agent::disagreement_of(int rank) const {
  return control::disagreement_of(board_, rank).value_or("");
}

std::string Agent::doing_of(int rank) const {
  if (board_.slot(rank).state.load(std::memory_order_acquire) == control::RankState::absent) {
    return {};
  }
  return control::describe_doing(board_, rank);
}

}  // namespace tutti::launch
