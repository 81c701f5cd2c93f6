// Start and end, versions, and the devices themselves.
#include <strings.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "nvml.h"

namespace nvml {
namespace {

struct State {
  std::mutex mutex;
  int users = 0;
  std::unique_ptr<Machine> machine;
  std::array<Device, glake::topology::kMaxGpus> devices;
};

State& state() {
  static auto* kept = new State;
  return *kept;
}

Status start() {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.users++ != 0) return kSuccess;
  auto made = std::make_unique<Machine>();
  bool read = simcuda_machine(&made->facts) == 0;
  if (read) {
    try {
      made->topology = glake::topology::Topology::load(made->facts.platforms, made->facts.preset);
    } catch (const glake::topology::TopologyError&) {
      read = false;
    }
  }
  if (!read) {
    all.users = 0;
    return kDriverNotLoaded;
  }
  made->model = &simcuda::gpu_model(made->facts.preset);
  for (int i = 0; i < made->facts.devices; ++i) all.devices[static_cast<size_t>(i)].index = i;
  all.machine = std::move(made);
  return kSuccess;
}

}  // namespace

const Machine* machine() { return state().machine.get(); }

Device* device(int index) { return &state().devices[static_cast<size_t>(index)]; }

Status check(const Device* given) {
  if (machine() == nullptr) return kUninitialized;
  const auto& all = state().devices;
  const bool ours = given >= all.data() && given < all.data() + machine()->facts.devices;
  return ours ? kSuccess : kInvalidArgument;
}

std::string bus_id(int index) {
  char text[20];
  std::snprintf(text, sizeof text, "00000000:%02X:00.0", (index + 1) & 0xff);
  return text;
}

std::string uuid(int index) { return simcuda::gpu_uuid_text(machine()->facts.machine, index); }

Status put_text(const std::string& text, char* out, unsigned capacity) {
  if (out == nullptr) return kInvalidArgument;
  if (text.size() >= capacity) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

}  // namespace nvml

using namespace nvml;  // NOLINT: what follows is the C face

NVML(nvmlInit_v2)() { return start(); }
NVML(nvmlInit)() { return start(); }
NVML(nvmlInitWithFlags)(unsigned) { return start(); }

NVML(nvmlShutdown)() {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.users == 0) return kUninitialized;
  if (--all.users == 0) all.machine.reset();
  return kSuccess;
}

NVML_EXPORT const char* nvmlErrorString(int status) {
  switch (status) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kDriverNotLoaded:
      return "Driver Not Loaded: the simulated machine's options or platforms file are wrong";
    default:
      return "Unknown Error";
  }
}

NVML(nvmlSystemGetCudaDriverVersion_v2)(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = 13000;
  return kSuccess;
}

NVML(nvmlSystemGetCudaDriverVersion)(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

// The first release of CUDA 13.0's driver, "CUDA Toolkit release notes", table of drivers.
NVML(nvmlSystemGetDriverVersion)(char* text, unsigned capacity) {
  return put_text("580.65.06", text, capacity);
}

NVML(nvmlSystemGetNVMLVersion)(char* text, unsigned capacity) {
  return put_text("13.580.65.06", text, capacity);
}

NVML(nvmlDeviceGetCount_v2)(unsigned* count) {
  if (machine() == nullptr) return kUninitialized;
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(machine()->facts.devices);
  return kSuccess;
}

NVML(nvmlDeviceGetCount)(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

NVML(nvmlDeviceGetHandleByIndex_v2)(unsigned index, Device** result) {
  if (machine() == nullptr) return kUninitialized;
  if (result == nullptr || index >= static_cast<unsigned>(machine()->facts.devices)) {
    return kInvalidArgument;
  }
  *result = device(static_cast<int>(index));
  return kSuccess;
}

NVML(nvmlDeviceGetHandleByIndex)(unsigned index, Device** result) {
  return nvmlDeviceGetHandleByIndex_v2(index, result);
}

namespace {

// Finds the first device that `fits`.
template <class Fits>
Status find(Device** result, Fits&& fits) {
  if (machine() == nullptr) return kUninitialized;
  if (result == nullptr) return kInvalidArgument;
  for (int i = 0; i < machine()->facts.devices; ++i) {
    if (!fits(i)) continue;
    *result = device(i);
    return kSuccess;
  }
  return kNotFound;
}

// "0000:01:00.0" and "00000000:01:00.0" are the same address.
bool same_address(const char* text, int index) {
  const std::string known = bus_id(index);
  const char* colon = std::strchr(text, ':');
  return colon != nullptr && strcasecmp(colon, known.c_str() + 8) == 0;
}

}  // namespace

NVML(nvmlDeviceGetHandleByPciBusId_v2)(const char* text, Device** result) {
  if (text == nullptr) return kInvalidArgument;
  return find(result, [&](int index) { return same_address(text, index); });
}

NVML(nvmlDeviceGetHandleByPciBusId)(const char* text, Device** result) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, result);
}

NVML(nvmlDeviceGetHandleByUUID)(const char* text, Device** result) {
  if (text == nullptr) return kInvalidArgument;
  return find(result, [&](int index) { return uuid(index) == text; });
}
