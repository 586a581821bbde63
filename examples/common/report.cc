#include "common/report.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

namespace {

double in_seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// FNV-1a over the bytes of all buffers.
std::uint64_t buffer_hash(const torch::nn::Module& net) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const torch::Tensor& buffer : net.buffers()) {
    const torch::Tensor values = buffer.cpu().contiguous();
    const auto* const bytes = static_cast<const std::uint8_t*>(values.data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return hash;
}

std::vector<double> shares_of(const std::vector<std::uint64_t>& counts) {
  const auto all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  std::vector<double> shares;
  for (const std::uint64_t count : counts) {
    shares.push_back(all == 0 ? 0 : static_cast<double>(count) / static_cast<double>(all));
  }
  return shares;
}

bool report_hash(const char* name, std::uint64_t hash, tutti::ProcessGroup& world) {
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world.world_size()));
  world.all_gather(hash, hashes);
  const bool identical = std::count(hashes.begin(), hashes.end(), hash) == world.world_size();
  if (world.rank() == 0) {
    std::printf("%s hash %016llx%s\n", name, static_cast<unsigned long long>(hash),
                identical ? " on every rank" : ", BUT THE RANKS DIFFER");
    std::fflush(stdout);
  }
  return identical;
}

}  // namespace

Speed Meter::speed(const tutti::DataParallelStats& stats) const {
  const double elapsed = in_seconds(Clock::now() - begin_);
  return {samples_ / elapsed, in_seconds(stats.exposed) / elapsed};
}

void share_buffers(const torch::nn::Module& net, tutti::ProcessGroup& world) {
  for (const torch::Tensor& buffer : net.buffers()) world.broadcast(buffer);
}

bool report(const torch::nn::Module& net, const Speed& own, const tutti::DataParallelStats& stats,
            const std::string& result, tutti::ProcessGroup& world) {
  const auto ranks = static_cast<std::size_t>(world.world_size());
  const std::vector<double> own_row = {own.samples_per_second, own.communicating};
  std::vector<double> rows(2 * ranks);
  world.all_gather(own_row, rows);
  if (world.rank() == 0) {
    const std::vector<double> last = shares_of(stats.last_to_arrive);
    std::printf("rank  samples/s  communicating  last to arrive\n");
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::printf("%4zu  %9.0f  %11.1f %%  %12.1f %%\n", rank, rows[2 * rank],
                  100 * rows[2 * rank + 1], 100 * last[rank]);
    }
    std::printf("%s\n", result.c_str());
  }
  const bool same_buffers = net.buffers().empty() || report_hash("buffer", buffer_hash(net), world);
  return report_hash("parameter", tutti::parameter_hash(net), world) && same_buffers;
}
