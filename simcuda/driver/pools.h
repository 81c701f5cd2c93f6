// The pools of all devices, by their handles.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "pool.h"
#include "types.h"

namespace simcuda {

class Driver;

class Pools {
 public:
  void start(int devices);
  CUmemoryPool create(int device, size_t most);
  CUresult destroy(Driver* driver, CUmemoryPool handle);
  Pool* find(CUmemoryPool handle);
  CUmemoryPool default_of(int device) const { return defaults_[static_cast<size_t>(device)]; }
  CUmemoryPool current_of(int device) const { return current_[static_cast<size_t>(device)]; }
  void use(int device, CUmemoryPool pool) { current_[static_cast<size_t>(device)] = pool; }
  Pool* owner(CUdeviceptr address);
  bool any() const { return any_; }
  void taken() { any_ = true; }
  // Called after a wait of the host (Pool::waited). Ends doomed pools.
  void waited(Driver* driver);

 private:
  std::list<std::unique_ptr<Pool>> pools_;
  Slots<Pool*, 10> handles_;
  std::vector<CUmemoryPool> defaults_, current_;
  bool any_ = false;  // some pool has had memory
};

}  // namespace simcuda
