#include "device/visible.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace tutti::device {
namespace {

namespace fs = std::filesystem;

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// By the names that CUDA takes: numbers, "GPU-5ebe9f43", "MIG-...".
bool is_device(std::string_view entry) {
  return is_number(entry) || entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

int count_listed(std::string_view list) {
  int count = 0;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    std::string_view entry = list.substr(0, end);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    if (!is_device(entry)) break;
    ++count;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return count;
}

/// The entries of a folder whose names `is_one` takes; 0 if it cannot be read.
template <class IsOne>
int count_entries(const fs::path& folder, const IsOne& is_one) {
  std::error_code error;
  int count = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_one(entry->path().filename().string())) ++count;
  }
  return count;
}

}  // namespace

int count_visible(const std::string* visible, const std::string& root) {
  if (visible != nullptr) return count_listed(*visible);
  // A container may have the nodes of some only, and shows the whole machine in /proc.
  constexpr std::string_view kNode = "nvidia";
  const int nodes = count_entries(fs::path(root) / "dev", [&](std::string_view name) {
    return name.starts_with(kNode) && is_number(name.substr(kNode.size()));
  });
  if (nodes > 0) return nodes;
  return count_entries(fs::path(root) / "proc/driver/nvidia/gpus",
                       [](std::string_view) { return true; });
}

}  // namespace tutti::device
