// The devices of CUDA on this host, and which of them a process sees, without a driver.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/config.h"

namespace tutti::device {

inline constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

/// CUDA_VISIBLE_DEVICES; null where it is not set.
const std::string* visible_list(const Environment& environment);

/// Those that the driver has here. `root`: in front of the paths that are looked at; for tests.
std::size_t count_devices(const std::string& root = "");

/// Those that CUDA shows, by the names that CUDA_VISIBLE_DEVICES has for them: all, or what stands
/// in `list` before the first entry that is none.
std::vector<std::string> visible_devices(const std::string* list, const std::string& root = "");

}  // namespace tutti::device
