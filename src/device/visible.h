// How many of CUDA's devices this process may see, without a driver.
#pragma once

#include <string>
#include <string_view>

namespace tutti::device {

/// `visible`: CUDA_VISIBLE_DEVICES, or null where it is not set. CUDA sees what stands in it before
/// the first that is no device. `root`: in place of the file system's, in tests.
int count_visible(const std::string* visible, const std::string& root = "/");

}  // namespace tutti::device
