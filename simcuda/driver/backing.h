// Virtual addresses and the kernel mappings behind them. Real memory is mapped by mmap from the
// machine's memory file. Phantom memory has addresses only, from an address space of simcuda's own.
#pragma once

#include <map>
#include <set>

#include "types.h"

namespace simcuda {

class Backing {
 public:
  void start(bool phantom, int memory_fd, int64_t max_maps);
  bool phantom() const { return phantom_; }

  CUresult reserve(size_t bytes, size_t alignment, CUdeviceptr hint, CUdeviceptr* address);
  void release(CUdeviceptr address, size_t bytes);
  // None of these fails because Linux has no mappings left. Callers of map() and protect() ask
  // room_for() first, and unmap() may use the headroom.
  CUresult map(CUdeviceptr address, size_t bytes, uint64_t offset);
  CUresult unmap(CUdeviceptr address, size_t bytes);
  CUresult protect(CUdeviceptr address, size_t bytes, bool read, bool write);

  // Checks that this process may add so many mappings of Linux and still keep the headroom for
  // undoing.
  CUresult room_for(int64_t maps) const;
  void count_maps(int64_t change) { maps_ += change; }
  int64_t maps() const { return maps_; }

 private:
  CUresult reserve_phantom(size_t bytes, size_t alignment, CUdeviceptr* address);

  bool phantom_ = false;
  int memory_fd_ = -1;
  int64_t maps_ = 0, max_maps_ = 0, limit_ = 0;
  std::map<CUdeviceptr, size_t> free_;              // phantom: free ranges by address
  std::set<std::pair<size_t, CUdeviceptr>> sizes_;  // and by size
};

}  // namespace simcuda
