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

/// All processes of the host as well, for a fault of hosts.
void Simulated::die(const Fault& fault) noexcept {
  Proc& own = kernel_.self();
  own.die_at = own.steps + 1 + fault.steps;
  if (fault.kind == FaultKind::lose)
    for (const int id : plan_.processes_of(plan_.host_of(fault.who)))
      if (id != own.id) kernel_.kill(kernel_.process(id));
  if (fault.steps == 0) kernel_.step();
}

void Simulated::befall(const Fault& fault) {
  Proc& process = kernel_.self();
  switch (fault.kind) {
    case FaultKind::error:
      process.has_no_memory = true;
      return;
    case FaultKind::freeze:
      process.stop_with = plan_.processes_of(plan_.host_of(fault.who));
      [[fallthrough]];
    case FaultKind::stop:
      process.stop_at = process.steps + 1 + fault.steps;
      process.stop_for = fault.lasts;
      if (fault.steps == 0) kernel_.step();
      return;
    case FaultKind::cut:
      return network->cut(plan_.host_of(fault.who), fault);
    case FaultKind::die:
    case FaultKind::lose:
      if (fault.lasts == 0ns) return die(fault);
      kernel_.spawn(nullptr, [this, fault] {
        pause(fault.lasts);
        die(fault);
      });
      return;
    case FaultKind::none:
    case FaultKind::late:
    case FaultKind::disagree:
    case FaultKind::skip:
    case FaultKind::abort:
    case FaultKind::quit:
    case FaultKind::slow:
    case FaultKind::swap:
      return;  // the program's own
  }
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
  if (plan.warns) options.deadlock = control::Deadlock::warn;
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
