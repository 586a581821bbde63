// How many descriptors this process has open: what a test leaves behind.
#pragma once

#include <filesystem>
#include <iterator>

namespace tutti {

inline int open_descriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                        std::filesystem::directory_iterator()));
}

}  // namespace tutti
