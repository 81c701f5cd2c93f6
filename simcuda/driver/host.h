// Host memory the driver knows: allocated pinned, or registered.
#pragma once

#include <map>

#include "types.h"

namespace simcuda {

struct HostBlock {
  size_t bytes = 0;
  unsigned flags = 0;
  bool registered = false;  // the caller's memory, not ours
};

class HostMemory {
 public:
  ~HostMemory();
  CUresult allocate(size_t bytes, unsigned flags, void** address);
  CUresult free(void* address);
  CUresult add(void* address, size_t bytes, unsigned flags);
  CUresult remove(void* address);
  // The block that holds [address, address + bytes), and where it starts.
  const HostBlock* find(uint64_t address, size_t bytes, uint64_t* base) const;
  // How much of a range is pinned, by one block or by several that follow each other.
  enum class Extent { kNone, kPart, kAll };
  Extent pinned_extent(uint64_t address, size_t bytes) const;
  bool pinned(uint64_t address, size_t bytes) const {
    return pinned_extent(address, bytes) == Extent::kAll;
  }
  size_t blocks() const { return blocks_.size(); }
  size_t bytes() const { return bytes_; }

  // The socket whose memory a range is in; -1: spread over all. Of any host memory, known or not.
  void place(uint64_t address, size_t bytes, int node);
  // Where most of the range's placed bytes are; -1: a copy of it is of several. False: none is.
  bool placed(uint64_t address, size_t bytes, int* node) const;

 private:
  struct Placed {
    uint64_t end;
    int node;
  };
  void unplace(uint64_t address, size_t bytes);

  std::map<uint64_t, HostBlock> blocks_;
  size_t bytes_ = 0;
  std::map<uint64_t, Placed> placed_;  // by start, apart from each other
};

}  // namespace simcuda
