// The driver's facts about an address.
#include <cstring>

#include "driver.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace simcuda {

CUresult find_range(Driver* driver, CUdeviceptr address, Range* range) {
  Reservation* reservation = nullptr;
  const Page* page = driver->memory.page_at(address, &reservation);
  if (page != nullptr) {
    const Handle* handle = driver->memory.handle_of(*page);
    range->device = handle->prop.location.id;
    range->exportable = handle->prop.requestedHandleTypes;
    range->access = page->access;
    range->vmm = reservation->allocation == 0;
    range->managed = reservation->managed;
    const size_t at = (address - reservation->base) / kGranule - page->index;
    range->base = reservation->base + at * kGranule;
    range->bytes = range->vmm ? handle->pages * kGranule : reservation->requested;
    const Pool* pool = driver->pools.any() ? driver->pools.owner(address) : nullptr;
    if (pool == nullptr) return CUDA_SUCCESS;
    range->pool = pool->handle();
    range->bytes = pool->block_at(address, &range->base);
    if (range->bytes != 0) return CUDA_SUCCESS;
    return fail(CUDA_ERROR_INVALID_VALUE, "memory of a pool that is not allocated");
  }
  uint64_t base = 0;
  const HostBlock* block = driver->host.find(address, 1, &base);
  if (block == nullptr) {
    return fail(CUDA_ERROR_INVALID_VALUE, "simcuda knows no memory at that address");
  }
  range->base = base;
  range->bytes = block->bytes;
  range->host = true;
  const bool read_only = block->registered && (block->flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  range->access = read_only ? 0x55555555u : ~0u;  // two bits per device: 1 read, 3 read and write
  return CUDA_SUCCESS;
}

}  // namespace simcuda

namespace {

template <class T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Facts of device memory that are the same whichever context is current. A thread asks for them on
// a GPU before it has a context: TensorPipe clears its own and asks for the device's number
// (tensorpipe/common/cuda.h), and UCX asks for the context that it then makes current
// (src/uct/cuda/cuda_copy/cuda_copy_ep.c).
bool needs_no_context(CUpointer_attribute which, const Range& range) {
  return !range.host &&
         (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || which == CU_POINTER_ATTRIBUTE_CONTEXT);
}

// `context` is the thread's current one, or null for a fact that needs none.
CUresult attribute(Driver* driver, const Context* context, void* data, CUpointer_attribute which,
                   CUdeviceptr address, const Range& range) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (range.vmm) return fail(CUDA_ERROR_INVALID_VALUE, "VMM memory belongs to no context");
      return put(data,
                 as_context(range.host ? context->id : driver->contexts.primary(range.device)->id));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, range.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!range.host && !range.managed) return fail(CUDA_ERROR_INVALID_VALUE, "not host memory");
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<unsigned long long>(data, range.base / 4096);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<unsigned>(data, range.managed);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned>(data, !range.host && !range.vmm && !range.pool && !range.managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, range.host ? context->device : range.device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<bool>(data, true);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:  // null if it is of no pool
      return put(data, range.pool);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<unsigned long long>(data, range.exportable);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put<unsigned long long>(data, range.access >> (2 * context->device) & 3);
    default:
      return fail(CUDA_ERROR_NOT_SUPPORTED, "simcuda does not have this pointer attribute");
  }
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which, CUdeviceptr address) {
  return in_any_context(CALL(cuPointerGetAttribute), 0, [&](Driver& driver) -> CUresult {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Range range;
    const CUresult result = find_range(&driver, address, &range);
    if (result != CUDA_SUCCESS) return result;
    const Context* context = driver.contexts.current();
    if (context == nullptr && !needs_no_context(which, range)) return no_context();
    return attribute(&driver, context, data, which, address, range);
  });
}

// Unlike the call for one attribute, this succeeds. What is not known reads as zero, and the
// device's number as -2.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* which, void** data,
                                CUdeviceptr address) {
  return in_context(
      CALL(cuPointerGetAttributes), 0, [&](Driver& driver, Context& context) -> CUresult {
        if (which == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Range range;
        const bool known = find_range(&driver, address, &range) == CUDA_SUCCESS;
        for (unsigned i = 0; i < count; ++i) {
          if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
          if (known &&
              attribute(&driver, &context, data[i], which[i], address, range) == CUDA_SUCCESS) {
            continue;
          }
          if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            put<int>(data[i], -2);
          } else if (which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                     which[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
            put<unsigned>(data[i], 0);
          } else if (which[i] == CU_POINTER_ATTRIBUTE_MAPPED) {
            put<bool>(data[i], false);
          } else {
            put<uint64_t>(data[i], 0);
          }
        }
        return CUDA_SUCCESS;
      });
}
