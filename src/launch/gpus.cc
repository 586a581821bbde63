#include "launch/gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "tutti/error.h"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDevices = "/dev", kDevice = "nvidia";
constexpr std::string_view kOfDriver = "/proc/driver/nvidia/gpus";
constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES";

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 6 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// A container may have devices of fewer than the driver knows: those count where there are some.
std::size_t count_gpus(const std::string& root) {
  std::size_t devices = 0, known = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root + std::string(kDevices), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kDevice) && is_number(std::string_view(name).substr(kDevice.size())))
      ++devices;
  }
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator(root + std::string(kOfDriver), error))
    ++known;
  return devices > 0 ? devices : known;
}

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    std::string entry = list.substr(begin, end - begin);
    std::erase(entry, ' ');
    entries.push_back(std::move(entry));
    begin = end + 1;
  }
  return entries;
}

std::string plural(std::size_t count) {
  return fmt::format("{} GPU{}", count, count == 1 ? "" : "s");
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

Gpus visible_gpus(const Environment& environment, const std::string& root) {
  Gpus gpus;
  const std::size_t count = count_gpus(root);
  if (count == 0) {
    gpus.why = fmt::format("no driver of NVIDIA has a GPU here (neither {}/{}0 nor {} is there)",
                           kDevices, kDevice, kOfDriver);
    return gpus;
  }
  const auto visible = environment.find(std::string(kVisible));
  if (visible == environment.end()) {
    for (std::size_t i = 0; i < count; ++i) gpus.names.push_back(std::to_string(i));
    return gpus;
  }
  for (const std::string& entry : entries_of(visible->second)) {
    const bool is_index = is_number(entry) && std::stoul(entry) < count;
    if (!is_index && !entry.starts_with("GPU-") && !entry.starts_with("MIG-")) break;
    gpus.names.push_back(entry);
  }
  if (gpus.names.empty()) {
    gpus.why = fmt::format("{}={} hides {}", kVisible, visible->second,
                           count == 1 ? "the one there is" : fmt::format("all {}", count));
  }
  return gpus;
}

int ranks_by_gpus(const Gpus& gpus, int gpus_per_rank) {
  if (gpus.names.empty()) {
    refuse(fmt::format("-n gpu: there is no GPU: {}; give a number, 'auto' or 'cpu'", gpus.why));
  }
  const auto each = static_cast<std::size_t>(std::max(gpus_per_rank, 1));
  if (gpus.names.size() % each != 0) {
    refuse(fmt::format("-n gpu --gpus-per-rank {}: {} cannot be dealt out so; give -n {}", each,
                       plural(gpus.names.size()),
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
