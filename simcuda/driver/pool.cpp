#include "pool.h"

#include <algorithm>
#include <cstring>

#include "base/numbers.h"
#include "driver.h"

namespace simcuda {
namespace {

constexpr size_t kSegment = size_t{32} << 20, kUnit = 512;

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

bool done(Driver* driver, const Event& freed) {
  if (freed.op != nullptr) return freed.op->applied;
  return driver->tick_clock.complete(freed);
}

}  // namespace

Pool::Pool(int device, size_t most) : device_(device), most_(most), access_(3u << (2 * device)) {}

// The smallest free chunk that is large enough. It is free in the stream's order or, with
// `pending`, waits for another stream's work.
Pool::Chunks::iterator Pool::best(uint64_t stream, size_t bytes, bool pending) {
  auto found = chunks_.end();
  for (auto at = chunks_.begin(); at != chunks_.end(); ++at) {
    const Chunk& chunk = at->second;
    const bool ordered = chunk.stream == 0 || chunk.stream == stream;
    if (chunk.used || chunk.bytes < bytes || ordered == pending) continue;
    if (found == chunks_.end() || chunk.bytes < found->second.bytes) found = at;
  }
  return found;
}

// Notes what is now known to be free, and joins neighbours that are free in the same way.
void Pool::settle(Driver* driver) {
  for (auto at = chunks_.begin(); at != chunks_.end();) {
    Chunk& chunk = at->second;
    if (!chunk.used && chunk.stream != 0 && done(driver, chunk.freed)) {
      chunk.stream = 0;
      chunk.freed = {};
    }
    auto before = at == chunks_.begin() ? chunks_.end() : std::prev(at);
    const bool joins = before != chunks_.end() && !chunk.used && !before->second.used &&
                       before->second.stream == chunk.stream &&
                       before->first + before->second.bytes == at->first &&
                       segments_.count(at->first) == 0;
    if (!joins) {
      ++at;
      continue;
    }
    before->second.bytes += chunk.bytes;
    Event& freed = before->second.freed;  // in one stream the later free covers both
    const bool later = chunk.freed.op != nullptr && freed.op != nullptr
                           ? chunk.freed.op->seq > freed.op->seq
                           : chunk.freed.seq > freed.seq;
    if (later) freed = chunk.freed;
    at = chunks_.erase(at);
  }
}

void Pool::grant(Driver* driver, CUdeviceptr segment) {
  Reservation* block = driver->memory.find(segment);
  for (size_t i = 0; i < block->bytes / kGranule; ++i) block->page[i].access = access_;
}

CUresult Pool::grow(Driver* driver, size_t bytes, size_t* grown) {
  CUdeviceptr base = 0;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (const size_t step : {kSegment, kGranule}) {
    *grown = round_up(bytes, step);
    if (most_ != 0 && reserved_ + *grown > most_) {
      result = fail(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAllocAsync: the pool's maxSize is reached");
      continue;
    }
    result = driver->blocks.allocate(device_, *grown, &base);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) break;
  }
  if (result != CUDA_SUCCESS) return result;
  grant(driver, base);
  segments_[base] = *grown;
  chunks_[base].bytes = *grown;
  reserved_ += *grown;
  reserved_high_ = std::max(reserved_high_, reserved_);
  driver->pools.taken();
  return CUDA_SUCCESS;
}

CUresult Pool::allocate(Driver* driver, const Stream& stream, size_t bytes, CUdeviceptr* address,
                        Event* after, size_t* grown) {
  if (bytes > driver->machine->capacity()) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY,
                "cuMemAllocAsync: " + std::to_string(bytes) + " bytes is more than the device has");
  }
  bytes = round_up(bytes, kUnit);
  auto found = best(stream.number, bytes, false);
  if (found == chunks_.end()) {
    settle(driver);
    found = best(stream.number, bytes, false);
  }
  if (found == chunks_.end()) {
    CUresult result = grow(driver, bytes, grown);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      trim(driver, 0);
      result = grow(driver, bytes, grown);
    }
    if (result != CUDA_SUCCESS) *grown = 0;
    found = best(stream.number, bytes, result != CUDA_SUCCESS);
    if (found == chunks_.end() || (result != CUDA_SUCCESS && reuse_[2] == 0)) return result;
    if (result != CUDA_SUCCESS) *after = found->second.freed;
  }
  Chunk& chunk = found->second;
  if (chunk.bytes > bytes) {
    Chunk rest = chunk;
    rest.bytes = chunk.bytes - bytes;
    chunks_[found->first + bytes] = rest;
  }
  chunk = {bytes, true, 0, {}};
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
  *address = found->first;
  return CUDA_SUCCESS;
}

bool Pool::owns(CUdeviceptr address) const {
  const auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return false;
  const auto& [base, bytes] = *std::prev(next);
  return address < base + bytes;
}

size_t Pool::block_at(CUdeviceptr address, CUdeviceptr* base) const {
  const auto next = chunks_.upper_bound(address);
  if (next == chunks_.begin()) return 0;
  const auto& [start, chunk] = *std::prev(next);
  if (!chunk.used || address >= start + chunk.bytes) return 0;
  *base = start;
  return chunk.bytes;
}

void Pool::free(CUdeviceptr base, const Stream* stream, Event freed) {
  Chunk& chunk = chunks_.find(base)->second;
  chunk.used = false;
  chunk.stream = stream == nullptr ? 0 : stream->number;
  chunk.freed = std::move(freed);
  used_ -= chunk.bytes;
}

void Pool::trim(Driver* driver, size_t keep) {
  settle(driver);
  for (auto at = segments_.begin(); at != segments_.end() && reserved_ > keep;) {
    const auto chunk = chunks_.find(at->first);
    if (chunk->second.used || chunk->second.stream != 0 || chunk->second.bytes != at->second) {
      ++at;
      continue;
    }
    driver->scheduler->pending().check_idle(at->first, at->second, "unmap under pending work");
    driver->blocks.free(at->first);
    reserved_ -= at->second;
    chunks_.erase(chunk);
    at = segments_.erase(at);
  }
}

CUresult Pool::set_access(Driver* driver, const CUmemAccessDesc* desc, size_t count) {
  uint32_t access = access_;
  for (size_t i = 0; i < count; ++i) {
    const int device = desc[i].location.id;
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
        device >= driver->devices) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "cuMemPoolSetAccess: no such device");
    }
    if (device == device_ && desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return fail(CUDA_ERROR_INVALID_VALUE,
                  "cuMemPoolSetAccess: a pool is always accessible from its own device");
    }
    if (device != device_ &&
        !driver->topology.peers(driver->gpus.gpu(device), driver->gpus.gpu(device_))) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "cuMemPoolSetAccess: " + glake::device_text(device) +
                                                 " cannot reach " + glake::device_text(device_));
    }
    access &= ~(3u << (2 * device));
    access |= static_cast<uint32_t>(desc[i].flags) << (2 * device);
  }
  access_ = access;
  for (const auto& [base, bytes] : segments_) grant(driver, base);
  return CUDA_SUCCESS;
}

CUresult Pool::get_access(int device, CUmemAccess_flags* flags) const {
  *flags = static_cast<CUmemAccess_flags>(access_ >> (2 * device) & 3);
  return CUDA_SUCCESS;
}

CUresult Pool::get(CUmemPool_attribute which, void* value) const {
  if (which >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
      which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    const auto place = static_cast<size_t>(which) - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
    std::memcpy(value, &reuse_[place], sizeof(int));
    return CUDA_SUCCESS;
  }
  cuuint64_t number = 0;
  switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      number = threshold_;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      number = reserved_;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      number = reserved_high_;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      number = used_;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      number = used_high_;
      break;
    default:
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemPoolGetAttribute: no such attribute");
  }
  std::memcpy(value, &number, sizeof number);
  return CUDA_SUCCESS;
}

// "High watermark ... can only be reset to zero": CUmemPool_attribute.
CUresult Pool::set(CUmemPool_attribute which, const void* value) {
  if (which >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
      which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    const auto place = static_cast<size_t>(which) - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
    std::memcpy(&reuse_[place], value, sizeof(int));
    return CUDA_SUCCESS;
  }
  cuuint64_t number = 0;
  std::memcpy(&number, value, sizeof number);
  if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    threshold_ = number;
  } else if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && number == 0) {
    reserved_high_ = reserved_;
  } else if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH && number == 0) {
    used_high_ = used_;
  } else {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "cuMemPoolSetAttribute: cannot be set, or to no other value than 0");
  }
  return CUDA_SUCCESS;
}

void Pool::waited(Driver* driver) {
  if (doomed_ || reserved_ > threshold_) trim(driver, doomed_ ? 0 : threshold_);
}

}  // namespace simcuda
