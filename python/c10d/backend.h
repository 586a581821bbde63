// The backend "tutti" of torch.distributed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "c10d/group.h"
#include "c10d/hooks.h"
#include "c10d/operands.h"
#include "c10d/work.h"

namespace tutti::python {

/// c10d::Backend over a group of Tutti's.
///
/// Threads   Any: calls of several threads on one group are put one after the other, in the order
///           in which they come, which must be the same on all ranks.
class Backend final : public c10d::Backend {
 public:
  template <class T>
  using Ref = c10::intrusive_ptr<T>;

  explicit Backend(const c10d::DistributedBackendOptions& options);

  const std::string getBackendName() const override { return "tutti"; }
  Ref<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// As gloo: batch_isend_irecv then has a Work for each message. A coalesced call is taken.
  bool supportsCoalescing() const override { return false; }
  void startCoalescing() override;
  Ref<c10d::Work> endCoalescing() override;
  void setSequenceNumberForGroup() override {}  // begins at 0 on all ranks
  std::uint64_t getSequenceNumberForGroup() override { return seq_; }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  Ref<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Ref<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Ref<c10d::Work> allreduce_sparse(Tensors& tensors,
                                   const c10d::AllreduceOptions& options) override;
  Ref<c10d::Work> allreduce_coalesced(Tensors& tensors,
                                      const c10d::AllreduceCoalescedOptions& options) override;
  Ref<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Ref<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions& options) override;
  Ref<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::AllgatherOptions& options) override;
  Ref<c10d::Work> allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override;
  Ref<c10d::Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) override;
  Ref<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs,
                         const c10d::GatherOptions& options) override;
  Ref<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                          const c10d::ScatterOptions& options) override;
  Ref<c10d::Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ReduceScatterOptions& options) override;
  Ref<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) override;
  Ref<c10d::Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  Ref<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                std::vector<std::int64_t>& output_splits,
                                std::vector<std::int64_t>& input_splits,
                                const c10d::AllToAllOptions& options) override;
  Ref<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs,
                           const c10d::AllToAllOptions& options) override;
  Ref<c10d::Work> barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  Ref<c10d::Work> send(Tensors& tensors, int to, int tag) override;
  Ref<c10d::Work> recv(Tensors& tensors, int from, int tag) override;
  Ref<c10d::Work> recvAnysource(Tensors& tensors, int tag) override;
#ifdef C10D_BACKEND_HAS_HOOKS  // 2.15 and newer
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t number, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(std::int64_t number) override { completions_->remove(number); }
  // What is not there: each says what is instead.
  Ref<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  Ref<c10d::Work> reconfigure(const c10d::ReconfigureOptions& options) override;
  Ref<c10d::Backend> shrink(const std::vector<std::int64_t>& ranks, int flags,
                            const Ref<Options>& options) override;
  Ref<c10d::Backend> merge(const Ref<c10d::Store>& store, const Ref<Options>& options,
                           const int& rank, const int& size) override;
  void suspend() override;
  void resume() override;
  Ref<c10d::Work> gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                     const c10d::GatherOptions& options) override;
#endif

  std::optional<Error> failure() { return group_->failure(); }
  /// The number in torch's group of all ranks of each rank of this group; empty for that group.
  const std::vector<std::int64_t>& global_ranks() const { return global_ranks_; }

 private:
  /// A call that has not been submitted: its Work, or that of the coalesced call it is part of,
  /// which ends with the parts before where one is refused.
  struct Call {
    Call(Ref<Work> its_work, bool blocks, Backend* coalescing = nullptr)
        : work(std::move(its_work)), is_blocking(blocks), batch_of(coalescing) {}
    Call(Call&& other) noexcept
        : work(std::move(other.work)),
          is_blocking(other.is_blocking),
          batch_of(std::exchange(other.batch_of, nullptr)) {}
    ~Call() {
      if (batch_of != nullptr) batch_of->end_batch();
    }
    Operands& operands() { return work->operands(); }

    Ref<Work> work;
    bool is_blocking;
    Backend* batch_of;  ///< null: it is no part of one, or has been handed over
  };
  /// Of a call. That of the group is none of its own: then a circle of waits is a deadlock.
  struct CallTimeout {
    std::chrono::milliseconds time;
    bool is_of_group;
    operator std::chrono::milliseconds() const { return time; }
    operator Timeout() const { return is_of_group ? Timeout() : Timeout(time); }
  };
  CallTimeout timeout_or_own(std::chrono::milliseconds timeout) const;
  Call call(c10d::OpType type, const char* title, bool is_async, std::chrono::milliseconds timeout,
            const Tensors& inputs, const Tensors& outputs);
  template <class Submit>
  Ref<c10d::Work> submit(Call call, const Submit& submit);
  template <class Submit>
  Ref<c10d::Work> submit_each(Call call, std::size_t count, const Submit& submit);
  template <class Submit>
  Ref<c10d::Work> message(Call call, const Submit& submit);
  Ref<c10d::Work> receive(c10d::OpType type, const char* title, Tensors& tensors, int from,
                          int tag);
  /// Runs `call`, whose errors become torch's, and are noted.
  template <class Run>
  void run(const Run& call);
  Ref<c10d::Work> hand_over(Call& call, std::vector<tutti::Work> works);
  /// Begins what there is of a coalesced call; null where there is none.
  Ref<Work> end_batch();
  void end_left_batch();
  void check_list(const std::vector<Tensors>& lists, const at::Tensor& one) const;

  /// What startCoalescing has begun: calls of its thread are parts of it.
  struct Batch {
    Ref<Work> work;
    std::thread::id thread = std::this_thread::get_id();
    bool is_counted = false;
    std::vector<tutti::Work> works = {};
  };

  Ref<Options> options_;
  std::vector<std::int64_t> global_ranks_;
  std::shared_ptr<Group> group_;
  std::timed_mutex submitting_;
  std::mutex messaging_;
  const std::shared_ptr<CompletionHooks> completions_ = std::make_shared<CompletionHooks>();
  std::mutex batching_;  // batch_
  std::optional<Batch> batch_;
  std::atomic<std::uint64_t> seq_ = 0;
};

}  // namespace tutti::python
