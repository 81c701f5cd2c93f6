// Pinned and registered host memory.
#include "host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace simcuda {
namespace {

// Whether all of it is mapped memory of this process.
bool mapped(uint64_t at, size_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 4096> resident;
  if (bytes > UINT64_MAX - at) return false;
  const uint64_t end = at + bytes;
  for (at -= at % page; at < end; at += resident.size() * page) {
    const size_t piece = std::min<size_t>(end - at, resident.size() * page);
    if (mincore(reinterpret_cast<void*>(at), piece, resident.data()) != 0) return false;
  }
  return true;
}

}  // namespace

HostMemory::~HostMemory() {
  for (const auto& [address, block] : blocks_) {
    if (!block.registered) munmap(reinterpret_cast<void*>(address), block.bytes);
  }
}

CUresult HostMemory::allocate(size_t bytes, unsigned flags, uint64_t owner, void** address) {
  if (bytes == 0) return fail(CUDA_ERROR_INVALID_VALUE, "pinned host memory: size 0");
  void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY, std::string("pinned host memory: ") + strerror(errno));
  }
  blocks_[reinterpret_cast<uint64_t>(got)] = {bytes, flags, false, owner};
  bytes_ += bytes;
  *address = got;
  return CUDA_SUCCESS;
}

CUresult HostMemory::free(void* address) {
  const auto found = blocks_.find(reinterpret_cast<uint64_t>(address));
  if (found == blocks_.end() || found->second.registered) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost: not a pinned allocation");
  }
  unplace(found->first, found->second.bytes);
  munmap(address, found->second.bytes);
  bytes_ -= found->second.bytes;
  blocks_.erase(found);
  return CUDA_SUCCESS;
}

CUresult HostMemory::add(void* address, size_t bytes, unsigned flags) {
  const auto start = reinterpret_cast<uint64_t>(address);
  if (address == nullptr || bytes == 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemHostRegister: no memory");
  }
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if ((flags & ~kFlags) != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "cuMemHostRegister: unknown bits in flags " + std::to_string(flags));
  }
  if (!mapped(start, bytes)) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuMemHostRegister: part of it is not mapped");
  }
  const auto next = blocks_.lower_bound(start);
  const bool overlaps_next = next != blocks_.end() && next->first < start + bytes;
  const bool overlaps_previous =
      next != blocks_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > start;
  if (overlaps_next || overlaps_previous) {
    return fail(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part of it is registered already");
  }
  blocks_[start] = {bytes, flags, true, 0};
  bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult HostMemory::remove(void* address) {
  const auto found = blocks_.find(reinterpret_cast<uint64_t>(address));
  if (found == blocks_.end() || !found->second.registered) {
    return fail(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister: not registered");
  }
  bytes_ -= found->second.bytes;
  blocks_.erase(found);
  return CUDA_SUCCESS;
}

std::vector<void*> HostMemory::owned_by(uint64_t context) const {
  std::vector<void*> owned;
  for (const auto& [address, block] : blocks_) {
    if (block.owner == context) owned.push_back(reinterpret_cast<void*>(address));
  }
  return owned;
}

const HostBlock* HostMemory::find(uint64_t address, size_t bytes, uint64_t* base) const {
  auto found = blocks_.upper_bound(address);
  if (found == blocks_.begin()) return nullptr;
  --found;
  if (address + bytes > found->first + found->second.bytes) return nullptr;
  if (base != nullptr) *base = found->first;
  return &found->second;
}

HostMemory::Extent HostMemory::pinned_extent(uint64_t address, size_t bytes) const {
  const uint64_t end = address + bytes;
  auto block = blocks_.upper_bound(address);
  if (block != blocks_.begin()) {
    const auto& [base, before] = *std::prev(block);
    if (address < base + before.bytes) --block;
  }
  if (block == blocks_.end() || block->first >= std::max(end, address + 1)) return Extent::kNone;
  for (uint64_t at = address; block != blocks_.end() && block->first <= at; ++block) {
    at = block->first + block->second.bytes;
    if (at >= end) return Extent::kAll;
  }
  return Extent::kPart;
}

void HostMemory::unplace(uint64_t address, size_t bytes) {
  const uint64_t end = address + bytes;
  auto at = placed_.lower_bound(address);
  if (at != placed_.begin() && std::prev(at)->second.end > address) {
    --at;
    const Placed before = at->second;
    at->second.end = address;
    if (before.end > end) placed_[end] = before;
    ++at;
  }
  while (at != placed_.end() && at->first < end) {
    const Placed each = at->second;
    at = placed_.erase(at);
    if (each.end > end) placed_[end] = each;
  }
}

void HostMemory::place(uint64_t address, size_t bytes, int node) {
  if (bytes == 0) return;
  unplace(address, bytes);
  placed_[address] = {address + bytes, node};
}

std::map<int, size_t> HostMemory::placed(uint64_t address, size_t bytes) const {
  std::map<int, size_t> on;
  auto at = placed_.upper_bound(address);
  if (at != placed_.begin() && std::prev(at)->second.end > address) --at;
  for (; at != placed_.end() && at->first < address + bytes; ++at) {
    const uint64_t begin = std::max(at->first, address);
    on[at->second.node] += std::min<uint64_t>(at->second.end, address + bytes) - begin;
  }
  return on;
}

}  // namespace simcuda
