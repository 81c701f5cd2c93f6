// Blocks of cuMemAlloc, and blocks of other processes (IPC). Each is a reservation with one
// mapping, which grants every access.
#pragma once

#include <unordered_map>

#include "memory.h"
#include "types.h"

namespace simcuda {

class Blocks {
 public:
  explicit Blocks(Memory* memory) : memory_(memory) {}

  CUresult allocate(int device, size_t bytes, CUdeviceptr* address);
  CUresult free(CUdeviceptr address);
  // Opens a block of another process.
  CUresult open(uint32_t extent, uint32_t generation, size_t requested, CUdeviceptr* address);
  CUresult close(CUdeviceptr address);

 private:
  CUresult place(uint32_t extent, size_t requested, CUdeviceptr* address);
  CUresult map_whole(uint64_t id, size_t requested, CUdeviceptr* address);
  void remove(Reservation* block);
  Handles& handles() { return memory_->handles(); }

  Memory* const memory_;
  std::unordered_map<uint32_t, CUdeviceptr> opened_;  // extent -> block, of opened IPC blocks
};

}  // namespace simcuda
