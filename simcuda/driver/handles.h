// Handles of physical memory. They are created, or imported from other processes, and end with
// their last use.
#pragma once

#include <array>
#include <unordered_map>

#include "machine.h"
#include "types.h"
#include "visible.h"

namespace simcuda {

struct Handle {
  uint32_t extent = 0;
  uint32_t refs = 0, maps = 0;
  uint32_t pages = 0;
  uint64_t offset = 0;
  CUmemAllocationProp prop{};
};

class Handles {
 public:
  void start(Machine* machine, const VisibleGpus* gpus) {
    machine_ = machine;
    gpus_ = gpus;
  }

  CUresult create(size_t bytes, const CUmemAllocationProp& prop, uint64_t* handle);
  // Makes a handle for an extent that this process already holds.
  uint64_t adopt(uint32_t extent);
  CUresult release(uint64_t handle, uint32_t* pages);
  // Called after a reference or a mapping of it has gone.
  void drop_if_unused(uint64_t id);
  CUresult properties(uint64_t handle, CUmemAllocationProp* prop);
  // Makes this process a holder of an extent that another process made.
  CUresult hold_extent(uint32_t extent, uint32_t generation, const char* gone);
  CUresult export_fd(uint64_t handle, int* fd);
  CUresult import_fd(int fd, uint64_t* handle);

  Handle* find(uint64_t id) { return handles_.find(id); }
  // The handle by the slot that a page stores.
  Handle& at(uint32_t slot) { return handles_.at(slot); }
  const Handle& at(uint32_t slot) const { return handles_.at(slot); }
  uint64_t id(uint32_t slot) const { return handles_.id(slot); }
  int64_t live(int device) const { return live_[static_cast<size_t>(device)]; }

 private:
  Machine* machine_ = nullptr;
  const VisibleGpus* gpus_ = nullptr;
  Slots<Handle, 1> handles_;
  // The handle of each extent that was exported or imported.
  std::unordered_map<uint32_t, uint64_t> shared_;
  std::array<int64_t, kMaxDevices> live_{};
};

}  // namespace simcuda
