// What an abort meets: operations that can be given up, and those that cannot.
//
// A blocking call of MPI ends when all ranks have done their part, or never. An operation that may
// be inside one, or whose buffers MPI holds, is *committed*. If the group fails meanwhile and it
// does not end within the grace period, the process ends with code 1, after one line that says why:
// the exception to the promises that no call blocks for ever and that a survivor lives on
// (docs/decisions/0013-mpi-blocking-exits.md).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "tutti/request.h"

namespace tutti::mpi {

class Gate : public std::enable_shared_from_this<Gate> {
 public:
  /// `grace`: how long a committed operation has to end after the group has failed.
  explicit Gate(std::chrono::nanoseconds grace) noexcept : grace_(grace) {}
  /// The group fails. Never blocks.
  void abort(const Cause& cause) noexcept;
  bool is_aborted() const noexcept { return aborted_.load(std::memory_order_seq_cst); }
  /// Throws the cause if the group has failed.
  void check() const;
  /// MPI has reported an error, often the first sign of a death that Tutti is about to notice:
  /// returns once it has, or after a second.
  void await_cause() const noexcept;

  /// While it lives, an operation is committed. Throws the cause if the group has failed.
  class Commitment {
   public:
    Commitment() = default;
    /// `what`: "all_reduce"; a string that stays.
    Commitment(Gate& gate, const char* what);
    Commitment(Commitment&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Commitment& operator=(Commitment&&) = delete;
    ~Commitment() {
      if (gate_ != nullptr) gate_->committed_.fetch_sub(1, std::memory_order_seq_cst);
    }

   private:
    Gate* gate_ = nullptr;
  };

 private:
  void end_process_after_grace(const Cause& cause);

  const std::chrono::nanoseconds grace_;
  std::atomic<bool> aborted_{false};
  std::atomic<int> committed_{0};
  std::atomic<const char*> committed_to_{""};  // the last one, for the line
  mutable std::mutex mutex_;
  std::optional<Error> cause_;
};

}  // namespace tutti::mpi
