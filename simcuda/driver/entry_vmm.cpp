// The virtual memory management calls.
#include "driver.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  return call(CALL(cuMemGetAllocationGranularity), 0, [&](Driver& driver) -> CUresult {
    if (granularity == nullptr || prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
         option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemGetAllocationGranularity");
    }
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return fail(CUDA_ERROR_NOT_SUPPORTED,
                  "cuMemGetAllocationGranularity: simcuda has device memory only, as "
                  "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED says");
    }
    if (prop->location.id < 0 || prop->location.id >= driver.devices) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "no such device");
    }
    *granularity = kGranule;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  return in_any_context(CALL(cuMemAddressReserve), pages_of(size), [&](Driver& driver) -> CUresult {
    if (ptr == nullptr || flags != 0) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemAddressReserve: ptr or flags");
    }
    return driver.memory.reserve(size, alignment, addr, ptr);
  });
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return in_any_context(CALL(cuMemAddressFree), pages_of(size),
                        [&](Driver& driver) { return driver.memory.free_range(ptr, size); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  return in_any_context(CALL(cuMemCreate), pages_of(size), [&](Driver& driver) -> CUresult {
    if (handle == nullptr || prop == nullptr || flags != 0) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: handle, prop or flags");
    }
    uint64_t id = 0;
    const CUresult result = driver.memory.handles().create(size, *prop, &id);
    if (result == CUDA_SUCCESS) *handle = id;
    return result;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return in_any_context(CALL(cuMemRelease), 0, [&](Driver& driver) {
    uint32_t pages = 0;
    const CUresult result = driver.memory.handles().release(handle, &pages);
    books().charge_pages(CALL(cuMemRelease), pages);
    return result;
  });
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return in_any_context(CALL(cuMemMap), pages_of(size), [&](Driver& driver) -> CUresult {
    if (flags != 0) return fail(CUDA_ERROR_INVALID_VALUE, "cuMemMap: flags must be 0");
    return driver.memory.map(ptr, size, offset, handle);
  });
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return in_any_context(CALL(cuMemUnmap), pages_of(size), [&](Driver& driver) {
    driver.scheduler->pending().check_idle(ptr, size, "unmap under pending work");
    uint64_t mappings = 0;
    const CUresult result = driver.memory.unmap(ptr, size, &mappings);
    books().charge_mappings(CALL(cuMemUnmap), mappings);
    return result;
  });
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  return in_any_context(CALL(cuMemSetAccess), pages_of(size), [&](Driver& driver) -> CUresult {
    if (desc == nullptr || count == 0) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess: no descriptors");
    }
    uint64_t mappings = 0;
    const CUresult result = driver.memory.set_access(ptr, size, desc, count, &mappings);
    books().charge_mappings(CALL(cuMemSetAccess), mappings);
    return result;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  return in_context(CALL(cuMemGetAccess), 0, [&](Driver& driver, Context&) -> CUresult {
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemGetAccess: flags or location");
    }
    return driver.memory.get_access(ptr, location->id, flags);
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  return in_context(
      CALL(cuMemRetainAllocationHandle), 0, [&](Driver& driver, Context&) -> CUresult {
        if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
        uint64_t id = 0;
        const CUresult result = driver.memory.retain(reinterpret_cast<CUdeviceptr>(addr), &id);
        if (result == CUDA_SUCCESS) *handle = id;
        return result;
      });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  return in_context(CALL(cuMemGetAllocationPropertiesFromHandle), 0,
                    [&](Driver& driver, Context&) -> CUresult {
                      if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
                      return driver.memory.handles().properties(handle, prop);
                    });
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  return in_context(CALL(cuMemGetInfo), 0, [&](Driver& driver, Context& context) -> CUresult {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *total = driver.machine->capacity();
    *free = *total - driver.machine->used(driver.gpus.gpu(context.device));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return in_context(
      CALL(cuMemExportToShareableHandle), 0, [&](Driver& driver, Context&) -> CUresult {
        if (shareable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
          return fail(CUDA_ERROR_NOT_SUPPORTED, "only POSIX descriptors");
        }
        driver.scheduler->known().stop();
        return driver.memory.handles().export_fd(handle, static_cast<int*>(shareable));
      });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  return in_context(CALL(cuMemImportFromShareableHandle), 0,
                    [&](Driver& driver, Context&) -> CUresult {
                      if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
                      if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
                        return fail(CUDA_ERROR_NOT_SUPPORTED, "only POSIX descriptors");
                      }
                      const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
                      uint64_t id = 0;
                      driver.scheduler->known().stop();
                      const CUresult result = driver.memory.handles().import_fd(fd, &id);
                      if (result == CUDA_SUCCESS) *handle = id;
                      return result;
                    });
}
