#include "simulate/simulated.h"

#include <numeric>

#include "control/host.h"
#include "group/group_impl.h"
#include "group/native_spec.h"
#include "native/native.h"
#include "simulate/network.h"

namespace tutti::simulate {

using namespace std::chrono_literals;

void Simulated::pause(std::chrono::nanoseconds lasts) {
  kernel_.block(nullptr, kernel_.now() + lasts);
}

std::function<void()> Simulated::start_thread(std::function<void()> body) {
  Fiber* const thread = kernel_.spawn(nullptr, std::move(body));
  return [this, thread] { kernel_.join(thread); };
}

void Simulated::die() noexcept {
  Proc& process = kernel_.self();
  process.die_at = process.steps + 1;
  kernel_.step();
}

void Simulated::befall(const Fault& fault) {
  Proc& process = kernel_.self();
  if (fault.kind == FaultKind::error) process.has_no_memory = true;
  if (fault.kind == FaultKind::stop) {
    process.stop_at = process.steps + 1;
    process.stop_for = fault.lasts;
    kernel_.step();
  }
  if (fault.kind != FaultKind::die) return;
  if (fault.lasts == 0ns) die();
  kernel_.spawn(nullptr, [this, lasts = fault.lasts] {
    pause(lasts);
    die();
  });
}

namespace {

std::shared_ptr<control::Host> join_host(const Plan& plan, int rank, int board_fd,
                                         Network* network) {
  control::HostOptions options;
  options.board_fd = board_fd;
  if (network != nullptr) {
    options.board_fd = network->board_fd(plan.host_of(rank));
    options.roster = network->roster(plan.host_of(rank));
    options.others = &network->others_of(rank);
  }
  options.rank = rank;
  options.world_size = plan.ranks();
  options.timeout = 5s;
  options.first_line_after = plan.timeout / 8;
  options.deadlock_after = plan.timeout / 4;
  return control::Host::join(options);
}

}  // namespace

ProcessGroup Simulated::make_world(int rank) {
  group::Parts parts;
  parts.name = "world";
  parts.id = 1000;
  parts.rank = rank;
  parts.world_ranks.resize(static_cast<std::size_t>(plan_.ranks()));
  std::iota(parts.world_ranks.begin(), parts.world_ranks.end(), 0);
  parts.arrive = parts.stall = parts.close_timeout = plan_.timeout;
  parts.host = join_host(plan_, rank, board_fd, network);
  parts.store = store_;
  return group::make_group(
      std::move(parts), nullptr, Where::current(),
      [](group::Parts& made, const GroupSpec& spec) { made.backend = native::make_native(spec); });
}

}  // namespace tutti::simulate
