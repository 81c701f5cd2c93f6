// Allocation, free and use of blocks.
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>

#include <algorithm>
#include <string_view>

#include "base/numbers.h"
#include "base/types.h"
#include "torch/cuda/allocator.h"
#include "torch/cuda/on_device.h"
#include "torch/cuda/outside_claim.h"
#include "torch/cuda/rounding.h"

namespace glake::adapter {

namespace {

const c10::impl::PyInterpreter* gpu_trace() { return c10::impl::GPUTrace::get_trace(); }

// As PyTorch's own allocator prints a size: software reads its text.
std::string torch_size_text(size_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size > 1024 && unit < 3; ++unit) size /= 1024;
  return fixed_text(size, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

// PyTorch's phrase comes first, once: other software looks for it. The core's own texts have it.
constexpr std::string_view kPhrase = "CUDA out of memory. ";
std::string out_of_memory_text(const std::string& text) {
  return text.compare(0, kPhrase.size(), kPhrase) == 0 ? text : std::string(kPhrase) + text;
}

}  // namespace

void CudaAllocator::raise(size_t bytes) {
  std::string text;
  int code = library_.error(&text);
  TORCH_CHECK_WITH(OutOfMemoryError, !is_out_of_memory(code, bytes), out_of_memory_text(text));
  TORCH_CHECK(false, "glake: ", text);
}

DataPtr CudaAllocator::data_ptr(void* ptr, int device) const {
  return {ptr, ptr, &deleter, c10::Device(c10::kCUDA, static_cast<DeviceIndex>(device))};
}

DataPtr CudaAllocator::allocate(size_t bytes) {
  DeviceIndex device = current_device();
  void* ptr = nullptr;
  if (bytes > 0 && C10_UNLIKELY(!enabled_.load(std::memory_order_relaxed))) {
    ptr = obtain_uncached(bytes, device);
  } else if (bytes > 0) {
    ptr = obtain(bytes, device, handle_of(c10::cuda::getCurrentCUDAStream(device)));
  }
  return data_ptr(ptr, device);
}

void* CudaAllocator::raw_alloc(size_t bytes) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = current_device();
  return raw_alloc_with_stream(bytes, handle_of(c10::cuda::getCurrentCUDAStream(device)));
}

void* CudaAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = current_device();
  return C10_UNLIKELY(!isEnabled()) ? obtain_uncached(bytes, device)
                                    : obtain(bytes, device, stream);
}

DataPtr CudaAllocator::allocateWithAddress(size_t bytes, void* where) {
  if (where == nullptr || bytes == 0) return allocate(bytes);
  DeviceIndex device = current_device();
  cudaStream_t stream = handle_of(c10::cuda::getCurrentCUDAStream(device));
  MempoolId_t pool = routes_.pool(device, stream);
  TORCH_CHECK(!foreign_.contains(device, pool), "glake: memory of pool (", pool.first, ", ",
              pool.second, ") is another allocator's, and cannot be asked for by its address");
  use(device);
  bytes = rounded(bytes);
  void* ptr = library_.pool_malloc_at(where, bytes, device, stream, named(pool));
  if (ptr == nullptr) raise(bytes);
  report(ptr, static_cast<int64_t>(bytes), device);
  return data_ptr(ptr, device);
}

void* CudaAllocator::obtain(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  use(device);
  bytes = rounded(bytes);
  MempoolId_t pool = routes_.pool(device, stream);
  void* ptr = C10_LIKELY(pool == kNoPool) ? library_.malloc(bytes, device, stream)
                                          : attempt(bytes, device, stream, pool);
  if (C10_UNLIKELY(ptr == nullptr)) ptr = recover(bytes, device, stream, pool);
  if (told()) report(ptr, static_cast<int64_t>(bytes), device);
  return ptr;
}

void* CudaAllocator::attempt(size_t bytes, int device, cudaStream_t stream, MempoolId_t pool) {
  if (pool != kNoPool) {
    if (!foreign_.contains(device, pool)) {
      return library_.pool_malloc(bytes, device, stream, named(pool));
    }
    return foreign_.allocate(round_up(bytes, kAlignment), device, stream, pool, capturing(device),
                             history_.gather_for_block());
  }
  return library_.malloc(bytes, device, stream);
}

// A driver allocation of its own, in no statistic, as torch's is; it counts against the limit.
void* CudaAllocator::obtain_uncached(size_t bytes, DeviceIndex device) {
  use(device);
  OutsideClaim claim(library_, device, bytes);
  if (!claim.granted()) raise(bytes);
  void* ptr = nullptr;
  cudaError_t status = cudaMalloc(&ptr, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    require(library_.empty_cache(device));
    status = cudaMalloc(&ptr, bytes);
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. glake: with caching off, the ",
                     "driver has no ", bytes,
                     " bytes in one piece on cuda:", static_cast<int>(device));
  }
  C10_CUDA_CHECK(status);
  claim.keep();
  {
    std::lock_guard<std::mutex> guard(mutex_);
    uncached_[ptr] = {device, bytes};
    had_uncached_.store(true);
  }
  report(ptr, static_cast<int64_t>(bytes), device);
  return ptr;
}

bool CudaAllocator::give_back_uncached(void* ptr) {
  Uncached was{};
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = uncached_.find(ptr);
    if (found == uncached_.end()) return false;
    was = found->second;
    uncached_.erase(found);
  }
  report(ptr, -static_cast<int64_t>(was.bytes), was.device);
  OnDevice on(was.device);
  C10_CUDA_CHECK(cudaFree(ptr));
  (void)library_.claim_outside(was.device, -static_cast<int64_t>(was.bytes));
  return true;
}

// Whoever registered to give memory back when it runs out, and pools that may be emptied then.
bool CudaAllocator::make_room(int device, MempoolId_t pool) {
  bool room = false;
  auto* registry = c10::FreeCudaMemoryCallbacksRegistry();
  for (const auto& name : registry->Keys()) room |= registry->Create(name)->Execute();
  if (!capturing(device)) {
    room |= foreign_.empty(device, kNoPool, true) > 0;
    if (foreign_.contains(device, pool)) room |= foreign_.empty(device, pool) > 0;
  }
  return room;
}

void* CudaAllocator::recover(size_t bytes, int device, cudaStream_t stream, MempoolId_t pool) {
  std::string text;
  int code = library_.error(&text);
  TORCH_CHECK(is_out_of_memory(code, bytes), "glake: ", text);
  if (make_room(device, pool)) {
    void* ptr = attempt(bytes, device, stream, pool);
    if (ptr != nullptr) return ptr;
    library_.error(&text);
  }
  out_of_memory(bytes, device, text);
}

// PyTorch's own sentences, which other software reads, and then the core's account.
std::string CudaAllocator::account(size_t bytes, int device, const Room& room,
                                   const std::string& text) {
  if (bytes >= size_t{1} << 60) return out_of_memory_text(text);  // "more than 1EB memory"
  std::string made(kPhrase);
  made += "Tried to allocate " + torch_size_text(bytes) + ". GPU " + std::to_string(device) +
          " has a total capacity of " + torch_size_text(room.total) + " of which " +
          torch_size_text(room.free) + " is free. ";
  if (room.allowed < room.total) made += torch_size_text(room.allowed) + " allowed; ";
  made += "Of the allocated memory " + torch_size_text(room.allocated) +
          " is allocated by PyTorch, and " +
          torch_size_text(room.reserved - std::min(room.reserved, room.allocated)) +
          " is reserved by PyTorch but unallocated. glake:";
  const size_t facts = text.compare(0, kPhrase.size(), kPhrase) == 0 ? text.find('\n') : text.npos;
  return made + (facts == text.npos ? " " + text : text.substr(facts));
}

void CudaAllocator::out_of_memory(size_t bytes, int device, const std::string& text) {
  glake_device_stats stats{};
  Room room;
  library_.get_stats(device, &stats, sizeof stats);
  library_.memory_info(device, &room.free, &room.total);
  double fraction = library_.limit_fraction(device);
  room.allowed = static_cast<size_t>(static_cast<double>(room.total) * fraction);
  if (fraction <= 0 || fraction > 1) room.allowed = room.total;
  room.allocated = static_cast<size_t>(stats.allocated_bytes[0].current);
  room.reserved = static_cast<size_t>(stats.reserved_bytes[0].current);
  foreign_.visit(
      device, [&](const ForeignSegment& each) { room.reserved += each.bytes; },
      [&](void*, const ForeignBlock& block) { room.allocated += block.live ? block.bytes : 0; });
  c10::Device where(c10::kCUDA, static_cast<DeviceIndex>(device));
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), room.allocated, room.reserved,
                                   where);
  std::vector<native::OutOfMemoryObserver> observers;
  std::vector<OomRejectionObserver> rejection_observers;
  // The limit, not the device, said no: torch calls that a rejection.
  bool rejected = room.allowed < room.total && room.allocated + bytes > room.allowed;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    observers = on_oom_;
    if (rejected) {
      rejection_observers = on_rejection_;
      ++rejections_[static_cast<size_t>(device)];
    }
  }
  for (const auto& observer : rejection_observers)
    observer(device, bytes, room.allocated, room.total);
  for (const auto& observer : observers) observer(device, bytes, room.allowed, room.free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, account(bytes, device, room, text));
}

bool CudaAllocator::told() {
  return C10_UNLIKELY(gpu_trace() != nullptr || c10::memoryProfilingEnabled());
}

// What they hear; `bytes` is negative for a free.
void CudaAllocator::report(void* ptr, int64_t bytes, int device) {
  if (const auto* interpreter = gpu_trace(); C10_UNLIKELY(interpreter != nullptr)) {
    auto address = reinterpret_cast<uintptr_t>(ptr);
    if (bytes >= 0) {
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, address);
    } else {
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, address);
    }
  }
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  auto rounded = static_cast<int64_t>(round_up(static_cast<Bytes>(std::abs(bytes)), kAlignment));
  glake_device_stats stats{};
  library_.get_stats(device, &stats, sizeof stats);
  c10::reportMemoryUsageToProfiler(ptr, bytes < 0 ? -rounded : rounded,
                                   static_cast<size_t>(stats.allocated_bytes[0].current),
                                   static_cast<size_t>(stats.reserved_bytes[0].current),
                                   c10::Device(c10::kCUDA, static_cast<DeviceIndex>(device)));
}

bool CudaAllocator::describe(void* ptr, Known* out) {
  ForeignBlock block;
  if (foreign_.describe(ptr, &block)) {
    *out = {block.requested, block.segment->device, block.segment->stream, true};
    return true;
  }
  if (C10_UNLIKELY(had_uncached_.load(std::memory_order_acquire))) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = uncached_.find(ptr);
    if (found != uncached_.end()) {
      *out = {found->second.bytes, found->second.device, nullptr, false, true};
      return true;
    }
  }
  return library_.block_info(ptr, &out->bytes, &out->device, &out->stream) == GLAKE_OK;
}

bool CudaAllocator::give_back(void* ptr) {
  History::Freeing freeing(history_);
  bool uncached = had_uncached_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(uncached) && give_back_uncached(ptr)) return true;
  const bool heard = told();
  Known known;
  if (C10_UNLIKELY(heard || foreign_.any()) && !describe(ptr, &known)) return false;
  // Before the free: afterwards the address may be another block's.
  if (C10_UNLIKELY(heard)) report(ptr, -static_cast<int64_t>(known.bytes), known.device);
  if (C10_UNLIKELY(known.foreign)) return foreign_.free(ptr, known.device, capturing(known.device));
  return library_.free(ptr) == GLAKE_OK;
}

void CudaAllocator::raw_delete(void* ptr) {
  if (ptr == nullptr || exiting()) return;
  if (!give_back(ptr)) raise();
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const { return &deleter; }

// Never throws; once static destructors run, never frees either.
void CudaAllocator::deleter(void* ptr) {
  CudaAllocator& self = instance();
  if (ptr == nullptr || self.exiting()) return;
  try {
    if (!self.give_back(ptr)) self.refused_free();
  } catch (...) {
    self.refused_frees_.fetch_add(1);
  }
}

void CudaAllocator::refused_free() noexcept {
  uint64_t before = refused_frees_.fetch_add(1);
  try {
    std::string text;
    // A forked child cannot free its parent's memory, and owes no word about it.
    if (library_.error(&text) == GLAKE_FORKED || before > 0) return;
    TORCH_WARN("glake refused to free a tensor's memory (later refusals are only counted): ", text);
  } catch (...) {  // warnings are errors here, and a deleter must not throw
  }
}

void CudaAllocator::recordStream(const DataPtr& ptr, CUDAStream stream) {
  // Memory of another allocator (imported, pluggable) is its own business, as in torch.
  if (ptr.get() == nullptr || ptr.get_deleter() != &deleter) return;
  if (foreign_.record_stream(ptr.get_context(), handle_of(stream))) return;
  Known known;
  bool may = had_uncached_.load(std::memory_order_acquire) && describe(ptr.get_context(), &known);
  if (C10_UNLIKELY(may) && known.uncached) return;  // its free waits for the device
  require(library_.record_stream(ptr.get_context(), handle_of(stream)));
}

void CudaAllocator::recordStream(const DataPtr& ptr, c10::Stream stream) {
  recordStream(ptr, CUDAStream(stream));
}

void* CudaAllocator::getBaseAllocation(void* ptr, size_t* bytes) {
  Known known;
  if (!describe(ptr, &known)) raise();
  if (bytes != nullptr) *bytes = round_up(known.bytes, kAlignment);
  return ptr;
}

void CudaAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

// Without peer access only the peer copy reaches mapped memory of another device.
cudaError_t CudaAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                       size_t bytes, cudaStream_t stream, bool peer_access) {
  if (peer_access || to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

}  // namespace glake::adapter
