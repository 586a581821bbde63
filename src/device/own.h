// Whether each rank of a world can have a device of its own, as NCCL wants it.
#pragma once

#include <span>
#include <string>

namespace tutti::device {

/// What a rank tells the others before there is a world.
struct SeenDevices {
  int count = 0;        ///< that it may use; 0: none
  int local_ranks = 0;  ///< of its host
  std::string host;
  std::string list;  ///< CUDA_VISIBLE_DEVICES; "all" if it is not set
  bool has_nccl = false;

  std::string text() const;                           ///< one line
  static SeenDevices parse(const std::string& line);  ///< of what `text` gave; else no device
  friend bool operator==(const SeenDevices&, const SeenDevices&) = default;
};

/// Why NCCL cannot serve these ranks; empty: it can.
std::string why_no_nccl(std::span<const SeenDevices> ranks);

}  // namespace tutti::device
