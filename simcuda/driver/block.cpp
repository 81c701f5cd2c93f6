// cuMemAlloc blocks (a reservation with one mapping), opened IPC blocks, and handles that cross
// processes.
#include <algorithm>

#include "memory.h"

namespace simcuda {
namespace {

constexpr size_t kSmallStep = 64 << 10;  // what blocks under 1 MiB are rounded up to

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

// Joins the holders of an extent that another process made.
CUresult Memory::hold_extent(uint32_t extent, uint32_t generation, const char* gone) {
  if (machine_->hold(extent, generation)) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_INVALID_VALUE, gone);
}

// A local handle for an extent this process already holds.
uint64_t Memory::adopt(uint32_t extent) {
  const Extent& physical = machine_->at(extent);
  Handle handle;
  handle.extent = extent;
  handle.refs = 1;
  handle.pages = static_cast<uint32_t>(round_up(physical.bytes, kGranule) / kGranule);
  handle.offset = physical.offset;
  handle.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  handle.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  handle.prop.location.id = gpus_->number(physical.device);
  handle.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ++live_handles_[handle.prop.location.id];
  return handles_.add(handle);
}

// Maps a whole handle somewhere, with every access granted.
CUresult Memory::place(uint64_t id, size_t requested, CUdeviceptr* address) {
  const Handle handle = *handles_.find(id);
  const size_t bytes = size_t{handle.pages} * kGranule;
  CUdeviceptr base = 0;
  CUresult result = backing_.room_for(4);
  if (result == CUDA_SUCCESS) result = reserve(bytes, 0, 0, &base);
  if (result != CUDA_SUCCESS) return result;
  if ((result = map(base, bytes, 0, id)) != CUDA_SUCCESS) {
    free_range(base, bytes);
    return result;
  }
  Reservation* block = find(base);
  block->limit = machine_->at(handle.extent).bytes;
  result = backing_.protect(base, block->limit, true, true);
  if (result != CUDA_SUCCESS) {
    unmap(base, bytes);
    free_range(base, bytes);
    return result;
  }
  for (size_t i = 0; i < handle.pages; ++i) block->page[i].access = ~0u;
  granted_pages_[handle.prop.location.id] += handle.pages;
  block->allocation = id;
  block->requested = requested;
  *address = base;
  return CUDA_SUCCESS;
}

CUresult Memory::allocate(int device, size_t bytes, CUdeviceptr* address) {
  if (bytes == 0) return fail(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc: size 0");
  if (bytes > machine_->capacity()) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY,
                "cuMemAlloc: " + std::to_string(bytes) + " bytes is more than the device has");
  }
  const size_t rounded = round_up(bytes, bytes < kGranule / 2 ? kSmallStep : kGranule);
  uint32_t extent = 0;
  CUresult result = machine_->acquire(gpus_->gpu(device), rounded, &extent);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t id = adopt(extent);
  result = place(id, bytes, address);
  if (result != CUDA_SUCCESS) {
    --handles_.find(id)->refs;
    drop_if_unused(id);
  }
  return result;
}

void Memory::remove_block(Reservation* block) {
  const uint64_t id = block->allocation;
  const CUdeviceptr base = block->base;
  const size_t bytes = block->bytes;
  --handles_.find(id)->refs;
  block->allocation = 0;
  unmap(base, bytes);  // drops the handle
  free_range(base, bytes);
}

CUresult Memory::free_block(CUdeviceptr address) {
  Reservation* block = find(address);
  if (block == nullptr || block->base != address || block->allocation == 0 || block->opens != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemFree: not a cuMemAlloc block");
  }
  remove_block(block);
  return CUDA_SUCCESS;
}

CUresult Memory::open_block(uint32_t extent, uint32_t generation, size_t requested,
                            CUdeviceptr* address) {
  const auto known = opened_.find(extent);
  if (known != opened_.end()) {
    ++find(known->second)->opens;
    *address = known->second;
    return CUDA_SUCCESS;
  }
  CUresult result = hold_extent(extent, generation, "cuIpcOpenMemHandle: the memory is gone");
  if (result != CUDA_SUCCESS) return result;
  if (gpus_->device(machine_->at(extent).device) < 0) {
    const std::string gpu = std::to_string(machine_->at(extent).device);
    machine_->drop(extent);
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                "the memory is of the machine's GPU " + gpu +
                    ", which CUDA_VISIBLE_DEVICES hides from this process; simcuda opens legacy "
                    "memory of GPUs it sees");
  }
  const uint64_t id = adopt(extent);
  result = place(id, requested, address);
  if (result != CUDA_SUCCESS) {
    --handles_.find(id)->refs;
    drop_if_unused(id);
    return result;
  }
  find(*address)->opens = 1;
  opened_[extent] = *address;
  return CUDA_SUCCESS;
}

CUresult Memory::close_block(CUdeviceptr address) {
  Reservation* block = find(address);
  if (block == nullptr || block->base != address || block->opens == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuIpcCloseMemHandle: not an opened block");
  }
  if (--block->opens > 0) return CUDA_SUCCESS;
  opened_.erase(handles_.find(block->allocation)->extent);
  remove_block(block);
  return CUDA_SUCCESS;
}

CUresult Memory::export_fd(uint64_t id, int* fd) {
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

CUresult Memory::import_fd(int fd, uint64_t* id) {
  uint32_t extent = 0;
  CUresult result = machine_->import_fd(fd, &extent);
  if (result != CUDA_SUCCESS) return result;
  const auto known = shared_.find(extent);
  if (known != shared_.end()) {
    ++handles_.find(known->second)->refs;
    *id = known->second;
    return CUDA_SUCCESS;
  }
  // Of a GPU that CUDA_VISIBLE_DEVICES hides, too: "CUDA 10.1 and later can use P2P with invisible
  // devices" (NCCL, src/transport/p2p.cc, of ranks that see one GPU each and import handles).
  result = hold_extent(extent, machine_->at(extent).generation, "the descriptor's memory is gone");
  if (result != CUDA_SUCCESS) return result;
  *id = adopt(extent);
  shared_[extent] = *id;
  return CUDA_SUCCESS;
}

}  // namespace simcuda
