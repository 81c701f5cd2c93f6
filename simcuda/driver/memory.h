// Virtual memory management: reservations, and the pages that map handles onto them.
// Every method runs under the driver's mutex.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "backing.h"
#include "handles.h"
#include "machine.h"
#include "types.h"
#include "visible.h"

namespace simcuda {

// One 2 MiB page of a reservation. A mapping covers whole handles, so `index`, the page's place in
// its handle, tells where mappings start and end.
struct Page {
  uint32_t handle;  // slot + 1; 0: unmapped
  uint32_t index;
  uint32_t access;  // two bits per device: 1 read, 3 read and write
};

struct Reservation {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  Page* page = nullptr;     // by calloc, so that untouched pages cost nothing
  size_t mapped = 0;        // pages
  uint64_t allocation = 0;  // the handle, if this is a cuMemAlloc block (or an opened IPC one)
  size_t requested = 0;     // the block's size as requested
  uint32_t opens = 0;       // times that an IPC block was opened; 0: it is no such block
  size_t limit = 0;         // of a block: the bytes that may be touched
  bool managed = false;     // by cuMemAllocManaged
  uint64_t owner = 0;       // the context with which the block ends; 0: none
};

struct MemoryCounts {
  int64_t reservations = 0, reserved_bytes = 0, handles = 0, mapped_pages = 0, granted_pages = 0;
};

class Memory {
 public:
  ~Memory();
  // For each number of a GPU `reach` has a bit for every device that can get access to its memory.
  CUresult start(Machine* machine, const VisibleGpus* gpus, bool phantom,
                 std::vector<uint32_t> reach, int64_t max_maps);

  CUresult reserve(size_t bytes, size_t alignment, CUdeviceptr hint, CUdeviceptr* address);
  CUresult free_range(CUdeviceptr address, size_t bytes);
  CUresult map(CUdeviceptr address, size_t bytes, size_t offset, uint64_t handle);
  // Both fail if the range cuts a mapping. Otherwise they count the mappings in it.
  CUresult unmap(CUdeviceptr address, size_t bytes, uint64_t* mappings = nullptr);
  CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* desc, size_t count,
                      uint64_t* mappings);
  CUresult get_access(CUdeviceptr address, int device, unsigned long long* flags);
  CUresult retain(CUdeviceptr address, uint64_t* handle);

  // For a block that is one mapping: every device may touch all of it.
  CUresult grant_all(Reservation* block);

  Reservation* find(CUdeviceptr address);
  std::vector<CUdeviceptr> owned_by(uint64_t context) const;
  Page* page_at(CUdeviceptr address, Reservation** reservation = nullptr);
  Handle* handle_of(const Page& page) { return &handles_.at(page.handle - 1); }
  // Whether `device` (-1: any) may read or write all of [address, address + bytes).
  bool accessible(CUdeviceptr address, size_t bytes, int device, bool write);
  MemoryCounts counts(int device);
  Handles& handles() { return handles_; }
  Machine* machine() { return machine_; }
  const VisibleGpus& gpus() const { return *gpus_; }
  const Backing& backing() const { return backing_; }

 private:
  struct AccessChange {
    uint32_t clear = 0, set = 0;  // bits of Page::access
    uint32_t devices = 0;         // those that get access
  };
  CUresult read_access(const CUmemAccessDesc* desc, size_t count, AccessChange* change);
  CUresult check_range(CUdeviceptr address, size_t bytes, Reservation** reservation, size_t* first,
                       size_t* pages);
  CUresult check_whole_mappings(const Reservation& reservation, size_t first, size_t pages,
                                uint32_t devices, uint64_t* mappings);
  bool splits(const Reservation& reservation, size_t page) const;
  int64_t count_splits(const Reservation& reservation, size_t first, size_t pages) const;

  Machine* machine_ = nullptr;
  const VisibleGpus* gpus_ = nullptr;
  Backing backing_;
  int devices_ = 0;
  std::vector<uint32_t> reach_;
  uint32_t* owner_ = nullptr;  // for every 2 MiB of address space: reservation slot + 1
  std::deque<Reservation> reservations_;
  std::vector<uint32_t> free_reservations_;
  Handles handles_;
  int64_t live_reservations_ = 0, reserved_bytes_ = 0;
  int64_t mapped_pages_[kMaxDevices] = {};
  int64_t granted_pages_[kMaxDevices] = {};
};

}  // namespace simcuda
