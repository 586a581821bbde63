// The GPUs of this host and the ways between them, as NVIDIA's management library (NVML) tells
// them. The library comes with the driver and is opened by name when it is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::cli {

struct GpuFacts {
  std::string name, uuid;
  std::string bus_id;              ///< as /sys/bus/pci/devices has it: "0000:1b:00.0"
  std::uint64_t memory_bytes = 0;  ///< 0: not told
  int numa_node = -1;              ///< -1: not told
  std::vector<int> cores;          ///< that are near it
  int lanes = 0;                   ///< of NVLink that are up
};

struct GpuMap {
  std::string driver, cuda;  ///< versions; the newest CUDA that the driver runs
  std::vector<GpuFacts> gpus;
  /// By two GPUs, in nvidia-smi's words: "SELF", "NV4" (lanes of NVLink), "PIX", "PXB", "PHB",
  /// "NODE", "SYS"; "?" where it is not told.
  std::vector<std::vector<std::string>> ways;
};

/// Errors  kUnsupported: the library is missing, with its package, or knows no driver.
GpuMap read_gpus();

/// For people: a line per GPU, and the matrix as `nvidia-smi topo -m` draws it.
std::string gpus_text(const GpuMap& map);

}  // namespace tutti::cli
