#include "plugins/gloo/mesh.h"

#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/signals.h"
#include "plugins/gloo/scheduling.h"
#include "plugins/gloo/slots.h"

namespace tutti::gloo_backend {

namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

/// All ranks have just met: connecting takes milliseconds, or somebody has died.
constexpr std::chrono::seconds kConnectBudget{60};

/// How long whoever finds a connection closed waits to be told who has died: the control thread
/// looks every 20 ms, and lets others look for 250 ms. Waited for in slices, since this process may
/// be stopped meanwhile, with its control thread.
constexpr milliseconds kVerdictBudget{500};
/// Between hosts, where one that is cut off is told of after some 3 s.
constexpr milliseconds kVerdictBudgetAcross{4000};
constexpr milliseconds kVerdictSlice{20};

/// Gloo's own limit, beyond which its sums of times overflow.
constexpr std::chrono::hours kLongest{100};

/// How often those who wait in the store look whether the group has failed.
constexpr milliseconds kSlice{50};

/// A mesh of connections that can be given up while it is made: Gloo's own waits for each of them
/// until its time is over, whoever has died.
class Connecting final : public gloo::Context {
 public:
  using gloo::Context::Context;

  /// Meets the others in `store` until `end`; gloo::Exception, kTimeout, kAborted.
  void connect(tutti::Store& store, const GlooDevice& device, Clock::time_point end) {
    std::vector<char> own;
    {
      const std::lock_guard lock(mutex_);
      device_ = device;
      transportContext_ = device->createContext(rank, size);
      transportContext_->setTimeout(getTimeout());
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        const std::vector<char> address = transportContext_->createPair(peer)->address().bytes();
        own.insert(own.end(), address.begin(), address.end());
      }
      can_close_ = true;
    }
    store.set(std::to_string(rank), std::string_view(own.data(), own.size()), left(end));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::string all = get(store, std::to_string(peer), end);
      // They have one address for each of the others.
      const std::size_t bytes = all.size() / static_cast<std::size_t>(size - 1);
      const std::size_t at = bytes * static_cast<std::size_t>(rank < peer ? rank : rank - 1);
      check();
      getPair(peer)->connect(std::vector<char>(all.begin() + static_cast<long>(at),
                                               all.begin() + static_cast<long>(at + bytes)));
      check();
    }
    const std::lock_guard lock(mutex_);
    can_close_ = false;  // from here on a mesh fails in its own way
  }

  /// From any thread: `connect` ends soon.
  void give_up() noexcept {
    const std::lock_guard lock(mutex_);
    given_up_.store(true);
    if (!can_close_) return;
    const SigpipeBlocked quiet;
    for (int peer = 0; peer < size; ++peer) {
      try {
        if (peer != rank) getPair(peer)->close();
      } catch (const std::exception&) {  // the purpose
      }
    }
  }

 private:
  static milliseconds left(Clock::time_point end) {
    return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(end - Clock::now()));
  }
  void check() const {
    if (given_up_.load()) throw Error(ErrorCode::kAborted, "the group has failed");
  }
  std::string get(tutti::Store& store, const std::string& key, Clock::time_point end) const {
    for (;;) {
      check();
      try {
        return store.get(key, std::min(kSlice, left(end)));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kTimeout || Clock::now() >= end) throw;
      }
    }
  }

  std::atomic<bool> given_up_{false};
  std::mutex mutex_;
  bool can_close_ = false;  // mutex_
};

bool is_on_one_host(const GroupSpec& spec) {
  const std::vector<int>& hosts = spec.hosts;
  return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to()) == hosts.end();
}

bool is_timeout(const std::exception& thrown) noexcept {
  return std::string_view(thrown.what()).find("Timed out waiting") != std::string_view::npos;
}

/// What an exception of Gloo says to somebody who knows nothing else.
Cause cause_of(const std::exception& thrown) {
  if (dynamic_cast<const gloo::IoException*>(&thrown) == nullptr) {
    return {ErrorCode::kSystem, fmt::format("Gloo has failed: {}", thrown.what()), {}, {}};
  }
  return {ErrorCode::kPeerLost,
          fmt::format("a connection was lost: its other end has died or has left; make a new group "
                      "without it ({})",
                      thrown.what()),
          {},
          {}};
}

}  // namespace

std::string address_of(const GroupSpec& spec) {
  return spec.address.empty() ? "127.0.0.1" : spec.address;
}

GlooDevice make_device(const GroupSpec& spec) {
  const SignalsBlocked blocked;
  const BatchScheduled patient;
  try {
    return gloo::transport::tcp::CreateDevice(address_of(spec).c_str());
  } catch (const std::exception& thrown) {
    throw Error(ErrorCode::kSystem, fmt::format("backend \"gloo\": cannot use the address {}: {}",
                                                address_of(spec), thrown.what()));
  }
}

Error make_error(ErrorCode code, const Request& request, int rank, const std::string& text,
                 std::vector<int> culprits) {
  ErrorContext context{.op = call_name(request),
                       .seq = request.seq,
                       .rank = rank,
                       .culprits = std::move(culprits),
                       .host = {},
                       .call_site = name_of(request.where)};
  const std::string message =
      fmt::format("{}: {}.", heading(context, {}, purpose_of(request.where)), text);
  return Error(code, message, std::move(context));
}

milliseconds stall_of(const Request& request) noexcept {
  const std::chrono::nanoseconds budget = request.stall.budget();
  if (budget >= kLongest) return kLongest;
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(budget));
}

Mesh::Mesh(const GroupSpec& spec, GlooDevice device)
    : rank_(spec.rank),
      ranks_(static_cast<int>(spec.world_ranks.size())),
      verdict_budget_(is_on_one_host(spec) ? kVerdictBudget : kVerdictBudgetAcross),
      device_(std::move(device)) {
  if (ranks_ > 1) connect(spec);
}

void Mesh::connect(const GroupSpec& spec) {
  const auto budget = std::min<std::chrono::nanoseconds>(spec.timeout, kConnectBudget);
  const auto context = std::make_shared<Connecting>(rank_, ranks_);
  // Gloo waits for a connection five times as long as it is told to.
  context->setTimeout(
      std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(budget / 5)));
  spec.on_failure([connecting = std::weak_ptr(context)](const Error&) {
    if (const auto alive = connecting.lock()) alive->give_up();
  });
  const SigpipeBlocked quiet;
  try {
    context->connect(*spec.store, device_, Clock::now() + budget);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& thrown) {
    const bool late =
        std::string_view(thrown.what()).find("Connect timeout") != std::string_view::npos;
    throw Error(late ? ErrorCode::kTimeout : ErrorCode::kSystem,
                fmt::format("backend \"gloo\" (rank {}): cannot connect {} ranks over {}: {}",
                            rank_, ranks_, address_of(spec), thrown.what()));
  }
  context_ = context;
}

void Mesh::admit(const Request& request) const {
  const std::lock_guard lock(mutex_);
  if (cause_) throw make_error(cause_->code, request, rank_, cause_->text, cause_->culprits);
}

void Mesh::fail(const Cause& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    cause_ = cause;
  }
  caused_.notify_all();
  close_connections();
  const std::lock_guard lock(mutex_);
  for (gloo::transport::UnboundBuffer* const buffer : waited_) {
    buffer->abortWaitSend();
    buffer->abortWaitRecv();
  }
}

/// Somebody who waits for a transfer of `buffer`, for as long as this lives.
class Mesh::Waiting {
 public:
  Waiting(Mesh& mesh, gloo::transport::UnboundBuffer& buffer) : mesh_(mesh), buffer_(buffer) {
    const std::lock_guard lock(mesh_.mutex_);
    expect(!mesh_.cause_);
    mesh_.waited_.push_back(&buffer);
  }
  ~Waiting() {
    const std::lock_guard lock(mesh_.mutex_);
    auto& all = mesh_.waited_;
    all.erase(std::find(all.begin(), all.end(), &buffer_));
  }
  static void expect(bool lives) {
    if (!lives) throw gloo::IoException("the group has failed");
  }

 private:
  Mesh& mesh_;
  gloo::transport::UnboundBuffer& buffer_;
};

void Mesh::wait_for_send(gloo::transport::UnboundBuffer& buffer, milliseconds timeout) {
  const Waiting waiting(*this, buffer);
  Waiting::expect(buffer.waitSend(timeout));
}

void Mesh::wait_for_recv(gloo::transport::UnboundBuffer& buffer, milliseconds timeout) {
  const Waiting waiting(*this, buffer);
  Waiting::expect(buffer.waitRecv(timeout));
}

void Mesh::close_connections() noexcept {
  const SigpipeBlocked quiet;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    try {
      std::byte nothing{};
      const auto buffer = context_->createUnboundBuffer(&nothing, sizeof nothing);
      buffer->recv(peer, kNeverSent);
      buffer->waitRecv(milliseconds(1));
    } catch (const std::exception&) {  // the purpose, or a connection that is closed already
    }
  }
}

std::optional<Cause> Mesh::wait_for_cause(milliseconds budget) {
  std::unique_lock lock(mutex_);
  for (auto left = budget; !cause_ && left > milliseconds(0); left -= kVerdictSlice) {
    caused_.wait_for(lock, kVerdictSlice);
  }
  return cause_;
}

Error Mesh::fail_with(const Cause& cause, const Request& request) {
  fail(cause);
  const Cause first = *wait_for_cause(milliseconds(0));
  return make_error(first.code, request, rank_, first.text, first.culprits);
}

Error Mesh::explain(const Request& request, const std::exception& thrown) {
  if (is_timeout(thrown)) {
    return fail_with({ErrorCode::kTimeout, thrown.what(), {}, {}}, request);  // the group says more
  }
  const std::optional<Cause> told = wait_for_cause(verdict_budget_);
  return fail_with(told ? *told : cause_of(thrown), request);
}

}  // namespace tutti::gloo_backend
