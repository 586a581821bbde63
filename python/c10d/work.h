// An operation of Tutti's as c10d's Work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/hooks.h"
#include "c10d/operands.h"
#include "tutti/process_group.h"

namespace tutti::python {

class Group;

/// What an operation is for torch: for its profiler, and for who asks a Work.
struct Operation {
  c10d::OpType type;
  const char* title;  ///< "tutti:all_reduce", as gloo says "gloo:all_reduce"
  std::uint64_t seq = 0;
  std::chrono::milliseconds timeout = {};
};

/// One operation, or those of a coalesced call.
///
/// No thread is woken when it ends, unless somebody has asked for its future, or nobody holds it
/// any more: then a helper (c10d/helpers.h) calls the future's callbacks, and frees the tensors.
///
/// Lifetime  Keeps the group and the tensors. Letting go of it does not end the operation.
/// Threads   Any, once it has begun.
class Work final : public c10d::Work {
 public:
  Work(std::shared_ptr<Group> group, std::shared_ptr<const CompletionHooks> hooks,
       const Operation& operation, const Tensors& inputs);
  ~Work() override;

  /// What the operation reads and writes, the tensors that are its result, and what a recv fills
  /// in: given before it begins.
  Operands& operands();
  Tensors& outputs();
  MessageInfo& add_info();
  /// Of a call whose result is a list for each rank.
  void set_lists(const std::vector<Tensors>& lists);
  /// All of `works` have to end; with none it has ended.
  void begin(std::vector<tutti::Work> works);
  /// Somebody has waited for it in vain before it had begun: its coalesced call was left, most
  /// likely by an exception, or is used wrongly.
  bool was_awaited_too_early() const { return awaited_too_early_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  Tensors result() override;
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return seq_; }
#ifdef C10D_BACKEND_HAS_HOOKS
  std::chrono::milliseconds getTimeout() const override { return timeout_; }
  std::uint64_t getCompletionKey() const override;
#endif

 private:
  struct State;
  std::shared_ptr<Group> group_;  // outlives works_
  std::shared_ptr<State> state_;
  std::vector<tutti::Work> works_;
  const std::string_view title_;  // "all_reduce"
  std::uint64_t seq_;
  std::chrono::milliseconds timeout_;
  std::atomic<bool> awaited_too_early_ = false;
};

}  // namespace tutti::python
