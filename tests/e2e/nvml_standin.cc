// A stand-in for NVIDIA's management library, for tests alone: four GPUs that are not there. GPU 0
// and 1 have two lanes of NVLink to each other; 2 and 3 have six and four to switches.
// NVML_STANDIN_INIT is what nvmlInit_v2 answers.
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotSupported = 3;
struct Device {
  unsigned bus;
  int to_switches;
};
Device devices[] = {{0x1b, 0}, {0x1c, 0}, {0x8a, 6}, {0x8b, 4}};
struct PciInfo {
  char old_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};

unsigned index_of(void* device) {
  return static_cast<unsigned>(static_cast<Device*>(device) - devices);
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* const answer = std::getenv("NVML_STANDIN_INIT");
  return answer == nullptr ? 0 : std::atoi(answer);
}
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  std::strncpy(version, "580.0.stand-in", bytes);
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 4;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned bytes) {
  std::strncpy(name, "Stand-in GPU", bytes);
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned bytes) {
  std::strncpy(uuid, "GPU-0", bytes);
  uuid[4] = static_cast<char>('0' + index_of(device));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, void* room) {
  auto* const memory = static_cast<Memory*>(room);
  if (index_of(device) == 3) return kNotSupported;
  memory->total = 80ULL << 30;
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, void* room) {
  auto* const pci = static_cast<PciInfo*>(room);
  pci->bus = static_cast<Device*>(device)->bus;
  return 0;
}
int nvmlDeviceGetCpuAffinity(void* device, unsigned words, unsigned long* set) {
  if (words < 2) return kNotSupported;
  set[0] = index_of(device) < 2 ? 0xf : 0xf0;
  if (index_of(device) >= 2) set[1] = 1;  // core 64
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned lane, unsigned* is_up) {
  if (lane >= 18) return kNotSupported;
  const int switches = static_cast<Device*>(device)->to_switches;
  *is_up = lane < static_cast<unsigned>(switches == 0 ? 2 : switches) ? 1 : 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned, unsigned* type) {
  *type = static_cast<Device*>(device)->to_switches > 0 ? 2 : 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned, void* room) {
  auto* const pci = static_cast<PciInfo*>(room);
  if (index_of(device) > 1) return kNotSupported;
  pci->bus = devices[1 - index_of(device)].bus;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void* one, void* other, unsigned* level) {
  const unsigned pair = index_of(one) + index_of(other);  // {0,2} {0,3} or {1,2} {1,3}
  *level = pair == 2 ? 40 : pair == 3 ? 50 : 20;
  return 0;
}
}
