// NVML (libnvidia-ml.so.1) over the simulated machine: what every part of it shares. The machine
// is the one the options describe; the driver is not started, as in the real NVML.
#pragma once

#include <string>

#include "plan/topology.h"
#include "simcuda/driver/gpu_models.h"
#include "simcuda/driver/gpu_uuid.h"
#include "simcuda/driver/runtime.h"

namespace nvml {

enum Status : int {  // nvmlReturn_t
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kUnknown = 999,
};

struct Machine {
  simcuda_machine_facts facts{};
  glake::topology::Topology topology;
  const simcuda::GpuModel* model = nullptr;
};

// A device's handle points at its own element of an array.
struct Device {
  int index = -1;
};

// nullptr before nvmlInit and after the last nvmlShutdown.
const Machine* machine();
Status check(const Device* device);  // initialised, and a device of the machine
Device* device(int index);
std::string bus_id(int index);  // "00000000:01:00.0", as the driver's devices have them
std::string uuid(int index);    // "GPU-676c616b-..."
Status put_text(const std::string& text, char* out, unsigned capacity);

}  // namespace nvml

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))
#define NVML(name) NVML_EXPORT ::nvml::Status name
