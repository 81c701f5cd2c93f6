// Stream-ordered memory: pools behind cuMemAllocAsync. CUDA C++ Programming Guide, Stream Ordered
// Memory Allocator. Memory is taken from the device in segments of 32 MiB (as seen of drivers;
// not documented) and cut to multiples of 512 bytes.
//
// Memory freed in a stream is taken again in that stream at once, in another one when the free is
// known to be done; before an allocation fails it waits for another stream's free, where the pool
// may (CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES). Not modelled: memory whose free another
// stream has waited for by an event is not taken early; "used" falls at the call, not when the
// stream comes to the free.
#pragma once

#include <array>
#include <map>

#include "memory.h"
#include "stream.h"
#include "types.h"

namespace simcuda {

class Driver;

class Pool {
 public:
  Pool(int device, size_t most);

  // `after`: an event the stream must wait for first; never recorded: none.
  CUresult allocate(Driver* driver, const Stream& stream, size_t bytes, CUdeviceptr* address,
                    Event* after, size_t* grown);
  bool owns(CUdeviceptr address) const;
  // The used block at an address; 0: none.
  size_t block_at(CUdeviceptr address, CUdeviceptr* base) const;
  void free(CUdeviceptr base, const Stream* stream, Event freed);
  // Gives segments without pending work back until no more than `keep` bytes are left.
  void trim(Driver* driver, size_t keep);
  CUresult set_access(Driver* driver, const CUmemAccessDesc* desc, size_t count);
  CUresult get_access(int device, CUmemAccess_flags* flags) const;
  CUresult get(CUmemPool_attribute which, void* value) const;
  CUresult set(CUmemPool_attribute which, const void* value);
  bool empty() const { return segments_.empty(); }
  int device() const { return device_; }
  CUmemoryPool handle() const { return handle_; }  // by which callers know it
  void name(CUmemoryPool handle) { handle_ = handle; }
  // It is destroyed, and ends once nothing of it is in use.
  void doom() { doomed_ = true; }
  bool over() const { return doomed_ && empty(); }
  // After a wait of the host: what is beyond its threshold goes back, or all of a doomed one.
  void waited(Driver* driver);

 private:
  struct Chunk {
    size_t bytes = 0;
    bool used = false;
    uint64_t stream = 0;  // number of the one that freed it; 0: known to be free
    Event freed;
  };
  using Chunks = std::map<CUdeviceptr, Chunk>;

  Chunks::iterator best(uint64_t stream, size_t bytes, bool pending);
  void settle(Driver* driver);
  CUresult grow(Driver* driver, size_t bytes, size_t* grown);
  void grant(Driver* driver, CUdeviceptr segment);

  int device_;
  size_t most_;      // bytes; 0: the device's
  uint32_t access_;  // as Page::access
  std::map<CUdeviceptr, size_t> segments_;
  Chunks chunks_;  // every byte of the segments is in one
  size_t reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0, threshold_ = 0;
  std::array<int, 3> reuse_{1, 1, 1};
  CUmemoryPool handle_ = nullptr;
  bool doomed_ = false;
};

}  // namespace simcuda
