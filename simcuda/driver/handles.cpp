#include "handles.h"

#include <string>

namespace simcuda {

CUresult Handles::create(size_t bytes, const CUmemAllocationProp& prop, uint64_t* handle) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: only CU_MEM_ALLOCATION_TYPE_PINNED");
  }
  constexpr int kHostNumaCurrent = 4;  // as newer headers name it; "will result in" this error
  if (prop.location.type == kHostNumaCurrent) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT");
  }
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                "cuMemCreate: simcuda has device memory only, as "
                "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED says");
  }
  if (prop.location.id < 0 || prop.location.id >= gpus_->count()) {
    return fail(CUDA_ERROR_INVALID_DEVICE, "cuMemCreate: no such device");
  }
  if ((prop.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "cuMemCreate: only POSIX descriptors are exported");
  }
  if (bytes == 0 || bytes % kGranule != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: size " + std::to_string(bytes) +
                                              " is not a positive multiple of 2 MiB");
  }
  uint32_t extent = 0;
  const CUresult result = machine_->acquire(gpus_->gpu(prop.location.id), bytes, &extent);
  if (result != CUDA_SUCCESS) return result;
  Handle made;
  made.extent = extent;
  made.refs = 1;
  made.pages = static_cast<uint32_t>(bytes / kGranule);
  made.offset = machine_->at(extent).offset;
  made.prop = prop;
  *handle = handles_.add(made);
  ++live_[static_cast<size_t>(prop.location.id)];
  return CUDA_SUCCESS;
}

uint64_t Handles::adopt(uint32_t extent) {
  const Extent& physical = machine_->at(extent);
  Handle handle;
  handle.extent = extent;
  handle.refs = 1;
  handle.pages = static_cast<uint32_t>((physical.bytes + kGranule - 1) / kGranule);
  handle.offset = physical.offset;
  handle.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  handle.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  handle.prop.location.id = gpus_->number(physical.device);
  handle.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ++live_[static_cast<size_t>(handle.prop.location.id)];
  return handles_.add(handle);
}

CUresult Handles::release(uint64_t id, uint32_t* pages) {
  Handle* handle = handles_.find(id);
  if (handle == nullptr || handle->refs == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemRelease: not a live handle");
  }
  *pages = handle->pages;
  --handle->refs;  // memory stays until it is unmapped for the last time
  drop_if_unused(id);
  return CUDA_SUCCESS;
}

void Handles::drop_if_unused(uint64_t id) {
  Handle* handle = handles_.find(id);
  if (handle->refs != 0 || handle->maps != 0) return;
  --live_[static_cast<size_t>(handle->prop.location.id)];
  if (!shared_.empty()) shared_.erase(handle->extent);
  machine_->drop(handle->extent);
  handles_.remove(id);
}

CUresult Handles::properties(uint64_t id, CUmemAllocationProp* prop) {
  Handle* handle = handles_.find(id);
  if (handle == nullptr || handle->refs == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "not a live handle");
  }
  *prop = handle->prop;
  return CUDA_SUCCESS;
}

CUresult Handles::hold_extent(uint32_t extent, uint32_t generation, const char* gone) {
  if (machine_->hold(extent, generation)) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_INVALID_VALUE, gone);
}

CUresult Handles::export_fd(uint64_t id, int* fd) {
  Handle* handle = handles_.find(id);
  if (handle == nullptr || handle->refs == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "not a live handle");
  }
  if ((handle->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "the handle was created without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
  }
  const CUresult result = machine_->export_fd(handle->extent, fd);
  if (result == CUDA_SUCCESS) shared_[handle->extent] = id;
  return result;
}

CUresult Handles::import_fd(int fd, uint64_t* id) {
  uint32_t extent = 0;
  CUresult result = machine_->import_fd(fd, &extent);
  if (result != CUDA_SUCCESS) return result;
  const auto known = shared_.find(extent);
  if (known != shared_.end()) {
    ++find(known->second)->refs;
    *id = known->second;
    return CUDA_SUCCESS;
  }
  // The memory may be of a GPU that CUDA_VISIBLE_DEVICES hides: "CUDA 10.1 and later can use P2P
  // with invisible devices" (NCCL, src/transport/p2p.cc, of ranks that see one GPU each and import
  // handles).
  result = hold_extent(extent, machine_->at(extent).generation, "the descriptor's memory is gone");
  if (result != CUDA_SUCCESS) return result;
  *id = adopt(extent);
  shared_[extent] = *id;
  return CUDA_SUCCESS;
}

}  // namespace simcuda
