#include "torch/cuda/uncached_blocks.h"

#include <cstdlib>
#include <string>

#include "torch/cuda/calls.h"
#include "torch/cuda/on_device.h"
#include "torch/cuda/outside_claim.h"

namespace glake::adapter {

UncachedBlocks::UncachedBlocks(const CudaLibrary& library, const BlockListeners& listeners)
    : library_(library), listeners_(listeners) {
  const char* uncached = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  if (uncached != nullptr && std::string(uncached) == "1") caching_.store(false);
}

void* UncachedBlocks::obtain(size_t bytes, int device) {
  OutsideClaim claim(library_, device, bytes);
  if (!claim.granted()) raise_error(library_, bytes);
  void* ptr = nullptr;
  cudaError_t status = cudaMalloc(&ptr, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    require(library_, library_.empty_cache(device));
    status = cudaMalloc(&ptr, bytes);
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    TORCH_CHECK_WITH(OutOfMemoryError, false, kOutOfMemoryPhrase, "glake: with caching off, the ",
                     "driver has no ", bytes, " bytes in one piece on cuda:", device);
  }
  C10_CUDA_CHECK(status);
  claim.keep();
  {
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_[ptr] = {bytes, device};
    any_.store(true);
  }
  listeners_.tell(ptr, static_cast<int64_t>(bytes), device);
  return ptr;
}

bool UncachedBlocks::give_back(void* ptr) {
  Block was;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = blocks_.find(ptr);
    if (found == blocks_.end()) return false;
    was = found->second;
    blocks_.erase(found);
  }
  listeners_.tell(ptr, -static_cast<int64_t>(was.bytes), was.device);
  OnDevice on(was.device);
  C10_CUDA_CHECK(cudaFree(ptr));
  (void)library_.claim_outside(was.device, -static_cast<int64_t>(was.bytes));
  return true;
}

bool UncachedBlocks::describe(const void* ptr, Block* out) const {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = blocks_.find(ptr);
  if (found == blocks_.end()) return false;
  *out = found->second;
  return true;
}

}  // namespace glake::adapter
