#include "gpus.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "base/rank_list.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

// ---- NVML as far as it is used: its binary interface is frozen, its header comes with CUDA.

using Code = int;
constexpr Code kGood = 0;
using Handle = void*;

struct PciInfo {
  char old_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
constexpr unsigned kMostLanes = 36, kToGpu = 0, kToSwitch = 2;  // what is at a lane's other end
constexpr std::pair<unsigned, const char*> kAncestors[] = {{0, "PIX"},  {10, "PIX"},  {20, "PXB"},
                                                           {30, "PHB"}, {40, "NODE"}, {50, "SYS"}};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kUnsupported, message);
}

class Nvml {
 public:
  Nvml() : library_(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL), &::dlclose) {
    if (library_ == nullptr) {
      const char* const reason = ::dlerror();
      refuse(
          fmt::format("cannot load {} ({}): it comes with NVIDIA's driver (Debian: the package "
                      "libnvidia-ml1; in a container: a run-time that hands the driver on)",
                      kLibrary, reason != nullptr ? reason : "unknown reason"));
    }
    const auto init = find<Code()>("nvmlInit_v2");
    if (init == nullptr) refuse(fmt::format("{} is no NVML: nvmlInit_v2 is missing", kLibrary));
    if (const Code code = init(); code != kGood)
      refuse(fmt::format("{} is here, and the driver is not: {}", kLibrary, explain(code)));
  }
  ~Nvml() { (void)call<Code()>("nvmlShutdown"); }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Whether the driver has such a function and it has answered.
  template <class Function, class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto function = find<Function>(name);
    return function != nullptr && function(arguments...) == kGood;
  }
  template <std::size_t Bytes>
  std::string text(const char* name, Handle device) const {
    std::array<char, Bytes> buffer = {};
    const unsigned bytes = Bytes - 1;
    return call<Code(Handle, char*, unsigned)>(name, device, buffer.data(), bytes) ? buffer.data()
                                                                                   : "";
  }

 private:
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_.get(), name));
  }
  std::string explain(Code code) const {
    const auto words = find<const char*(Code)>("nvmlErrorString");
    return fmt::format("{} ({})", words != nullptr ? words(code) : "error", code);
  }

  std::unique_ptr<void, int (*)(void*)> library_;
};

// ---- What is asked

std::string cuda_version(const Nvml& nvml) {
  int version = 0;
  if (!nvml.call<Code(int*)>("nvmlSystemGetCudaDriverVersion_v2", &version)) return "?";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string driver_version(const Nvml& nvml) {
  std::array<char, 81> version = {};
  const unsigned bytes = 80;
  const bool told =
      nvml.call<Code(char*, unsigned)>("nvmlSystemGetDriverVersion", version.data(), bytes);
  return told ? version.data() : "?";
}

std::string bus_id_of(const PciInfo& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

int numa_node_of(const std::string& bus_id) {
  std::ifstream file("/sys/bus/pci/devices/" + bus_id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

std::vector<int> cores_near(const Nvml& nvml, Handle device) {
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 32> words = {};
  std::vector<int> cores;
  if (!nvml.call<Code(Handle, unsigned, unsigned long*)>(
          "nvmlDeviceGetCpuAffinity", device, static_cast<unsigned>(words.size()), words.data()))
    return cores;
  for (unsigned core = 0; core < words.size() * kBits; ++core)
    if ((words[core / kBits] >> (core % kBits) & 1) != 0) cores.push_back(static_cast<int>(core));
  return cores;
}

GpuFacts facts_of(const Nvml& nvml, Handle device) {
  GpuFacts facts;
  facts.name = nvml.text<97>("nvmlDeviceGetName", device);
  facts.uuid = nvml.text<97>("nvmlDeviceGetUUID", device);
  Memory memory = {};
  if (nvml.call<Code(Handle, void*)>("nvmlDeviceGetMemoryInfo", device, &memory))
    facts.memory_bytes = memory.total;
  PciInfo pci = {};
  if (nvml.call<Code(Handle, void*)>("nvmlDeviceGetPciInfo_v3", device, &pci)) {
    facts.bus_id = bus_id_of(pci);
    facts.numa_node = numa_node_of(facts.bus_id);
  }
  facts.cores = cores_near(nvml, device);
  return facts;
}

/// The lanes of a GPU that are up: to switches, and by the bus id at the other end.
struct Lanes {
  int to_switches = 0;
  std::vector<std::string> ends;
};

Lanes lanes_of(const Nvml& nvml, Handle device) {
  Lanes lanes;
  for (unsigned lane = 0; lane < kMostLanes; ++lane) {
    unsigned is_up = 0, end = kToGpu;
    if (!nvml.call<Code(Handle, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState", device, lane,
                                                      &is_up) ||
        is_up == 0)
      continue;
    nvml.call<Code(Handle, unsigned, unsigned*)>("nvmlDeviceGetNvLinkRemoteDeviceType", device,
                                                 lane, &end);
    PciInfo pci = {};
    nvml.call<Code(Handle, unsigned, void*)>("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, lane,
                                             &pci);
    if (end == kToSwitch) {
      ++lanes.to_switches;
    } else {
      lanes.ends.push_back(bus_id_of(pci));
    }
  }
  return lanes;
}

/// Lanes between two GPUs: their own, or by switches as many as the narrower has.
int lanes_between(const Lanes& lanes, const Lanes& others, const std::string& other) {
  return static_cast<int>(std::count(lanes.ends.begin(), lanes.ends.end(), other)) +
         std::min(lanes.to_switches, others.to_switches);
}

std::string ancestor_of(const Nvml& nvml, Handle one, Handle other) {
  unsigned level = 0;
  if (nvml.call<Code(Handle, Handle, unsigned*)>("nvmlDeviceGetTopologyCommonAncestor", one, other,
                                                 &level)) {
    for (const auto& [known, word] : kAncestors)
      if (known == level) return word;
  }
  return "?";
}

std::string memory_text(std::uint64_t bytes) {
  return bytes == 0 ? "memory not told" : fmt::format("{} MiB", bytes >> 20);
}

/// The peers by NVLink: "18 lanes of NVLink: GPU1 (18)".
std::string lanes_text(const GpuMap& map, std::size_t gpu) {
  if (map.gpus[gpu].lanes == 0) return "no NVLink";
  std::string peers;
  for (std::size_t other = 0; other < map.gpus.size(); ++other) {
    const std::string& way = map.ways[gpu][other];
    if (way.starts_with("NV"))
      peers += fmt::format("{}GPU{} ({})", peers.empty() ? ": " : ", ", other, way.substr(2));
  }
  return fmt::format("{} lane{} of NVLink{}", map.gpus[gpu].lanes,
                     map.gpus[gpu].lanes == 1 ? "" : "s", peers);
}

/// "0-3,64": one word.
std::string cores_text(const GpuFacts& gpu) {
  std::string text = gpu.cores.empty() ? "N/A" : format_ranks(gpu.cores);
  std::erase(text, ' ');
  return text;
}

std::string matrix_text(const GpuMap& map) {
  std::string text = "      ";
  for (std::size_t gpu = 0; gpu < map.gpus.size(); ++gpu)
    text += fmt::format("  {:<5}", fmt::format("GPU{}", gpu));
  text += "  CPU affinity  NUMA affinity\n";
  for (std::size_t gpu = 0; gpu < map.gpus.size(); ++gpu) {
    text += fmt::format("{:<6}", fmt::format("GPU{}", gpu));
    for (const std::string& way : map.ways[gpu]) text += fmt::format("  {:<5}", way);
    const int node = map.gpus[gpu].numa_node;
    text += fmt::format("  {:<12}  {}\n", cores_text(map.gpus[gpu]),
                        node < 0 ? "N/A" : std::to_string(node));
  }
  return text +
         "NV#: so many lanes of NVLink. PIX: at most one PCIe bridge; PXB: several; PHB: by the "
         "processor's host bridge; NODE: by several of one NUMA node; SYS: between NUMA nodes.\n";
}

}  // namespace

GpuMap read_gpus() {
  const Nvml nvml;
  GpuMap map{.driver = driver_version(nvml), .cuda = cuda_version(nvml), .gpus = {}, .ways = {}};
  unsigned count = 0;
  nvml.call<Code(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  std::vector<Handle> devices;
  std::vector<Lanes> lanes;
  for (unsigned i = 0; i < count; ++i) {
    Handle device = nullptr;
    if (!nvml.call<Code(unsigned, Handle*)>("nvmlDeviceGetHandleByIndex_v2", i, &device)) continue;
    devices.push_back(device);
    lanes.push_back(lanes_of(nvml, device));
    map.gpus.push_back(facts_of(nvml, device));
    map.gpus.back().lanes = lanes.back().to_switches + static_cast<int>(lanes.back().ends.size());
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    std::vector<std::string>& row = map.ways.emplace_back();
    for (std::size_t j = 0; j < devices.size(); ++j) {
      const int between = i == j ? 0 : lanes_between(lanes[i], lanes[j], map.gpus[j].bus_id);
      row.push_back(i == j        ? "SELF"
                    : between > 0 ? fmt::format("NV{}", between)
                                  : ancestor_of(nvml, devices[i], devices[j]));
    }
  }
  return map;
}

std::string gpus_text(const GpuMap& map) {
  std::string text = fmt::format("driver of NVIDIA {}, for CUDA up to {}: {} GPU{}\n", map.driver,
                                 map.cuda, map.gpus.size(), map.gpus.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < map.gpus.size(); ++i) {
    const GpuFacts& gpu = map.gpus[i];
    text += fmt::format("  GPU{}: {}, {}, at {}, {}\n        NUMA node {}, near cores {}; {}\n", i,
                        gpu.name, memory_text(gpu.memory_bytes), gpu.bus_id, gpu.uuid,
                        gpu.numa_node < 0 ? "not told" : std::to_string(gpu.numa_node),
                        cores_text(gpu), lanes_text(map, i));
  }
  return map.gpus.empty() ? text : text + matrix_text(map);
}

}  // namespace tutti::cli
