// The backend "mpi": one source, compiled once for each MPI (docs/recipes/backend.md).
//
// A blocking collective is MPI's own blocking function, in the caller's thread and without a lock
// of ours: two groups that are used from two threads would deadlock with one. mpi_mode=nonblocking
// tests instead (calls.h), so that deadlines and aborts hold; it costs copies and time. Making
// groups and starting MPI block inside MPI in both modes: a rank lost meanwhile is the end of the
// process (gate.h).
#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/legality.h"
#include "base/pages.h"
#include "kernels/kernels.h"
#include "plugins/mpi/collectives.h"
#include "plugins/mpi/communicators.h"
#include "plugins/mpi/messages.h"

namespace tutti::mpi {

namespace {

bool is_nonblocking(const GroupSpec& spec) { return spec.settings.at("mpi_mode") == "nonblocking"; }

std::chrono::nanoseconds grace_of(const GroupSpec& spec) {
  return parse_duration("failure_grace", spec.settings.at("failure_grace"));
}

std::chrono::nanoseconds stall_of(const GroupSpec& spec) {
  return parse_duration("stall_timeout", spec.settings.at("stall_timeout"));
}

std::shared_ptr<Gate> gate_of(const GroupSpec& spec) {
  auto gate = std::make_shared<Gate>(grace_of(spec));
  spec.on_failure([gate](const Error& failure) {
    gate->abort({failure.code(), failure.what(), failure.context().culprits, {}});
  });
  return gate;
}

/// Calls `make(gate)`, which blocks inside MPI. What MPI reports may be the first sign of a death.
template <class Make>
std::unique_ptr<Backend> make_inside(const GroupSpec& spec, const char* what, Make&& make) {
  const std::shared_ptr<Gate> gate = gate_of(spec);
  const Gate::Commitment inside(*gate, what);
  try {
    return make(gate);
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kSystem) throw;
    gate->await_cause();
    gate->check();
    throw;
  }
}

class MpiBackend final : public Backend {
 public:
  MpiBackend(const GroupSpec& spec, Process& process, std::shared_ptr<const RankMap> map,
             std::shared_ptr<Gate> gate)
      : process_(process),
        map_(std::move(map)),
        gate_(std::move(gate)),
        communicators_(spec, *map_, process),
        calls_(process, *gate_, is_nonblocking(spec) || process.is_serialized()),
        collectives_(process, calls_, communicators_.collectives(), spec.rank,
                     static_cast<int>(spec.world_ranks.size())) {}

  Support supports(const OpKey& key) const override;
  void run(const Request& request) override;
  Work start(Request request) override;
  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override {
    return make_inside(spec, "new_group", [&](const std::shared_ptr<Gate>& gate) {
      return std::make_unique<MpiBackend>(spec, process_, map_, gate);
    });
  }
  Memory allocate(std::size_t byte_count) override;
  void abort(const Cause& cause) noexcept override {
    process_.set_failed();
    gate_->abort(cause);
  }
  void close(Deadline deadline) override;
  BackendInfo info() const override;

 private:
  Process& process_;
  const std::shared_ptr<const RankMap> map_;
  const std::shared_ptr<Gate> gate_;
  Communicators communicators_;
  Calls calls_;
  Collectives collectives_;
};

Support MpiBackend::supports(const OpKey& key) const {
  if (key.device != Device::Kind::cpu) {
    return {false, "the backend mpi moves memory of the CPU only; copy the data there first"};
  }
  const std::string_view why = why_illegal(key.op, key.dtype, key.reduce);
  return {why.empty(), std::string(why)};
}

void MpiBackend::run(const Request& request) {
  const Process::Inside inside(process_, name_of(request.op).data());
  if (calls_.tested()) return collectives_.run(request);
  const Gate::Commitment commitment(*gate_, name_of(request.op).data());
  collectives_.run(request);
}

Work MpiBackend::start(Request request) {
  auto inside = std::make_unique<Process::Inside>(process_, name_of(request.op).data());
  const auto tag =
      static_cast<int>(request.message.number % static_cast<std::uint64_t>(process_.last_tag()));
  auto message = std::make_shared<Message>(std::move(request), calls_, gate_, std::move(inside));
  message->start(tag, communicators_.messages());
  return Work(std::move(message));
}

Memory MpiBackend::allocate(std::size_t byte_count) {
  return {allocate_pages(byte_count), byte_count};
}

/// The group has ended what was under way.
void MpiBackend::close(Deadline) {
  const Gate::Commitment commitment(*gate_, "close");
  const Process::Inside inside(process_, "close");
  communicators_.free();
}

BackendInfo about() {
  return {.name = "mpi", .version = library_version(), .checks_itself = false, .threads = false};
}

BackendInfo MpiBackend::info() const { return about(); }

std::unique_ptr<Backend> make(const GroupSpec& spec) {
  return make_inside(spec, "init_process_group", [&](const std::shared_ptr<Gate>& gate) {
    Process& process = Process::get({is_nonblocking(spec), grace_of(spec), stall_of(spec)});
    try {
      return std::make_unique<MpiBackend>(spec, process, exchange_ranks(spec, process), gate);
    } catch (const Error& failure) {
      // What all ranks refuse leaves them alive; anything else may be the sign of a death.
      if (failure.code() != ErrorCode::kUnsupported) process.set_failed();
      throw;
    }
  });
}

}  // namespace

}  // namespace tutti::mpi

TUTTI_BACKEND_PLUGIN(tutti::mpi::make, tutti::mpi::about)
