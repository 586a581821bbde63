#include "plugins/nccl/library.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace tutti::nccl_backend {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libnccl.so.2";
constexpr device::Library::About kAbout = {
    "NCCL's library", "TUTTI_NCCL_LIBRARY",
    "install NVIDIA's package libnccl2, or the Python package nvidia-nccl-cu12 or -cu13 (pip "
    "install)"};
/// The first whose calls need not block, so that nobody is inside NCCL when it is told to stop.
constexpr int kOldest[] = {2, 14, 0};

std::string text_of(int major, int minor, int patch) {
  return fmt::format("{}.{}.{}", major, minor, patch);
}

/// Of a code of ncclGetVersion, which was another one up to 2.8.
std::string version_text_of(int code) {
  if (code < 10000) return text_of(code / 1000, code % 1000 / 100, code % 100);
  return text_of(code / 10000, code % 10000 / 100, code % 100);
}

/// Where a folder may have it: itself, a package of NVIDIA's, what such packages are in.
std::string file_in(const fs::path& folder) {
  for (const char* const within :
       {"", "lib", "nccl/lib", "nvidia/nccl/lib", "lib64", "lib/x86_64-linux-gnu"}) {
    std::error_code error;
    const fs::path file = folder / within / kFile;
    if (fs::exists(file, error)) return file.string();
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("NCCL's library {} is not in {}, nor in its folders lib, nccl/lib and "
                          "nvidia/nccl/lib: name another folder, or the file itself, in {}",
                          kFile, folder.string(), kAbout.setting));
}

std::string file_of(const std::string& setting) {
  if (setting.empty()) return kFile;
  std::error_code error;
  return fs::is_directory(setting, error) ? file_in(setting) : setting;
}

/// Older ones may lack what is needed below: they are refused before.
int version_of(const device::Library& library) {
  int version = 0;
  const ncclResult_t result = library.need<ncclGetVersion_t>("ncclGetVersion")(&version);
  if (result == ncclSuccess && version >= NCCL_VERSION(kOldest[0], kOldest[1], kOldest[2])) {
    return version;
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("NCCL's library {} is of version {}, and {} or later is needed: {}, or "
                  "name another file in {}",
                  library.file(), version_text_of(version),
                  text_of(kOldest[0], kOldest[1], kOldest[2]), kAbout.remedy, kAbout.setting));
}

ErrorCode code_of(ncclResult_t result) noexcept {
  switch (result) {
    case ncclRemoteError:
      return ErrorCode::kPeerLost;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return ErrorCode::kInvalidArgument;
    case ncclSuccess:
    case ncclUnhandledCudaError:
    case ncclSystemError:
    case ncclInternalError:
    case ncclInProgress:
      break;
  }
  return ErrorCode::kSystem;
}

}  // namespace

std::shared_ptr<const Nccl> Nccl::open(const std::string& setting) {
  return std::shared_ptr<const Nccl>(new Nccl(file_of(setting)));
}

template <class Function>
Function* Nccl::need(const char* symbol) const {
  if (auto* const found = library_.find<Function>(symbol)) return found;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("NCCL's library {} (version {}) has no {}: it is broken, or another "
                          "library; {}, or name another file in {}",
                          library_.file(), version_text(), symbol, kAbout.remedy, kAbout.setting));
}

Nccl::Nccl(const std::string& file)
    : library_(file, kAbout),
      version_(version_of(library_)),
      get_unique_id(need<ncclGetUniqueId_t>("ncclGetUniqueId")),
      init_rank(need<ncclCommInitRankConfig_t>("ncclCommInitRankConfig")),
      finalize(need<ncclCommFinalize_t>("ncclCommFinalize")),
      destroy(need<ncclCommDestroy_t>("ncclCommDestroy")),
      abort(need<ncclCommAbort_t>("ncclCommAbort")),
      error_string(need<ncclGetErrorString_t>("ncclGetErrorString")),
      last_error(need<ncclGetLastError_t>("ncclGetLastError")),
      async_error(need<ncclCommGetAsyncError_t>("ncclCommGetAsyncError")),
      create_premul_sum(need<ncclRedOpCreatePreMulSum_t>("ncclRedOpCreatePreMulSum")),
      destroy_op(need<ncclRedOpDestroy_t>("ncclRedOpDestroy")),
      reduce(need<ncclReduce_t>("ncclReduce")),
      broadcast(need<ncclBroadcast_t>("ncclBroadcast")),
      all_reduce(need<ncclAllReduce_t>("ncclAllReduce")),
      reduce_scatter(need<ncclReduceScatter_t>("ncclReduceScatter")),
      all_gather(need<ncclAllGather_t>("ncclAllGather")),
      send(need<ncclSend_t>("ncclSend")),
      recv(need<ncclRecv_t>("ncclRecv")),
      group_start(need<ncclGroupStart_t>("ncclGroupStart")),
      group_end(need<ncclGroupEnd_t>("ncclGroupEnd")),
      all_to_all(library_.find<ncclAlltoAll_t>("ncclAlltoAll")),
      gather(library_.find<ncclGather_t>("ncclGather")),
      scatter(library_.find<ncclScatter_t>("ncclScatter")) {}

std::string Nccl::version_text() const { return version_text_of(version_); }

Error Nccl::error(const char* function, ncclResult_t result, ncclComm_t comm) const {
  const char* const what = error_string(result);
  const char* const more = comm != nullptr ? last_error(comm) : nullptr;
  const bool says_more = more != nullptr && *more != '\0';
  return Error(code_of(result),
               fmt::format("NCCL {}: {} failed: {}{}; NCCL_DEBUG=INFO makes it say more",
                           version_text(), function, what != nullptr ? what : "no reason given",
                           says_more ? fmt::format(" ({})", more) : ""));
}

}  // namespace tutti::nccl_backend
