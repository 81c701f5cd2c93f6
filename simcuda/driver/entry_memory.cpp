// cuMemAlloc, pinned host memory, and memory for other processes.
#include <unistd.h>

#include <cstring>

#include "driver.h"
#include "prototypes.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

struct IpcHandle {
  uint64_t magic, machine, bytes;
  uint32_t extent, generation;
  int32_t process;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle));
constexpr uint64_t kIpcMagic = 0x676c616b65697063;

// Makes a block that ends with the context.
CUresult allocate(Driver* driver, const Context& context, size_t bytes, bool managed,
                  CUdeviceptr* address) {
  CUresult result = driver->captures.check_unsafe();
  if (result == CUDA_SUCCESS) result = driver->blocks.allocate(context.device, bytes, address);
  if (result != CUDA_SUCCESS) return result;
  Reservation* block = driver->memory.find(*address);
  block->owner = context.id;
  block->managed = managed;
  return CUDA_SUCCESS;
}

// Frees a block of cuMemAlloc or of a pool. cuMemFree also takes what "cuMemAllocAsync(),
// cuMemAllocFromPoolAsync()" returned.
CUresult free_memory(Driver* driver, CUdeviceptr address) {
  Pool* pool = driver->pools.any() ? driver->pools.owner(address) : nullptr;
  if (pool == nullptr) {
    const Reservation* block = driver->memory.find(address);
    if (block != nullptr) books().charge_pages(CALL(cuMemFree), pages_of(block->requested));
    return driver->blocks.free(address);
  }
  CUdeviceptr base = 0;
  if (pool->block_at(address, &base) == 0 || base != address) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemFree: no block of a pool starts there");
  }
  pool->free(address, nullptr, {});
  driver->pools.waited(driver);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  return in_context(CALL(cuMemAlloc), pages_of(bytes),
                    [&](Driver& driver, Context& context) -> CUresult {
                      if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
                      return allocate(&driver, context, bytes, false, address);
                    });
}

// Managed memory is a block of the device here. The host and every device may touch it in place. It
// takes device memory from the start, and more than a device has is out of memory. (On GPUs with
// page faults it moves between host and devices, and may be larger than a device's memory.) Phantom
// memory has no bytes for the host.
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  return in_context(
      CALL(cuMemAllocManaged), pages_of(bytes), [&](Driver& driver, Context& context) -> CUresult {
        const bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
        if (address == nullptr || !known) return CUDA_ERROR_INVALID_VALUE;
        if (driver.memory.backing().phantom()) {
          return fail(CUDA_ERROR_NOT_SUPPORTED, "managed memory needs bytes: not in phantom mode");
        }
        return allocate(&driver, context, bytes, true, address);
      });
}

CUresult cuMemFree(CUdeviceptr address) {
  return blocking(CALL(cuMemFree), [&](Driver& driver, Context&, Lock* lock) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    const CUresult unsafe = driver.captures.check_unsafe();
    if (unsafe != CUDA_SUCCESS) return unsafe;
    if (driver.memory.find(address) == nullptr) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemFree: not a cuMemAlloc block");
    }
    // Waits for all work that may use the block, as the driver does.
    const CUresult waited = driver.scheduler->waits().wait_device(lock, -1);
    const CUresult freed = free_memory(&driver, address);
    return freed != CUDA_SUCCESS ? freed : waited;
  });
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return in_context(CALL(cuMemGetAddressRange), 0, [&](Driver& driver, Context&) -> CUresult {
    Range range;
    const CUresult result = find_range(&driver, address, &range);
    if (result != CUDA_SUCCESS) return result;
    if (base != nullptr) *base = range.base;
    if (bytes != nullptr) *bytes = range.bytes;
    return CUDA_SUCCESS;
  });
}

// cuda.h does not count this memory among what ends with a context.
CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  return in_context(
      CALL(cuMemHostAlloc), pages_of(bytes), [&](Driver& driver, Context&) -> CUresult {
        if (address == nullptr || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
        const CUresult unsafe = driver.captures.check_unsafe();
        return unsafe != CUDA_SUCCESS ? unsafe : driver.host.allocate(bytes, flags, 0, address);
      });
}

CUresult cuMemAllocHost(void** address, size_t bytes) {
  return in_context(
      CALL(cuMemAllocHost), pages_of(bytes), [&](Driver& driver, Context& context) -> CUresult {
        if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const CUresult unsafe = driver.captures.check_unsafe();
        return unsafe != CUDA_SUCCESS ? unsafe
                                      : driver.host.allocate(bytes, 0, context.id, address);
      });
}

CUresult cuMemFreeHost(void* address) {
  return blocking(CALL(cuMemFreeHost), [&](Driver& driver, Context&, Lock* lock) {
    const CUresult waited = driver.scheduler->waits().wait_device(lock, -1);
    const CUresult freed = driver.host.free(address);
    return freed != CUDA_SUCCESS ? freed : waited;
  });
}

CUresult cuMemHostRegister(void* address, size_t bytes, unsigned int flags) {
  return in_context(CALL(cuMemHostRegister), pages_of(bytes), [&](Driver& driver, Context&) {
    return driver.host.add(address, bytes, flags);
  });
}

CUresult cuMemHostUnregister(void* address) {
  return blocking(CALL(cuMemHostUnregister), [&](Driver& driver, Context&, Lock* lock) {
    const CUresult waited = driver.scheduler->waits().wait_device(lock, -1);
    const CUresult removed = driver.host.remove(address);
    return removed != CUDA_SUCCESS ? removed : waited;
  });
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* result, void* address, unsigned int flags) {
  return in_context(CALL(cuMemHostGetDevicePointer), 0, [&](Driver& driver, Context&) -> CUresult {
    if (result == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.host.pinned(reinterpret_cast<uint64_t>(address), 1)) {
      return fail(CUDA_ERROR_INVALID_VALUE, "not pinned host memory");
    }
    *result = reinterpret_cast<CUdeviceptr>(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* address) {
  return in_context(CALL(cuMemHostGetFlags), 0, [&](Driver& driver, Context&) -> CUresult {
    const HostBlock* block = driver.host.find(reinterpret_cast<uint64_t>(address), 1, nullptr);
    if (flags == nullptr || block == nullptr || block->registered) {
      return fail(CUDA_ERROR_INVALID_VALUE, "not allocated by cuMemHostAlloc");
    }
    *flags = block->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* result, CUdeviceptr address) {
  return in_context(CALL(cuIpcGetMemHandle), 0, [&](Driver& driver, Context&) -> CUresult {
    Reservation* block = driver.memory.find(address);
    if (result == nullptr || block == nullptr || block->base != address || block->allocation == 0 ||
        block->opens != 0 || block->managed || driver.pools.owner(address) != nullptr) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuIpcGetMemHandle: not a cuMemAlloc block");
    }
    const uint32_t extent = driver.memory.handle_of(block->page[0])->extent;
    IpcHandle handle{};
    handle.magic = kIpcMagic;
    handle.machine = driver.machine->id();
    handle.bytes = block->requested;
    handle.extent = extent;
    handle.generation = driver.machine->at(extent).generation;
    handle.process = getpid();
    std::memset(result, 0, sizeof *result);
    std::memcpy(result, &handle, sizeof handle);
    driver.scheduler->known().stop();
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle given, unsigned int flags) {
  return in_context(CALL(cuIpcOpenMemHandle), 0, [&](Driver& driver, Context&) -> CUresult {
    IpcHandle handle;
    std::memcpy(&handle, &given, sizeof handle);
    if (address == nullptr || (flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0 ||
        handle.magic != kIpcMagic || handle.machine != driver.machine->id()) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuIpcOpenMemHandle: not a handle of this machine");
    }
    if (handle.process == getpid()) {
      return fail(CUDA_ERROR_INVALID_CONTEXT, "a process cannot open its own IPC handle");
    }
    driver.scheduler->known().stop();
    return driver.blocks.open(handle.extent, handle.generation, handle.bytes, address);
  });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return blocking(CALL(cuIpcCloseMemHandle), [&](Driver& driver, Context&, Lock* lock) {
    const CUresult waited = driver.scheduler->waits().wait_device(lock, -1);
    const CUresult closed = driver.blocks.close(address);
    return closed != CUDA_SUCCESS ? closed : waited;
  });
}
