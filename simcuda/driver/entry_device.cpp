// Initialisation, versions, devices and their attributes.
#include <cstdio>
#include <cstring>

#include "driver.h"
#include "gpu_models.h"
#include "gpu_uuid.h"
#include "prototypes.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

template <class Body>
CUresult on_device(Symbol symbol, CUdevice device, const void* out, Body&& body) {
  return call(symbol, 0, [&](Driver& driver) -> CUresult {
    if (out == nullptr) return fail(CUDA_ERROR_INVALID_VALUE, "no place for the result");
    if (device < 0 || device >= driver.devices) return no_device();
    return body(driver);
  });
}

// What every GPU of the presets answers, for attributes that some software is known to ask for; 0
// for the rest.
int common_attribute(CUdevice_attribute which, int gpu) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return gpu + 1;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      return 1;
    default:
      return 0;  // CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, CONCURRENT_MANAGED_ACCESS...
  }
}

int attribute(const GpuModel& model, CUdevice_attribute which, int gpu) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return model.major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return model.minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return model.multiprocessors;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return model.threads;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return model.blocks;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return model.shared_kib << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return model.block_shared_kib << 10;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return model.major >= 8 ? 1 << 10 : 0;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return model.l2_mib << 20;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return model.bus_bits;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return model.clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return model.memory_clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      return model.major >= 9;
    default:
      return common_attribute(which, gpu);
  }
}

void bus_id(char* text, size_t size, int gpu) {
  std::snprintf(text, size, "0000:%02X:00.0", (gpu + 1) & 0xff);
}

}  // namespace

CUresult cuInit(unsigned int flags) {
  if (forked) return not_initialized();
  const CUresult told = books().enter(CALL(cuInit), 0);
  if (told != CUDA_SUCCESS) return told;
  if (flags != 0) return fail(CUDA_ERROR_INVALID_VALUE, "cuInit: flags must be 0");
  try {
    return initialize();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

CUresult cuDriverGetVersion(int* version) {
  const CUresult told = books().enter(CALL(cuDriverGetVersion), 0);
  if (told != CUDA_SUCCESS) return told;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return on_device(CALL(cuDeviceGet), ordinal, device, [&](Driver&) {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return call(CALL(cuDeviceGetCount), 0, [&](Driver& driver) -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = driver.devices;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return on_device(CALL(cuDeviceGetName), device, name, [&](Driver& driver) -> CUresult {
    if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(length), "simcuda (%s)", driver.options.preset.c_str());
    return CUDA_SUCCESS;
  });
}

SIMCUDA_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return on_device(CALL(cuDeviceGetUuid), device, uuid, [&](Driver& driver) {
    const auto bytes = gpu_uuid(driver.options.machine, driver.gpus.gpu(device));
    std::memcpy(uuid->bytes, bytes.data(), sizeof uuid->bytes);
    return CUDA_SUCCESS;
  });
}

SIMCUDA_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  return on_device(CALL(cuDeviceTotalMem), device, bytes, [&](Driver& driver) {
    *bytes = driver.machine->capacity();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  return on_device(CALL(cuDeviceGetAttribute), device, value, [&](Driver& driver) -> CUresult {
    if (which < CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK || which >= CU_DEVICE_ATTRIBUTE_MAX) {
      return fail(CUDA_ERROR_INVALID_VALUE, "no such device attribute");
    }
    *value = attribute(gpu_model(driver.options.preset), which, driver.gpus.gpu(device));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return on_device(CALL(cuDeviceGetPCIBusId), device, text, [&](Driver& driver) -> CUresult {
    if (length < 13) return fail(CUDA_ERROR_INVALID_VALUE, "a bus id takes 13 characters");
    bus_id(text, static_cast<size_t>(length), driver.gpus.gpu(device));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  return call(CALL(cuDeviceGetByPCIBusId), 0, [&](Driver& driver) -> CUresult {
    if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < driver.devices; ++i) {
      char known[16];
      bus_id(known, sizeof known, driver.gpus.gpu(i));
      if (strcasecmp(known, text) != 0 && strcasecmp(known + 5, text) != 0) continue;
      *device = i;
      return CUDA_SUCCESS;
    }
    return no_device();
  });
}
