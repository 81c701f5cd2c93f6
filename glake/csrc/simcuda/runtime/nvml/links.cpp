// NVLink, fabric, and processes.
#include <cstring>

#include "nvml.h"

using namespace nvml;  // NOLINT: this file is nothing but C face

// nvmlGpuFabricInfoV_t, "nvmlDeviceGetGpuFabricInfoV": its first members are those of every
// version.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};

// No preset is part of a fabric of several nodes: NVML_GPU_FABRIC_STATE_NOT_SUPPORTED.
NVML(nvmlDeviceGetGpuFabricInfoV)(const Device* device, FabricInfo* info) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (info == nullptr) return kInvalidArgument;
  std::memset(info->cluster, 0, sizeof info->cluster);
  info->status = kSuccess;
  info->clique = 0;
  info->state = 0;
  return kSuccess;
}

// Other processes of a shared machine are not told apart: none is named.
NVML(nvmlDeviceGetComputeRunningProcesses_v3)(const Device* device, unsigned* count, void*) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (count == nullptr) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}

NVML(nvmlDeviceGetComputeRunningProcesses)(const Device* device, unsigned* count, void* infos) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(const Device* device, unsigned, int*) {
  const Status known = check(device);
  return known != kSuccess ? known : kNotSupported;
}

NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(const Device* device, unsigned, void*) {
  const Status known = check(device);
  return known != kSuccess ? known : kNotSupported;
}
