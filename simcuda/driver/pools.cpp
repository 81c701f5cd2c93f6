#include "pools.h"

#include <algorithm>

#include "driver.h"

namespace simcuda {

void Pools::start(int devices) {
  for (int device = 0; device < devices; ++device) defaults_.push_back(create(device, 0));
  current_ = defaults_;
}

CUmemoryPool Pools::create(int device, size_t most) {
  pools_.push_back(std::make_unique<Pool>(device, most));
  Pool* pool = pools_.back().get();
  pool->name(reinterpret_cast<CUmemoryPool>(handles_.add(pool)));
  return pool->handle();
}

Pool* Pools::find(CUmemoryPool handle) {
  Pool** found = handles_.find(reinterpret_cast<uint64_t>(handle));
  return found == nullptr ? nullptr : *found;
}

// "Destroying the current mempool of a device sets the default mempool of that device as the
// current mempool". Memory in use stays until it is freed (cuMemPoolDestroy).
CUresult Pools::destroy(Driver* driver, CUmemoryPool handle) {
  Pool* pool = find(handle);
  if (pool == nullptr) return bad_handle("pool");
  if (std::find(defaults_.begin(), defaults_.end(), handle) != defaults_.end()) {
    return fail(CUDA_ERROR_INVALID_VALUE, "a device's default pool cannot be destroyed");
  }
  for (size_t device = 0; device < current_.size(); ++device) {
    if (current_[device] == handle) current_[device] = defaults_[device];
  }
  handles_.remove(reinterpret_cast<uint64_t>(handle));
  pool->doom();
  waited(driver);
  return CUDA_SUCCESS;
}

Pool* Pools::owner(CUdeviceptr address) {
  for (const auto& pool : pools_) {
    if (pool->owns(address)) return pool.get();
  }
  return nullptr;
}

void Pools::waited(Driver* driver) {
  for (const auto& pool : pools_) pool->waited(driver);
  pools_.remove_if([](const auto& pool) { return pool->over(); });
}

}  // namespace simcuda
