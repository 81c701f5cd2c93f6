// Stream-ordered memory: the pools behind cuMemAllocAsync. CUDA C++ Programming Guide, Stream
// Ordered Memory Allocator. Memory comes from the device in segments of 32 MiB (seen on drivers;
// not documented) and is cut to multiples of 512 bytes.
//
// A stream may take the memory that was freed in it at once. Another stream may take it when the
// free is known to be done. Before an allocation fails, it waits for another stream's free if the
// pool permits that (CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES). This differs from a GPU in
// two ways. A stream that has waited by an event for another stream's free does not get that memory
// earlier. "Used" falls at the call, and not when the stream reaches the free.
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

  // If event `after` is recorded, the stream must wait for it before it uses the memory.
  CUresult allocate(Driver* driver, const Stream& stream, size_t bytes, CUdeviceptr* address,
                    Event* after, size_t* grown);
  bool owns(CUdeviceptr address) const;
  // The used block at an address; 0: there is none.
  size_t block_at(CUdeviceptr address, CUdeviceptr* base) const;
  void free(CUdeviceptr base, const Stream* stream, Event freed);
  // Gives segments without pending work back until at most `keep` bytes are left.
  void trim(Driver* driver, size_t keep);
  CUresult set_access(Driver* driver, const CUmemAccessDesc* desc, size_t count);
  CUresult get_access(int device, CUmemAccess_flags* flags) const;
  CUresult get(CUmemPool_attribute which, void* value) const;
  CUresult set(CUmemPool_attribute which, const void* value);
  bool empty() const { return segments_.empty(); }
  int device() const { return device_; }
  CUmemoryPool handle() const { return handle_; }  // the callers' handle
  void name(CUmemoryPool handle) { handle_ = handle; }
  // The pool is destroyed. It ends once none of its memory is in use.
  void doom() { doomed_ = true; }
  bool over() const { return doomed_ && empty(); }
  // Called after a wait of the host. Gives back what exceeds the threshold, and all memory of a
  // doomed pool.
  void waited(Driver* driver);

 private:
  struct Chunk {
    size_t bytes = 0;
    bool used = false;
    uint64_t stream = 0;  // number of the stream that freed it; 0: it is known to be free
    Event freed;
  };
  using Chunks = std::map<CUdeviceptr, Chunk>;

  Chunks::iterator best(uint64_t stream, size_t bytes, bool pending);
  void settle(Driver* driver);
  CUresult grow(Driver* driver, size_t bytes, size_t* grown);
  void grant(Driver* driver, CUdeviceptr segment);

  int device_;
  size_t most_;      // bytes; 0: the device's
  uint32_t access_;  // in the form of Page::access
  std::map<CUdeviceptr, size_t> segments_;
  Chunks chunks_;  // each byte of the segments is in one of these
  size_t reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0, threshold_ = 0;
  std::array<int, 3> reuse_{1, 1, 1};
  CUmemoryPool handle_ = nullptr;
  bool doomed_ = false;
};

}  // namespace simcuda
