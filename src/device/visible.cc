#include "device/visible.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace tutti::device {
namespace {

namespace fs = std::filesystem;

/// Of few digits: no host has so many devices.
bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 6 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Names are "GPU-5ebe9f43" and "MIG-..."; a number of `count` devices, where that is known.
bool is_device(const std::string& entry, std::size_t count) {
  if (is_number(entry)) return count == 0 || std::stoul(entry) < count;
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
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

/// The entries of a folder whose names `is_one` takes; 0 if it cannot be read.
template <class IsOne>
std::size_t count_entries(const std::string& folder, const IsOne& is_one) {
  std::error_code error;
  std::size_t count = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_one(entry->path().filename().string())) ++count;
  }
  return count;
}

}  // namespace

const std::string* visible_list(const Environment& environment) {
  const auto entry = environment.find(kVisible);
  return entry == environment.end() ? nullptr : &entry->second;
}

std::size_t count_devices(const std::string& root) {
  // A container may have the nodes of some only, and shows the whole machine in /proc.
  constexpr std::string_view kNode = "nvidia";
  const std::size_t nodes = count_entries(root + "/dev", [&](std::string_view name) {
    return name.starts_with(kNode) && is_number(name.substr(kNode.size()));
  });
  if (nodes > 0) return nodes;
  return count_entries(root + "/proc/driver/nvidia/gpus", [](std::string_view) { return true; });
}

std::vector<std::string> visible_devices(const std::string* list, const std::string& root) {
  const std::size_t count = count_devices(root);
  std::vector<std::string> devices;
  if (list == nullptr) {
    for (std::size_t i = 0; i < count; ++i) devices.push_back(std::to_string(i));
    return devices;
  }
  for (std::string& entry : entries_of(*list)) {
    if (!is_device(entry, count)) break;
    devices.push_back(std::move(entry));
  }
  return devices;
}

}  // namespace tutti::device
