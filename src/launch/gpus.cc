#include "launch/gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "device/visible.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

std::string plural(std::size_t count) {
  return fmt::format("{} GPU{}", count, count == 1 ? "" : "s");
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

Gpus visible_gpus(const Environment& environment, const std::string& root) {
  const std::size_t count = device::count_devices(root);
  if (count == 0) {
    return {{},
            "no driver of NVIDIA has a GPU here (neither /dev/nvidia0 nor /proc/driver/nvidia/gpus "
            "is there)"};
  }
  const std::string* const list = device::visible_list(environment);
  Gpus gpus{device::visible_devices(list, root), ""};
  if (gpus.names.empty()) {
    gpus.why = fmt::format("{}={} hides {}", device::kVisible, *list,
                           count == 1 ? "the one there is" : fmt::format("all {}", count));
  }
  return gpus;
}

int ranks_by_gpus(std::string_view word, const Gpus& gpus, int gpus_per_rank) {
  if (gpus.names.empty()) {
    refuse(
        fmt::format("{} gpu: there is no GPU: {}; give a number, 'auto' or 'cpu'", word, gpus.why));
  }
  const auto each = static_cast<std::size_t>(std::max(gpus_per_rank, 1));
  if (gpus.names.size() % each != 0) {
    refuse(fmt::format("{0} gpu --gpus-per-rank {1}: {2} cannot be dealt out so; give {0} {3}",
                       word, each, plural(gpus.names.size()),
                       std::max<std::size_t>(gpus.names.size() / each, 1)));
  }
  return static_cast<int>(gpus.names.size() / each);
}

std::vector<std::string> share_gpus(const Gpus& gpus, int ranks, int gpus_per_rank) {
  const auto each = static_cast<std::size_t>(gpus_per_rank);
  const std::size_t needed = static_cast<std::size_t>(ranks) * each;
  if (gpus.names.size() < needed) {
    refuse(fmt::format("--gpus-per-rank {}: {} rank{} {}, and {}", each, ranks,
                       ranks == 1 ? " needs" : "s need", plural(needed),
                       gpus.names.empty()
                           ? "there is none: " + gpus.why
                           : fmt::format("{} can be seen here: {}", gpus.names.size(),
                                         fmt::join(gpus.names, ","))));
  }
  std::vector<std::string> shares;
  for (auto next = gpus.names.begin(); shares.size() < static_cast<std::size_t>(ranks);) {
    const auto end = next + static_cast<std::ptrdiff_t>(each);
    shares.push_back(fmt::format("{}", fmt::join(next, end, ",")));
    next = end;
  }
  return shares;
}

}  // namespace tutti::launch
