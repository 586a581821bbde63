// NCCL's library, opened while the program runs.
#pragma once

#include <memory>
#include <string>

#include "device/library.h"
#include "plugins/nccl/api.h"
#include "tutti/error.h"

namespace tutti::nccl_backend {

/// Its functions. Threads as NCCL has it: one at a time for each communicator.
class Nccl {
 public:
  /// `setting`: nccl_library, the file of the library, or a folder that holds it: its own, or one
  /// that Python packages are installed in. Empty: the one that the program has opened, else the
  /// system's. Its patch level must be the same on all ranks; NCCL looks at that itself.
  /// Errors  kUnsupported: there is none, or it is too old.
  static std::shared_ptr<const Nccl> open(const std::string& setting);

  std::string version_text() const;  ///< "2.28.9"
  bool at_least(int major, int minor, int patch) const noexcept {
    return version_ >= NCCL_VERSION(major, minor, patch);
  }
  /// What `function` has failed with: "NCCL 2.28.9: ncclAllReduce: unhandled cuda error (...)".
  /// `comm`: may be null.
  Error error(const char* function, ncclResult_t result, ncclComm_t comm) const;

 private:
  explicit Nccl(const std::string& file);
  template <class Function>
  Function* need(const char* symbol) const;

  const device::Library library_;
  const int version_;

 public:
  ncclGetUniqueId_t* const get_unique_id;
  ncclCommInitRankConfig_t* const init_rank;
  ncclCommFinalize_t* const finalize;
  ncclCommDestroy_t* const destroy;
  ncclCommAbort_t* const abort;
  ncclGetErrorString_t* const error_string;
  ncclGetLastError_t* const last_error;
  ncclCommGetAsyncError_t* const async_error;
  ncclRedOpCreatePreMulSum_t* const create_premul_sum;
  ncclRedOpDestroy_t* const destroy_op;
  ncclReduce_t* const reduce;
  ncclBroadcast_t* const broadcast;
  ncclAllReduce_t* const all_reduce;
  ncclReduceScatter_t* const reduce_scatter;
  ncclAllGather_t* const all_gather;
  ncclSend_t* const send;
  ncclRecv_t* const recv;
  ncclGroupStart_t* const group_start;
  ncclGroupEnd_t* const group_end;
  // Since 2.28; null where it is older.
  ncclAlltoAll_t* const all_to_all;
  ncclGather_t* const gather;
  ncclScatter_t* const scatter;
};

}  // namespace tutti::nccl_backend
