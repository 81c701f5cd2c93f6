// Stream-ordered allocation. CUDA Driver API, Stream Ordered Memory Allocator.
#include "driver.h"
#include "prototypes.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

// Whether CUDA has pools of this kind somewhere. Newer headers name the numbers:
// CU_MEM_LOCATION_TYPE_ NONE, DEVICE, HOST, HOST_NUMA and DEVICE_LOCALITY_DOMAIN,
// CU_MEM_ALLOCATION_TYPE_PINNED and MANAGED.
bool documented(int location, int allocation) {
  constexpr int kNone = 0, kDevice = 1, kHostNuma = 3, kLocality = 6;
  constexpr int kPinned = 1, kManaged = 2;
  if (allocation == kManaged && location == kNone) return true;
  if (location == kLocality) return allocation == kPinned;
  return location >= kDevice && location <= kHostNuma &&
         (allocation == kPinned || allocation == kManaged);
}

// Memory nodes are not modelled. The capture stays as it was, and the caller gets an error.
CUresult check_capture(Driver* driver, Stream* stream) {
  bool taken = false;
  const CUresult result = driver->captures.take(stream, &taken);
  if (result != CUDA_SUCCESS || !taken) return result;
  return fail(CUDA_ERROR_NOT_SUPPORTED,
              "simcuda has no memory nodes: no cuMemAllocAsync or cuMemFreeAsync in a capture");
}

CUresult allocate(Driver* driver, Stream* stream, Symbol symbol, Pool* pool, size_t bytes,
                  CUdeviceptr* address) {
  if (address == nullptr || bytes == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemAllocAsync: size 0, or nowhere to put the address");
  }
  if (pool == nullptr) return bad_handle("pool");
  CUresult result = check_capture(driver, stream);
  if (result != CUDA_SUCCESS) return result;
  Event after;
  size_t grown = 0;
  result = pool->allocate(driver, *stream, bytes, address, &after, &grown);
  books().charge_pages(symbol, 1 + pages_of(grown));
  if (result != CUDA_SUCCESS || !after.recorded) return result;
  if (driver->ticking()) {
    driver->tick_clock.wait(stream, after);
  } else {
    driver->scheduler->enqueue(stream, std::make_shared<Op>(), after.op);
  }
  return CUDA_SUCCESS;
}

template <class Body>
CUresult on_pool(Symbol symbol, CUmemoryPool handle, Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    Pool* pool = driver.pools.find(handle);
    return pool == nullptr ? bad_handle("pool") : body(driver, *pool);
  });
}

template <class Body>
CUresult on_device(Symbol symbol, CUdevice device, Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    return device < 0 || device >= driver.devices ? no_device() : body(driver);
  });
}

// For the calls of CUDA 13 that name a place in memory and a kind of allocation. The body gets the
// device.
template <class Body>
CUresult on_location(Symbol symbol, const CUmemLocation* location, CUmemAllocationType type,
                     Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    if (location == nullptr || !documented(location->type, type)) {
      return fail(CUDA_ERROR_INVALID_VALUE, "a memory pool's location or allocation type");
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return fail(CUDA_ERROR_NOT_SUPPORTED, "simcuda's pools are of pinned device memory");
    }
    if (location->id < 0 || location->id >= driver.devices) {
      return fail(CUDA_ERROR_INVALID_VALUE, "a memory pool's location: no such device");
    }
    return body(driver, location->id);
  });
}

}  // namespace

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                CUmemAllocationType type) {
  return on_location(CALL(cuMemGetDefaultMemPool), location, type,
                     [&](Driver& driver, CUdevice device) -> CUresult {
                       if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
                       *pool = driver.pools.default_of(device);
                       return CUDA_SUCCESS;
                     });
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  return on_location(CALL(cuMemGetMemPool), location, type,
                     [&](Driver& driver, CUdevice device) -> CUresult {
                       if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
                       *pool = driver.pools.current_of(device);
                       return CUDA_SUCCESS;
                     });
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool handle) {
  return on_location(
      CALL(cuMemSetMemPool), location, type, [&](Driver& driver, CUdevice device) -> CUresult {
        const Pool* pool = driver.pools.find(handle);
        if (pool == nullptr) return bad_handle("pool");
        if (pool->device() != device) {
          return fail(CUDA_ERROR_INVALID_VALUE, "cuMemSetMemPool: the pool is another device's");
        }
        driver.pools.use(device, handle);
        return CUDA_SUCCESS;
      });
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream handle) {
  return on_stream(CALL(cuMemAllocAsync), handle, [&](Driver& driver, Stream& stream) {
    Pool* pool = driver.pools.find(driver.pools.current_of(stream.device));
    return allocate(&driver, &stream, CALL(cuMemAllocAsync), pool, bytes, address);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream handle) {
  return on_stream(CALL(cuMemAllocFromPoolAsync), handle, [&](Driver& driver, Stream& stream) {
    return allocate(&driver, &stream, CALL(cuMemAllocFromPoolAsync), driver.pools.find(pool), bytes,
                    address);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return on_stream(CALL(cuMemFreeAsync), handle, [&](Driver& driver, Stream& stream) -> CUresult {
    Pool* pool = driver.pools.owner(address);
    CUdeviceptr base = 0;
    if (pool == nullptr || pool->block_at(address, &base) == 0 || base != address) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync: no block of a pool starts there");
    }
    const CUresult result = check_capture(&driver, &stream);
    if (result != CUDA_SUCCESS) return result;
    Event freed;
    freed.context = stream.context;
    if (driver.ticking()) {
      driver.tick_clock.record(&freed, &stream);
    } else {
      freed.op = std::make_shared<Op>();
      freed.recorded = true;
      driver.scheduler->enqueue(&stream, freed.op);
    }
    pool->free(address, &stream, freed);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return on_device(CALL(cuDeviceGetDefaultMemPool), device, [&](Driver& driver) -> CUresult {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pool = driver.pools.default_of(device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return on_device(CALL(cuDeviceGetMemPool), device, [&](Driver& driver) -> CUresult {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pool = driver.pools.current_of(device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  return on_device(CALL(cuDeviceSetMemPool), device, [&](Driver& driver) -> CUresult {
    const Pool* pool = driver.pools.find(handle);
    if (pool == nullptr) return bad_handle("pool");
    if (pool->device() != device) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuDeviceSetMemPool: the pool is another device's");
    }
    driver.pools.use(device, handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  return locked(CALL(cuMemPoolCreate), 0, [&](Driver& driver) -> CUresult {
    if (pool == nullptr || props == nullptr || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemPoolCreate: properties");
    }
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
      return fail(CUDA_ERROR_NOT_SUPPORTED,
                  "cuMemPoolCreate: simcuda's pools are of device memory, and not exported");
    }
    if (props->location.id < 0 || props->location.id >= driver.devices) return no_device();
    size_t most = 0;
#if CUDA_VERSION >= 12020
    most = props->maxSize;
#endif
    *pool = driver.pools.create(props->location.id, most);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return locked(CALL(cuMemPoolDestroy), 0,
                [&](Driver& driver) { return driver.pools.destroy(&driver, pool); });
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  return on_pool(CALL(cuMemPoolTrimTo), handle, [&](Driver& driver, Pool& pool) {
    pool.trim(&driver, keep);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return on_pool(CALL(cuMemPoolGetAttribute), handle, [&](Driver&, Pool& pool) -> CUresult {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool.get(which, value);
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return on_pool(CALL(cuMemPoolSetAttribute), handle, [&](Driver&, Pool& pool) -> CUresult {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool.set(which, value);
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* desc, size_t count) {
  return on_pool(CALL(cuMemPoolSetAccess), handle, [&](Driver& driver, Pool& pool) -> CUresult {
    if (desc == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
    return pool.set_access(&driver, desc, count);
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location) {
  return on_pool(CALL(cuMemPoolGetAccess), handle, [&](Driver& driver, Pool& pool) -> CUresult {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
        location->id >= driver.devices) {
      return no_device();
    }
    return pool.get_access(location->id, flags);
  });
}

// Graphs have no memory nodes here, so the memory that they use and keep is always 0.
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void* value) {
  return locked(CALL(cuDeviceGetGraphMemAttribute), 0, [&](Driver& driver) -> CUresult {
    if (device < 0 || device >= driver.devices) return no_device();
    if (value == nullptr || which < CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ||
        which > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuDeviceGetGraphMemAttribute: no such attribute");
    }
    *static_cast<cuuint64_t*>(value) = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void* value) {
  return locked(CALL(cuDeviceSetGraphMemAttribute), 0, [&](Driver& driver) -> CUresult {
    if (device < 0 || device >= driver.devices) return no_device();
    const bool peak =
        which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (!peak || value == nullptr || *static_cast<cuuint64_t*>(value) != 0) {
      return fail(CUDA_ERROR_INVALID_VALUE,
                  "cuDeviceSetGraphMemAttribute: a peak can be set, to 0");
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return locked(CALL(cuDeviceGraphMemTrim), 0, [&](Driver& driver) -> CUresult {
    return device < 0 || device >= driver.devices ? no_device() : CUDA_SUCCESS;
  });
}
