// The connections among the ranks of one group: a context of Gloo over TCP, and how it ends.
//
// A context of Gloo cannot be told to stop, and survives no failure: a wait that times out closes
// all its connections and fails what is pending. Use is made of that. To *fail* a mesh is to wait
// for a message that nobody sends. Gloo tells those who wait for a transfer, unless it is on its
// way at that moment: they are woken one by one. Everything after that ends with an exception. What
// it means is the *cause*; the first one counts.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plugins/gloo/sigpipe.h"
#include "tutti/backend.h"

namespace tutti::gloo_backend {

using GlooDevice = std::shared_ptr<gloo::transport::Device>;

/// Where the sockets of a rank are: the address at which other hosts reach it, or 127.0.0.1.
std::string address_of(const GroupSpec& spec);

/// The sockets and the thread that serve all groups of one rank, at its address.
/// Errors    kSystem.
GlooDevice make_device(const GroupSpec& spec);

/// An Error in the form of all others: "all_reduce #41 (rank 3) at train.cc:88: TEXT."
Error make_error(ErrorCode code, const Request& request, int rank, const std::string& text,
                 std::vector<int> culprits = {});

/// `request.stall` as Gloo counts it: it has no word for never, and 0 means that.
std::chrono::milliseconds stall_of(const Request& request) noexcept;

/// Threads   fail: any, at any time. run: any; one collective at a time is the caller's business.
class Mesh {
 public:
  /// Meets the other ranks in `spec.store` and connects to them; a group of one needs neither.
  /// Errors  kTimeout, kSystem, and what the store throws.
  Mesh(const GroupSpec& spec, GlooDevice device);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  const GlooDevice& device() const noexcept { return device_; }
  /// Null in a group of one.
  std::shared_ptr<gloo::Context> context() const noexcept { return context_; }

  void fail(const Cause& cause) noexcept;

  /// Wait for one transfer; the only places where Gloo is waited for.
  /// Errors  gloo::Exception, also when the mesh fails: see run.
  void wait_for_send(gloo::transport::UnboundBuffer& buffer, std::chrono::milliseconds timeout);
  void wait_for_recv(gloo::transport::UnboundBuffer& buffer, std::chrono::milliseconds timeout);

  /// Calls Gloo for `request`; throws what the mesh has failed with, before or in `operation`.
  template <class Operation>
  void run(const Request& request, Operation&& operation) {
    admit(request);
    const SigpipeBlocked quiet;
    try {
      operation();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& thrown) {
      throw explain(request, thrown);
    }
  }
  /// What an exception of Gloo means for `request`; the mesh fails with it.
  Error explain(const Request& request, const std::exception& thrown);

 private:
  void admit(const Request& request) const;
  void connect(const GroupSpec& spec);
  void close_connections() noexcept;
  class Waiting;
  std::optional<Cause> wait_for_cause(std::chrono::milliseconds budget);
  /// Fails with `cause` unless it has failed already; what that means for `request`.
  Error fail_with(const Cause& cause, const Request& request);

  const int rank_;
  const int ranks_;
  const std::chrono::milliseconds verdict_budget_;
  GlooDevice device_;
  std::shared_ptr<gloo::Context> context_;

  mutable std::mutex mutex_;
  std::condition_variable caused_;
  std::optional<Cause> cause_;                           // mutex_
  std::vector<gloo::transport::UnboundBuffer*> waited_;  // mutex_
};

}  // namespace tutti::gloo_backend
