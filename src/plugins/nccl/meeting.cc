#include "plugins/nccl/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace tutti::nccl_backend {

namespace {

/// How often those who wait in the store look whether the group has failed.
constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

Store::Timeout Meeting::left() const {
  return std::max(Store::Timeout(1), std::chrono::ceil<Store::Timeout>(end_ - Clock::now()));
}

std::string Meeting::get(const std::string& key) const {
  for (;;) {
    check_();
    try {
      return store_.get(key, std::min(kSlice, left()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout || Clock::now() >= end_) throw;
    }
  }
}

void Meeting::share_devices(const std::string& bus_id, const std::string& host,
                            const std::string& nccl_version, bool may_share) {
  store_.set(fmt::format("nccl/device/{}", rank_), fmt::format("{} of host {}", bus_id, host),
             left());
  std::map<std::string, int> users;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string device = get(fmt::format("nccl/device/{}", rank));
    const auto [user, is_first] = users.try_emplace(device, rank);
    if (is_first || may_share) continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format(
            "ranks {} and {} both use the device {}, and NCCL {} takes one rank for each: give "
            "each rank a device of its own (the one that tutti::local_device() says; tutti run "
            "--gpus-per-rank 1 shows it no other), or use the backend native, which copies "
            "through host memory; NCCL 2.30.3 or later takes several where "
            "NCCL_MULTI_RANK_GPU_ENABLE=1",
            user->second, rank, device, nccl_version),
        {.culprits = {user->second, rank}});
  }
}

ncclUniqueId Meeting::exchange_id(const Nccl& nccl) {
  ncclUniqueId id = {};
  if (rank_ == 0) {
    if (const ncclResult_t result = nccl.get_unique_id(&id); result != ncclSuccess) {
      throw nccl.error("ncclGetUniqueId", result, nullptr);
    }
    store_.set("nccl/id", std::string_view(id.internal, sizeof id.internal), left());
    return id;
  }
  const std::string told = get("nccl/id");
  std::memcpy(id.internal, told.data(), std::min(told.size(), sizeof id.internal));
  return id;
}

}  // namespace tutti::nccl_backend
