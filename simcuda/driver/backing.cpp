// Reserves, maps, unmaps and protects address ranges.
#include "backing.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace simcuda {
namespace {

// Phantom addresses are above any heap of a non-PIE program, and below PIE heaps and mmap areas.
constexpr CUdeviceptr kPhantomBase = CUdeviceptr{1} << 40;
constexpr CUdeviceptr kPhantomEnd = CUdeviceptr{5} << 44;

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult kernel_refused(const char* what) {
  return fail(CUDA_ERROR_OPERATING_SYSTEM, std::string(what) + ": " + strerror(errno));
}

int64_t count_lines(const char* path) {
  std::ifstream file(path);
  int64_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

}  // namespace

void Backing::start(bool phantom, int memory_fd, int64_t max_maps) {
  phantom_ = phantom;
  memory_fd_ = memory_fd;
  if (phantom) {
    free_[kPhantomBase] = kPhantomEnd - kPhantomBase;
    sizes_.insert({kPhantomEnd - kPhantomBase, kPhantomBase});
    return;
  }
  max_maps_ = 65530;  // Linux's default
  std::ifstream("/proc/sys/vm/max_map_count") >> max_maps_;
  int64_t others = count_lines("/proc/self/maps");
  if (max_maps > 0) {
    max_maps_ = max_maps;
    others = 0;
  }
  // One eighth is kept for the rest of the process, and for undoing half-done work.
  limit_ = max_maps_ - max_maps_ / 8 - others;
}

CUresult Backing::room_for(int64_t maps) const {
  if (phantom_ || maps_ + maps <= limit_) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_MAP_FAILED,
              "simcuda holds " + std::to_string(maps_) +
                  " kernel mappings, its share of "
                  "vm.max_map_count = " +
                  std::to_string(max_maps_) +
                  " (an eighth is kept as "
                  "headroom). Raise it with sysctl vm.max_map_count=N, or use option phantom=1");
}

CUresult Backing::reserve(size_t bytes, size_t alignment, CUdeviceptr hint, CUdeviceptr* address) {
  if (phantom_) return reserve_phantom(bytes, alignment, address);
  const CUresult room = room_for(1);
  if (room != CUDA_SUCCESS) return room;
  const size_t padded = bytes + alignment;
  if (padded < bytes) return fail(CUDA_ERROR_OUT_OF_MEMORY, "reservation larger than memory");
  void* got =
      mmap(pointer(hint), padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY, std::string("reserve: ") + strerror(errno));
  }
  const auto start = reinterpret_cast<CUdeviceptr>(got);
  const CUdeviceptr aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(got, aligned - start);
  const size_t tail = start + padded - (aligned + bytes);
  if (tail > 0) munmap(pointer(aligned + bytes), tail);
  ++maps_;
  *address = aligned;
  return CUDA_SUCCESS;
}

CUresult Backing::reserve_phantom(size_t bytes, size_t alignment, CUdeviceptr* address) {
  // Best fit. It takes the shortest range that is long enough and still is when it is aligned.
  for (auto fit = sizes_.lower_bound({bytes, 0}); fit != sizes_.end(); ++fit) {
    const auto [size, start] = *fit;
    const CUdeviceptr aligned = (start + alignment - 1) / alignment * alignment;
    if (aligned < start || aligned + bytes > start + size) continue;
    sizes_.erase(fit);
    free_.erase(start);
    const size_t before = aligned - start, after = start + size - (aligned + bytes);
    if (before > 0) {
      free_[start] = before;
      sizes_.insert({before, start});
    }
    if (after > 0) {
      free_[aligned + bytes] = after;
      sizes_.insert({after, aligned + bytes});
    }
    *address = aligned;
    return CUDA_SUCCESS;
  }
  return fail(CUDA_ERROR_OUT_OF_MEMORY, "no free range of virtual addresses is long enough");
}

void Backing::release(CUdeviceptr address, size_t bytes) {
  if (!phantom_) {
    munmap(pointer(address), bytes);
    --maps_;
    return;
  }
  auto next = free_.lower_bound(address);
  if (next != free_.end() && address + bytes == next->first) {
    bytes += next->second;
    sizes_.erase({next->second, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      address = previous->first;
      bytes += previous->second;
      sizes_.erase({previous->second, previous->first});
      free_.erase(previous);
    }
  }
  free_[address] = bytes;
  sizes_.insert({bytes, address});
}

CUresult Backing::map(CUdeviceptr address, size_t bytes, uint64_t offset) {
  if (phantom_) return CUDA_SUCCESS;
  void* got = mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory_fd_,
                   static_cast<off_t>(offset));
  return got == MAP_FAILED ? kernel_refused("map") : CUDA_SUCCESS;
}

CUresult Backing::unmap(CUdeviceptr address, size_t bytes) {
  if (phantom_) return CUDA_SUCCESS;
  void* got = mmap(pointer(address), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return got == MAP_FAILED ? kernel_refused("unmap") : CUDA_SUCCESS;
}

CUresult Backing::protect(CUdeviceptr address, size_t bytes, bool read, bool write) {
  if (phantom_) return CUDA_SUCCESS;
  const int flags = (read ? PROT_READ : 0) | (write ? PROT_WRITE : 0);
  return mprotect(pointer(address), bytes, flags) != 0 ? kernel_refused("protect") : CUDA_SUCCESS;
}

}  // namespace simcuda
