// Attributes and properties of a device, as the driver gives them.
#include <cstring>
#include <initializer_list>

#include "cudart.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

namespace {

// Reads attributes of one device.
class Reader {
 public:
  explicit Reader(int device) : device_(device) {}
  int operator()(CUdevice_attribute which) const {
    int value = 0;
    driver().cuDeviceGetAttribute(&value, which, device_);
    return value;
  }
  size_t bytes(CUdevice_attribute which) const { return static_cast<size_t>((*this)(which)); }

 private:
  int device_;
};

#define ATTRIBUTE(name) read(CU_DEVICE_ATTRIBUTE_##name)
#define BYTES(name) read.bytes(CU_DEVICE_ATTRIBUTE_##name)

void set_limits(const Reader& read, DeviceProperties* p) {
  p->shared_per_block = BYTES(MAX_SHARED_MEMORY_PER_BLOCK);
  p->shared_per_block_optin = BYTES(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  p->shared_per_multiprocessor = BYTES(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  p->reserved_shared_per_block = BYTES(RESERVED_SHARED_MEMORY_PER_BLOCK);
  p->registers_per_block = ATTRIBUTE(MAX_REGISTERS_PER_BLOCK);
  p->registers_per_multiprocessor = ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR);
  p->warp = ATTRIBUTE(WARP_SIZE);
  p->memory_pitch = BYTES(MAX_PITCH);
  p->threads_per_block = ATTRIBUTE(MAX_THREADS_PER_BLOCK);
  p->block_dim[0] = ATTRIBUTE(MAX_BLOCK_DIM_X);
  p->block_dim[1] = ATTRIBUTE(MAX_BLOCK_DIM_Y);
  p->block_dim[2] = ATTRIBUTE(MAX_BLOCK_DIM_Z);
  p->grid_dim[0] = ATTRIBUTE(MAX_GRID_DIM_X);
  p->grid_dim[1] = ATTRIBUTE(MAX_GRID_DIM_Y);
  p->grid_dim[2] = ATTRIBUTE(MAX_GRID_DIM_Z);
  p->constant_bytes = BYTES(TOTAL_CONSTANT_MEMORY);
  p->texture_alignment = BYTES(TEXTURE_ALIGNMENT);
  p->texture_pitch_alignment = BYTES(TEXTURE_PITCH_ALIGNMENT);
  p->surface_alignment = BYTES(SURFACE_ALIGNMENT);
  p->threads_per_multiprocessor = ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR);
  p->blocks_per_multiprocessor = ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR);
}

void set_hardware(const Reader& read, DeviceProperties* p) {
  p->major = ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR);
  p->minor = ATTRIBUTE(COMPUTE_CAPABILITY_MINOR);
  p->multiprocessors = ATTRIBUTE(MULTIPROCESSOR_COUNT);
  p->pci_bus = ATTRIBUTE(PCI_BUS_ID);
  p->pci_device = ATTRIBUTE(PCI_DEVICE_ID);
  p->pci_domain = ATTRIBUTE(PCI_DOMAIN_ID);
  p->async_engines = ATTRIBUTE(ASYNC_ENGINE_COUNT);
  p->memory_bus_bits = ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH);
  p->l2_bytes = ATTRIBUTE(L2_CACHE_SIZE);
  p->ecc = ATTRIBUTE(ECC_ENABLED);
#if CUDART_MAJOR < 13
  p->clock_khz = ATTRIBUTE(CLOCK_RATE);
  p->memory_clock_khz = ATTRIBUTE(MEMORY_CLOCK_RATE);
  p->device_overlap = ATTRIBUTE(GPU_OVERLAP);
#endif
}

void set_abilities(const Reader& read, DeviceProperties* p) {
  p->integrated = ATTRIBUTE(INTEGRATED);
  p->can_map_host = ATTRIBUTE(CAN_MAP_HOST_MEMORY);
  p->concurrent_kernels = ATTRIBUTE(CONCURRENT_KERNELS);
  p->unified_addressing = ATTRIBUTE(UNIFIED_ADDRESSING);
  p->stream_priorities = ATTRIBUTE(STREAM_PRIORITIES_SUPPORTED);
  p->global_l1 = ATTRIBUTE(GLOBAL_L1_CACHE_SUPPORTED);
  p->local_l1 = ATTRIBUTE(LOCAL_L1_CACHE_SUPPORTED);
  p->managed_memory = ATTRIBUTE(MANAGED_MEMORY);
  p->pageable_access = ATTRIBUTE(PAGEABLE_MEMORY_ACCESS);
  p->concurrent_managed = ATTRIBUTE(CONCURRENT_MANAGED_ACCESS);
  p->compute_preemption = ATTRIBUTE(COMPUTE_PREEMPTION_SUPPORTED);
  p->host_pointer_registered = ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  p->cooperative_launch = ATTRIBUTE(COOPERATIVE_LAUNCH);
  p->host_register = ATTRIBUTE(HOST_REGISTER_SUPPORTED);
  p->memory_pools = ATTRIBUTE(MEMORY_POOLS_SUPPORTED);
  p->pool_handle_types = static_cast<unsigned>(ATTRIBUTE(MEMPOOL_SUPPORTED_HANDLE_TYPES));
  p->gpu_direct_rdma = ATTRIBUTE(GPU_DIRECT_RDMA_SUPPORTED);
  p->cluster_launch = ATTRIBUTE(CLUSTER_LAUNCH);
}

Error properties(DeviceProperties* result, int device) {
  if (result == nullptr) return told(kInvalidValue);
  const Error started = start();
  if (started != kSuccess) return told(started);
  if (!is_device(device)) return told(kInvalidDevice);
  std::memset(result, 0, sizeof *result);
  CUuuid uuid;
  const CUresult named = driver().cuDeviceGetName(result->name, sizeof result->name, device);
  const CUresult told_id = driver().cuDeviceGetUuid(&uuid, device);
  const CUresult sized = driver().cuDeviceTotalMem(&result->total_memory, device);
  for (const CUresult each : {named, told_id, sized}) {
    if (each != CUDA_SUCCESS) return told(each);
  }
  std::memcpy(result->uuid, uuid.bytes, sizeof result->uuid);
  const Reader read(device);
  set_limits(read, result);
  set_hardware(read, result);
  set_abilities(read, result);
  return kSuccess;
}

}  // namespace

#if CUDART_MAJOR >= 13
CUDART(cudaGetDeviceProperties)(DeviceProperties* result, int device) {
  return properties(result, device);
}
#else
CUDART(cudaGetDeviceProperties_v2)(DeviceProperties* result, int device) {
  return properties(result, device);
}
#endif

// cudaDeviceAttr and CUdevice_attribute have the same numbers.
CUDART(cudaDeviceGetAttribute)(int* value, int which, int device) {
  const Error started = start();
  if (started != kSuccess) return told(started);
  return told(driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), device));
}
