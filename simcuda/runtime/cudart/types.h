// Types of the CUDA runtime's interface, declared here because its headers need two wheels and
// differ between toolkits. Values and layouts are those of the CUDA Runtime API documentation,
// "Data types used by CUDA Runtime"; where CUDA 12 and 13 differ, CUDART_MAJOR says which is meant.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <cstddef>
#include <cstdint>

#ifndef CUDART_MAJOR
#define CUDART_MAJOR 13
#endif

namespace cudart {

// cudaError_t. Since CUDA 10.1 a code means the same in driver and runtime, so every CUresult is
// one. Only the codes that the runtime itself returns have names here.
using Error = int;
enum : Error {
  kSuccess = 0,
  kInvalidValue = 1,
  kInitializationError = 3,
  kInvalidConfiguration = 9,
  kInvalidSymbol = 13,
  kInvalidMemcpyDirection = 21,
  kMissingConfiguration = 52,
  kInvalidDeviceFunction = 98,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kSymbolNotFound = 500,
  kIllegalAddress = 700,
  kCooperativeLaunchTooLarge = 720,
  kNotSupported = 801,
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

enum MemcpyKind : int { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };
enum MemoryType : int { kUnregistered, kHost, kDevice, kManaged };
enum CaptureStatus : int { kCaptureNone, kCaptureActive, kCaptureInvalidated };

struct PointerAttributes {  // cudaPointerAttributes
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
#if CUDART_MAJOR >= 13
  long reserved[8];
#endif
};

struct FuncAttributes {  // cudaFuncAttributes
  size_t shared_bytes, const_bytes, local_bytes;
  int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared,
      shared_carveout, cluster_must_be_set, cluster_width, cluster_height, cluster_depth,
      cluster_policy, non_portable_cluster;
  int reserved[16];
};

enum FuncAttribute : int { kMaxDynamicShared = 8, kSharedCarveout = 9, kLastFuncAttribute = 15 };

struct LaunchConfig {  // cudaLaunchConfig_t
  Dim3 grid, block;
  size_t shared;
  CUstream stream;
  void* attributes;
  unsigned count;
};

struct ChannelFormat {  // cudaChannelFormatDesc
  int x, y, z, w, kind;
};

struct IpcHandle {  // cudaIpcMemHandle_t, cudaIpcEventHandle_t
  char bytes[64];
};

using HostFunction = void (*)(void*);
using StreamCallback = void (*)(CUstream, Error, void*);

struct DeviceProperties {  // cudaDeviceProp
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t total_memory, shared_per_block;
  int registers_per_block, warp;
  size_t memory_pitch;
  int threads_per_block, block_dim[3], grid_dim[3];
#if CUDART_MAJOR < 13
  int clock_khz;
#endif
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
#if CUDART_MAJOR < 13
  int device_overlap;
#endif
  int multiprocessors;
#if CUDART_MAJOR < 13
  int kernel_timeout;
#endif
  int integrated, can_map_host;
#if CUDART_MAJOR < 13
  int compute_mode;
#endif
  int textures_and_surfaces[CUDART_MAJOR < 13 ? 40 : 39];  // largest sizes
  size_t surface_alignment;
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, async_engines,
      unified_addressing;
#if CUDART_MAJOR < 13
  int memory_clock_khz;
#endif
  int memory_bus_bits, l2_bytes, persisting_l2_bytes, threads_per_multiprocessor, stream_priorities,
      global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed_memory, multi_gpu_board, multi_gpu_group,
      host_native_atomics;
#if CUDART_MAJOR < 13
  int single_to_double_ratio;
#endif
  int pageable_access, concurrent_managed, compute_preemption, host_pointer_registered,
      cooperative_launch;
#if CUDART_MAJOR < 13
  int cooperative_multi_device;
#endif
  size_t shared_per_block_optin;
  int pageable_by_host_tables, direct_managed_access, blocks_per_multiprocessor,
      access_policy_window;
  size_t reserved_shared_per_block;
  int host_register, sparse_arrays, host_register_read_only, timeline_semaphores, memory_pools,
      gpu_direct_rdma;
  unsigned rdma_flush_options;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_mapping, ipc_events, cluster_launch, unified_functions;
#if CUDART_MAJOR >= 13
  int numa_config, numa_id, mps, host_numa_id;
  unsigned pci_device_id, pci_subsystem_id;
  int host_numa_multinode_ipc;
  int reserved[56];
#else
  int reserved[63];
#endif
};
static_assert(sizeof(DeviceProperties) == (CUDART_MAJOR < 13 ? 1032 : 1008));

}  // namespace cudart
