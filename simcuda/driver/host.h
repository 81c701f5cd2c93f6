// Host memory that the driver knows, because it was allocated pinned, or registered.
#pragma once

#include <map>
#include <vector>

#include "types.h"

namespace simcuda {

struct HostBlock {
  size_t bytes = 0;
  unsigned flags = 0;
  bool registered = false;  // the caller's own memory
  uint64_t owner = 0;       // the context with which it ends; 0: none
};

class HostMemory {
 public:
  ~HostMemory();
  CUresult allocate(size_t bytes, unsigned flags, uint64_t owner, void** address);
  CUresult free(void* address);
  CUresult add(void* address, size_t bytes, unsigned flags);
  CUresult remove(void* address);
  std::vector<void*> owned_by(uint64_t context) const;
  // The block that holds [address, address + bytes), and its base.
  const HostBlock* find(uint64_t address, size_t bytes, uint64_t* base) const;
  // How much of a range is pinned, by one block or by several adjacent ones.
  enum class Extent { kNone, kPart, kAll };
  Extent pinned_extent(uint64_t address, size_t bytes) const;
  bool pinned(uint64_t address, size_t bytes) const {
    return pinned_extent(address, bytes) == Extent::kAll;
  }
  size_t blocks() const { return blocks_.size(); }
  size_t bytes() const { return bytes_; }

  // Sets the socket of a range of any host memory, known or not; -1: it is spread over all sockets.
  void place(uint64_t address, size_t bytes, int node);
  // The bytes of the range on each socket; -1: spread over all. Bytes that nobody placed count for
  // none.
  std::map<int, size_t> placed(uint64_t address, size_t bytes) const;

 private:
  struct Placed {
    uint64_t end;
    int node;
  };
  void unplace(uint64_t address, size_t bytes);

  std::map<uint64_t, HostBlock> blocks_;
  size_t bytes_ = 0;
  std::map<uint64_t, Placed> placed_;  // by start; they do not overlap
};

}  // namespace simcuda
