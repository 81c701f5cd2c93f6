// One device: its name, addresses, memory and clocks, and its relation to another one.
#include <cstring>

#include "nvml.h"

using namespace nvml;  // NOLINT: this file is nothing but C face

namespace {

struct PciInfo {  // nvmlPciInfo_t
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

struct MemoryV2 {  // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total, reserved, free, used;
};

Status put(const Device* device, int* out, int value) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (out == nullptr) return kInvalidArgument;
  *out = value;
  return kSuccess;
}

Status unmeasured(const Device* device) {
  const Status known = check(device);
  return known != kSuccess ? known : kNotSupported;
}

}  // namespace

NVML(nvmlDeviceGetIndex)(const Device* device, int* index) {
  return put(device, index, device == nullptr ? 0 : device->index);
}

NVML(nvmlDeviceGetMinorNumber)(const Device* device, int* number) {
  return put(device, number, device == nullptr ? 0 : device->index);
}

NVML(nvmlDeviceGetName)(const Device* device, char* text, unsigned capacity) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  return put_text("simcuda (" + std::string(machine()->facts.preset) + ")", text, capacity);
}

NVML(nvmlDeviceGetUUID)(const Device* device, char* text, unsigned capacity) {
  const Status known = check(device);
  return known != kSuccess ? known : put_text(uuid(device->index), text, capacity);
}

NVML(nvmlDeviceGetPciInfo_v3)(const Device* device, void* result) {
  auto* info = static_cast<PciInfo*>(result);
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (info == nullptr) return kInvalidArgument;
  std::memset(info, 0, sizeof *info);
  const std::string text = bus_id(device->index);
  info->bus = static_cast<unsigned>(device->index + 1);
  put_text(text.substr(4), info->legacy, sizeof info->legacy);
  return put_text(text, info->bus_id, sizeof info->bus_id);
}

NVML(nvmlDeviceGetCudaComputeCapability)(const Device* device, int* major, int* minor) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  const Status first = put(device, major, machine()->model->major);
  return first != kSuccess ? first : put(device, minor, machine()->model->minor);
}

NVML(nvmlDeviceGetMemoryInfo)(const Device* device, Memory* memory) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (memory == nullptr) return kInvalidArgument;
  memory->total = machine()->facts.memory_bytes;
  memory->used = simcuda_used_bytes(device->index);
  memory->free = memory->total - memory->used;
  return kSuccess;
}

NVML(nvmlDeviceGetMemoryInfo_v2)(const Device* device, MemoryV2* memory) {
  Memory plain{};
  if (memory == nullptr) return kInvalidArgument;
  const Status known = nvmlDeviceGetMemoryInfo(device, &plain);
  if (known != kSuccess) return known;
  memory->total = plain.total;
  memory->reserved = 0;
  memory->free = plain.free;
  memory->used = plain.used;
  return kSuccess;
}

NVML(nvmlDeviceGetMaxPcieLinkGeneration)(const Device* device, int* generation) {
  return put(device, generation, machine() == nullptr ? 0 : machine()->model->pcie);
}
NVML(nvmlDeviceGetCurrPcieLinkGeneration)(const Device* device, int* generation) {
  return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}
NVML(nvmlDeviceGetMaxPcieLinkWidth)(const Device* device, int* lanes) {
  return put(device, lanes, 16);
}
NVML(nvmlDeviceGetCurrPcieLinkWidth)(const Device* device, int* lanes) {
  return put(device, lanes, 16);
}

// nvmlClockType_t: graphics, multiprocessors, memory, video.
NVML(nvmlDeviceGetMaxClockInfo)(const Device* device, int which, int* megahertz) {
  if (which < 0 || which > 3) return kInvalidArgument;
  const Status known = check(device);
  if (known != kSuccess) return known;
  const auto* model = machine()->model;
  return put(device, megahertz, which == 2 ? model->memory_clock_mhz : model->clock_mhz);
}
NVML(nvmlDeviceGetClockInfo)(const Device* device, int which, int* megahertz) {
  return nvmlDeviceGetMaxClockInfo(device, which, megahertz);
}

// What nobody measures on a simulated device. NVML documents "not supported" for devices that have
// no such sensor.
NVML(nvmlDeviceGetUtilizationRates)(const Device* device, void*) { return unmeasured(device); }
NVML(nvmlDeviceGetPowerUsage)(const Device* device, int*) { return unmeasured(device); }
NVML(nvmlDeviceGetTotalEnergyConsumption)(const Device* device, void*) {
  return unmeasured(device);
}
NVML(nvmlDeviceGetTemperature)(const Device* device, int, int*) { return unmeasured(device); }
NVML(nvmlDeviceGetTemperatureV)(const Device* device, void*) { return unmeasured(device); }

// nvmlGpuTopologyLevel_t: 0 one board, 10 one switch, 20 several switches, 30 one host bridge, 40
// one node, 50 across sockets.
NVML(nvmlDeviceGetTopologyCommonAncestor)(const Device* one, const Device* other, int* level) {
  const Status known = check(other);
  if (known != kSuccess) return known;
  const auto& topology = machine()->topology;
  const Status mine = check(one);
  if (mine != kSuccess) return mine;
  const int a = one->index, b = other->index;
  const int found = a == b                                           ? 0
                    : topology.socket_of(a) != topology.socket_of(b) ? 50
                    : topology.same_switch(a, b)                     ? 10
                                                                     : 40;
  return put(one, level, found);
}

// NVML_P2P_STATUS_OK, or the status that the chipset does not support it.
NVML(nvmlDeviceGetP2PStatus)(const Device* one, const Device* other, int, int* status) {
  const Status known = check(other);
  if (known != kSuccess) return known;
  const Status mine = check(one);
  if (mine != kSuccess) return mine;
  return put(one, status, (machine()->facts.peers[one->index] >> other->index & 1) != 0 ? 0 : 1);
}
