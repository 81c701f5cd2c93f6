// NVLink, fabric, and processes of a device.
#include <cmath>
#include <cstring>

#include "nvml.h"

NVML(nvmlDeviceGetPciInfo_v3)(const nvml::Device* device, void* info);

using namespace nvml;  // NOLINT: this file is nothing but C face

// nvmlGpuFabricInfoV_t, "nvmlDeviceGetGpuFabricInfoV". Its first members are the same in every
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

// Other processes of a shared machine cannot be told apart, so none is named.
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

namespace {

constexpr int kSwitch = -1, kNone = -2;

// The number of links of an edge, by its rate.
int links_of(const std::string& from, const std::string& to) {
  const auto& topology = machine()->topology;
  const double each = machine()->model->nvlink_rate;
  const int edge = topology.edge(from, to);
  return edge < 0 || each == 0 ? 0 : static_cast<int>(std::lround(topology.rate(edge) / each));
}

// The other end of link `number` of a device: a device, kSwitch or kNone. Links are numbered by
// their other ends: other devices in order, then the switch.
int remote(const Device* device, unsigned number) {
  const std::string here = "g" + std::to_string(device->index);
  auto left = static_cast<int>(number);
  for (int other = 0; other < machine()->facts.devices; ++other) {
    if (other == device->index) continue;  // that edge is its own memory
    left -= links_of(here, "g" + std::to_string(other));
    if (left < 0) return other;
  }
  left -= links_of(here, "N");
  return left < 0 ? kSwitch : kNone;
}

constexpr unsigned kMostLinks = 36;  // NVML_NVLINK_MAX_LINKS of CUDA 13

Status on_link(const Device* device, unsigned number, int* to) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (number >= kMostLinks) return kInvalidArgument;
  if (machine()->model->nvlink == 0) return kNotSupported;
  *to = remote(device, number);
  return kSuccess;
}

// The same for calls that need an existing link.
Status on_live_link(const Device* device, unsigned number, int* to) {
  const Status known = on_link(device, number, to);
  return known == kSuccess && *to == kNone ? kNotSupported : known;
}

struct FieldValue {  // nvmlFieldValue_t
  unsigned field, scope;
  long long timestamp, latency;
  int type, status;
  union {
    unsigned number;
    unsigned long long wide;
  };
};

enum Field : unsigned {  // NVML_FI_DEV_NVLINK_...
  kLinkCount = 91,
  kLinkSpeed = 164,
  kCommonSpeed = 90,
};

}  // namespace

NVML(nvmlDeviceGetNvLinkState)(const Device* device, unsigned number, unsigned* active) {
  int to = kNone;
  const Status known = on_link(device, number, &to);
  if (known != kSuccess) return known;
  if (active == nullptr) return kInvalidArgument;
  *active = to != kNone;
  return kSuccess;
}

NVML(nvmlDeviceGetNvLinkVersion)(const Device* device, unsigned number, unsigned* version) {
  int to = kNone;
  const Status known = on_live_link(device, number, &to);
  if (known != kSuccess) return known;
  if (version == nullptr) return kInvalidArgument;
  *version = static_cast<unsigned>(machine()->model->nvlink);
  return kSuccess;
}

// NVML_NVLINK_DEVICE_TYPE_GPU, or _SWITCH.
NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(const Device* device, unsigned number, int* type) {
  int to = kNone;
  const Status known = on_live_link(device, number, &to);
  if (known != kSuccess) return known;
  if (type == nullptr) return kInvalidArgument;
  *type = to == kSwitch ? 2 : 0;
  return kSuccess;
}

// A switch has no address here, because no preset's file names one.
NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(const Device* device, unsigned number, void* info) {
  int to = kNone;
  const Status known = on_live_link(device, number, &to);
  if (known != kSuccess) return known;
  return to == kSwitch ? kNotSupported : nvmlDeviceGetPciInfo_v3(nvml::device(to), info);
}

NVML(nvmlDeviceGetFieldValues)(const Device* device, int count, FieldValue* values) {
  const Status known = check(device);
  if (known != kSuccess) return known;
  if (count < 1 || values == nullptr) return kInvalidArgument;
  const auto* model = machine()->model;
  for (FieldValue* value = values; value != values + count; ++value) {
    const bool ours =
        model->nvlink != 0 &&
        (value->field == kLinkCount || value->field == kCommonSpeed || value->field == kLinkSpeed);
    value->status = ours ? kSuccess : kNotSupported;
    if (!ours) continue;
    value->type = 1;  // NVML_VALUE_TYPE_UNSIGNED_INT
    unsigned links = 0;
    while (links < kMostLinks && remote(device, links) != kNone) ++links;
    value->number = value->field == kLinkCount
                        ? links
                        : static_cast<unsigned>(std::lround(model->nvlink_reported * 1000));
  }
  return kSuccess;
}
