// Checks all that glake relies on in a CUDA driver. Each check has a name. The first argument is
// the driver's library (default libsimcuda.so; libcuda.so.1 for a GPU). Checks of features that the
// device lacks are skipped and counted. Exits 1 if a check fails, 2 if the driver cannot be opened.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "cuda_table.h"
#include "kernel_checks.h"
#include "process_checks.h"
#include "stream_checks.h"
#include "vmm_checks.h"

CudaTable cu;
size_t granule = size_t{2} << 20;

CUmemAllocationProp device_memory(int device, bool exportable) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

namespace {

void check_version() {
  int version = 0;
  OK(cu.cuDriverGetVersion(&version));
  TRUE(version >= 11020);
}

void check_error_texts() {
  const char* text = nullptr;
  OK(cu.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  TRUE(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
  OK(cu.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  TRUE(text != nullptr && *text != 0);
  GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuGetErrorName(static_cast<CUresult>(54321), &text));
}

void check_proc_address() {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status;
  OK(cu.cuGetProcAddress("cuMemAlloc", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  TRUE(status == CU_GET_PROC_ADDRESS_SUCCESS);
  CUdeviceptr block = 0;  // version 2 has 64-bit addresses
  OK(reinterpret_cast<decltype(cu.cuMemAlloc)>(function)(&block, granule));
  OK(cu.cuMemFree(block));
  OK(cu.cuGetProcAddress("cuMemMap", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  TRUE(function != nullptr);
  cu.cuGetProcAddress("cuNoSuchCall", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  TRUE(function == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  cu.cuGetProcAddress("cuMemMap", &function, 9000, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  TRUE(function == nullptr && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

int device_has(CUdevice_attribute which) {
  int value = 0;
  OK(cu.cuDeviceGetAttribute(&value, which, 0));
  return value;
}

void check_device() {
  TRUE(device_has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1);
  TRUE(device_has(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 1);
  TRUE(device_has(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 7);
}

void check_thread_without_context() {
  CUresult got = CUDA_SUCCESS, info = CUDA_SUCCESS, stream = CUDA_SUCCESS;
  std::thread([&] {
    CUdevice device = 0;
    size_t free = 0, total = 0;
    CUstream made = nullptr;
    got = cu.cuCtxGetDevice(&device);
    info = cu.cuMemGetInfo(&free, &total);
    stream = cu.cuStreamCreate(&made, 0);
  }).join();
  GIVES(CUDA_ERROR_INVALID_CONTEXT, got);
  GIVES(CUDA_ERROR_INVALID_CONTEXT, info);
  GIVES(CUDA_ERROR_INVALID_CONTEXT, stream);
}

void check_primary_context() {
  CUcontext first = nullptr, second = nullptr, current = nullptr;
  OK(cu.cuDevicePrimaryCtxRetain(&first, 0));
  OK(cu.cuDevicePrimaryCtxRetain(&second, 0));
  TRUE(first == second);
  OK(cu.cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int active = 0;
  OK(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
  TRUE(active == 1);
  OK(cu.cuDevicePrimaryCtxRelease(0));
  OK(cu.cuCtxGetCurrent(&current));  // main() still holds it
  TRUE(current == first);
  OK(cu.cuCtxPushCurrent(first));
  OK(cu.cuCtxPopCurrent(&second));
  TRUE(second == first);
  CUdevice device = -1;
  OK(cu.cuCtxGetDevice(&device));
  TRUE(device == 0);
}

void check_stream_values() {
  SKIP_UNLESS(device_has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 1,
              "the device has no stream memory operations");
  check_values_order_streams();
}

void check_peers() {
  int devices = 0, reach = 0;
  OK(cu.cuDeviceGetCount(&devices));
  SKIP_UNLESS(devices > 1, "one device only");
  OK(cu.cuDeviceCanAccessPeer(&reach, 0, 1));
  SKIP_UNLESS(reach == 1, "devices 0 and 1 are no peers");
  CUcontext peer = nullptr;
  OK(cu.cuDevicePrimaryCtxRetain(&peer, 1));
  const auto inside = [&] {
    OK(cu.cuCtxEnablePeerAccess(peer, 0));
    GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cu.cuCtxEnablePeerAccess(peer, 0));
    OK(cu.cuCtxDisablePeerAccess(peer));
    GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cu.cuCtxDisablePeerAccess(peer));
    // Device 0 reaches VMM memory of device 1 by a grant of its own, without peer access.
    Memory here, there(granule, 1);
    Range range(2 * granule);
    range.map(0, here);
    range.map(granule, there);
    range.grant(0, 2 * granule, 0);
    Stream stream;
    OK(cu.cuMemsetD32Async(range.base, 21, granule / 4, stream));
    OK(cu.cuMemcpyDtoDAsync(range.base + granule, range.base, granule, stream));
    OK(cu.cuStreamSynchronize(stream));
    TRUE(word_at(range.base + 2 * granule - 4) == 21);
  };
  try {
    inside();
  } catch (...) {
    cu.cuDevicePrimaryCtxRelease(1);
    throw;
  }
  OK(cu.cuDevicePrimaryCtxRelease(1));
}

const std::vector<Check> kChecks = {
    {"driver version", check_version},
    {"error names and texts", check_error_texts},
    {"cuGetProcAddress versions", check_proc_address},
    {"device attributes", check_device},
    {"a thread without a context is told so", check_thread_without_context},
    {"primary context", check_primary_context},
    {"allocation granularity", check_granularity},
    {"unaligned sizes fail", check_unaligned_sizes_fail},
    {"reservation alignment", check_reservation_alignment},
    {"cuMemMap: offset, alignment, live mapping", check_map_rules},
    {"two addresses over one handle alias", check_aliasing},
    {"glake's kernel copies blocks", check_kernel_copies_blocks},
    {"handles side by side are one range", check_stitching},
    {"releasing a mapped handle keeps the memory", check_release_of_mapped_memory},
    {"partial unmap fails", check_partial_unmap_fails},
    {"one unmap takes many mappings", check_one_unmap_takes_many_mappings},
    {"access over a hole fails", check_access_over_a_hole_fails},
    {"access starts and ends with the mapping", check_access_starts_and_ends_with_the_mapping},
    {"freeing a live reservation fails", check_free_of_a_live_reservation_fails},
    {"retained handle", check_retained_handle},
    {"an address can be mapped anew", check_remapping_an_address},
    {"free memory and out of memory", check_memory_accounting},
    {"stream order holds across two views", check_stream_order_across_two_views},
    {"an event orders two streams", check_event_orders_streams},
    {"event states", check_event_states},
    {"polling an event ends", check_polling_ends},
    {"event times", check_event_times},
    {"a wait outlives its event", check_event_outlives_its_handle},
    {"legacy and per-thread streams", check_legacy_stream_order},
    {"pageable host memory", check_pageable_source_is_taken_at_the_call},
    {"host functions run in order", check_host_function_order},
    {"values written and waited for", check_stream_values},
    {"capture takes work and runs none", check_capture},
    {"a stream's number is its own", check_stream_numbers},
    {"waiting spoils a capture", check_waiting_spoils_a_capture},
    {"capture mode forbids cuMemAlloc", check_capture_mode_forbids_allocation},
    {"pinned and registered host memory", check_pinned_and_registered_memory},
    {"pointer attributes", check_pointer_attributes},
    {"peer access", check_peers},
    {"descriptors: export and import", check_descriptors},
    {"descriptors of a batch cross processes", check_descriptors_cross_processes},
    {"IPC handles cross processes", check_ipc_handles},
    {"a forked child is told so", check_forked_child},
};

}  // namespace

int main(int argc, char** argv) {
  const char* library = argc > 1 && argv[1][0] != '-' ? argv[1] : "libsimcuda.so";
  // The simulator shares memory between processes of one machine only; a GPU ignores this.
  const std::string machine = "conformance-" + std::to_string(getpid());
  setenv("GLAKE_SIM_MACHINE", machine.c_str(), 0);
  const std::string missing = cu.open(library);
  if (!missing.empty()) {
    std::printf("%s: %s\n", library, missing.c_str());
    return 2;
  }
  CUcontext context = nullptr;
  const CUresult started = cu.cuInit(0);
  if (started != CUDA_SUCCESS || cu.cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cu.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    std::printf("%s: cuInit or device 0: %s\n", library, name_of(started).c_str());
    return 2;
  }
  const CUmemAllocationProp prop = device_memory(0);
  cu.cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (argc > 3 && std::string(argv[2]) == "--child") return run_child(std::atoi(argv[3]));
  conformance_library = library;
  kernel_library = library;
  const int failed = run_checks(argc, argv, kChecks);
  cu.cuDevicePrimaryCtxRelease(0);
  return failed == 0 ? 0 : 1;
}
