#include "blocks.h"

#include <string>

namespace simcuda {
namespace {

constexpr size_t kSmallStep = 64 << 10;  // what blocks under 1 MiB are rounded up to

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

// Gives the extent a handle and a block. If that fails, this process no longer holds the extent.
CUresult Blocks::place(uint32_t extent, size_t requested, CUdeviceptr* address) {
  const uint64_t id = handles().adopt(extent);
  const CUresult result = map_whole(id, requested, address);
  if (result != CUDA_SUCCESS) {
    --handles().find(id)->refs;
    handles().drop_if_unused(id);
  }
  return result;
}

// Maps a whole handle somewhere, with every access granted.
CUresult Blocks::map_whole(uint64_t id, size_t requested, CUdeviceptr* address) {
  const Handle handle = *handles().find(id);
  const size_t bytes = size_t{handle.pages} * kGranule;
  CUdeviceptr base = 0;
  CUresult result = memory_->backing().room_for(4);
  if (result == CUDA_SUCCESS) result = memory_->reserve(bytes, 0, 0, &base);
  if (result != CUDA_SUCCESS) return result;
  Reservation* block = memory_->find(base);
  result = memory_->map(base, bytes, 0, id);
  const bool mapped = result == CUDA_SUCCESS;
  if (mapped) {
    block->limit = memory_->machine()->at(handle.extent).bytes;
    result = memory_->grant_all(block);
  }
  if (result != CUDA_SUCCESS) {
    if (mapped) memory_->unmap(base, bytes);
    memory_->free_range(base, bytes);
    return result;
  }
  block->allocation = id;
  block->requested = requested;
  *address = base;
  return CUDA_SUCCESS;
}

CUresult Blocks::allocate(int device, size_t bytes, CUdeviceptr* address) {
  if (bytes == 0) return fail(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc: size 0");
  if (bytes > memory_->machine()->capacity()) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY,
                "cuMemAlloc: " + std::to_string(bytes) + " bytes is more than the device has");
  }
  const size_t rounded = round_up(bytes, bytes < kGranule / 2 ? kSmallStep : kGranule);
  uint32_t extent = 0;
  CUresult result = memory_->machine()->acquire(memory_->gpus().gpu(device), rounded, &extent);
  return result != CUDA_SUCCESS ? result : place(extent, bytes, address);
}

void Blocks::remove(Reservation* block) {
  const uint64_t id = block->allocation;
  const CUdeviceptr base = block->base;
  const size_t bytes = block->bytes;
  --handles().find(id)->refs;
  block->allocation = 0;
  memory_->unmap(base, bytes);  // drops the handle
  memory_->free_range(base, bytes);
}

CUresult Blocks::free(CUdeviceptr address) {
  Reservation* block = memory_->find(address);
  if (block == nullptr || block->base != address || block->allocation == 0 || block->opens != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemFree: not a cuMemAlloc block");
  }
  remove(block);
  return CUDA_SUCCESS;
}

CUresult Blocks::open(uint32_t extent, uint32_t generation, size_t requested,
                      CUdeviceptr* address) {
  const auto known = opened_.find(extent);
  if (known != opened_.end()) {
    ++memory_->find(known->second)->opens;
    *address = known->second;
    return CUDA_SUCCESS;
  }
  CUresult result =
      handles().hold_extent(extent, generation, "cuIpcOpenMemHandle: the memory is gone");
  if (result != CUDA_SUCCESS) return result;
  if (memory_->gpus().device(memory_->machine()->at(extent).device) < 0) {
    const std::string gpu = std::to_string(memory_->machine()->at(extent).device);
    memory_->machine()->drop(extent);
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                "the memory is of the machine's GPU " + gpu +
                    ", which CUDA_VISIBLE_DEVICES hides from this process; simcuda opens legacy "
                    "memory of GPUs it sees");
  }
  result = place(extent, requested, address);
  if (result != CUDA_SUCCESS) return result;
  memory_->find(*address)->opens = 1;
  opened_[extent] = *address;
  return CUDA_SUCCESS;
}

CUresult Blocks::close(CUdeviceptr address) {
  Reservation* block = memory_->find(address);
  if (block == nullptr || block->base != address || block->opens == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuIpcCloseMemHandle: not an opened block");
  }
  if (--block->opens > 0) return CUDA_SUCCESS;
  opened_.erase(handles().find(block->allocation)->extent);
  remove(block);
  return CUDA_SUCCESS;
}

}  // namespace simcuda
