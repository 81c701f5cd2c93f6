#include "torch/cuda/host_allocator.h"

#include <chrono>
#include <cstring>

#include "torch/cuda/allocator.h"

namespace glake::adapter {

namespace {

CudaLibrary& library() { return CudaAllocator::instance().library(); }

int64_t us_since(std::chrono::steady_clock::time_point start) {
  auto spent = std::chrono::steady_clock::now() - start;
  return std::chrono::duration_cast<std::chrono::microseconds>(spent).count();
}

size_t bucket(size_t bytes) {
  size_t index = 0;
  while ((size_t{1} << index) < bytes) ++index;
  return index;
}

}  // namespace

HostAllocator& HostAllocator::instance() {
  // Never destroyed, because pinned tensors outlive static destructors.
  static auto* allocator = new HostAllocator;
  return *allocator;
}

void HostAllocator::raise(size_t bytes) {
  std::string text;
  int code = library().error(&text);
  TORCH_CHECK_WITH(OutOfMemoryError, !is_out_of_memory(code, bytes), "glake: ", text);
  TORCH_CHECK(false, "glake: ", text);
}

void* HostAllocator::from_pool(c10::MempoolId_t pool, size_t bytes) {
  auto& free = pools_[pool].free;
  auto fit = free.lower_bound(bytes);
  if (fit == free.end() || fit->first > 2 * bytes) return nullptr;
  void* ptr = fit->second;
  blocks_[ptr] = {fit->first, library().host_block_bytes(ptr), pool};
  free.erase(fit);
  return ptr;
}

at::DataPtr HostAllocator::allocate(size_t bytes) {
  void* ptr = nullptr;
  c10::MempoolId_t pool = kNoPool;
  if (bytes > 0 && routes_.any()) {
    pool = routes_.pool(0, c10::cuda::getCurrentCUDAStream().unwrap());
    std::lock_guard<std::mutex> guard(mutex_);
    if (pool != kNoPool) ptr = from_pool(pool, bytes);
  }
  if (bytes > 0 && ptr == nullptr) {
    auto start = std::chrono::steady_clock::now();
    ptr = library().host_malloc(bytes);
    if (ptr == nullptr) raise(bytes);
    int64_t spent = us_since(start);
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_[ptr] = {bytes, library().host_block_bytes(ptr), pool};
    ++stats_.bucket_allocation[bucket(bytes)];
    // Only memory from the driver is timed. An address that was seen before came from the cache.
    if (seen_.insert(ptr).second) {
      read_reserved();
      if (untimed_ > 0) stats_.host_alloc_time.increase(spent);
      untimed_ = std::max<int64_t>(untimed_ - 1, 0);
    }
  }
  if (ptr != nullptr) {
    std::lock_guard<std::mutex> guard(mutex_);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(blocks_[ptr].held);
  }
  return {ptr, ptr, &deleter, at::Device(at::kCPU)};
}

bool HostAllocator::give_back(void* ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = blocks_.find(ptr);
  if (found == blocks_.end()) return false;
  Block block = found->second;
  blocks_.erase(found);
  stats_.active_requests.decrease(1);
  stats_.active_bytes.decrease(block.held);
  auto pool = block.pool == kNoPool ? pools_.end() : pools_.find(block.pool);
  if (pool == pools_.end()) return library().host_free(ptr) == GLAKE_OK;
  if (block.recorded) {
    pool->second.kept.push_back(ptr);
  } else {
    pool->second.free.emplace(block.bytes, ptr);
  }
  return true;
}

void HostAllocator::deleter(void* ptr) {
  if (ptr == nullptr || CudaAllocator::instance().exiting()) return;
  if (!instance().give_back(ptr)) CudaAllocator::instance().refused_free();
}

void HostAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(to, from, bytes);
}

bool HostAllocator::record_event(void* ptr, void* context, c10::Stream stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = blocks_.find(context);
  if (found == blocks_.end()) found = blocks_.find(ptr);
  if (found == blocks_.end()) return false;  // not ours
  found->second.recorded = true;
  if (found->second.pool != kNoPool && pools_.count(found->second.pool) != 0) return true;
  c10::cuda::CUDAStream cuda(stream);
  if (library().host_record_stream(found->first, cuda.device_index(), handle_of(cuda)) !=
      GLAKE_OK) {
    raise(0);
  }
  return true;
}

void HostAllocator::empty_cache() {
  auto start = std::chrono::steady_clock::now();
  if (library().host_empty_cache() != GLAKE_OK) raise(0);
  int64_t spent = us_since(start);
  std::lock_guard<std::mutex> guard(mutex_);
  int64_t before = freed_;
  read_reserved();
  int64_t freed = freed_ - before;
  for (int64_t i = 0; i < freed; ++i) stats_.host_free_time.increase(spent / freed);
  if (freed > 0) seen_.clear();
}

// Reads how much glake holds. It is read because the calls of this file do not say by how much they
// change it.
void HostAllocator::read_reserved() {
  glake_host_stats_values held;
  if (library().get_host_stats(&held, sizeof held) != GLAKE_OK) raise(0);
  auto observe = [](at::Stat* stat, int64_t now) {
    if (now > stat->current) stat->increase(static_cast<size_t>(now - stat->current));
    if (now < stat->current) stat->decrease(static_cast<size_t>(stat->current - now));
  };
  observe(&stats_.allocated_bytes, held.reserved_bytes.current);
  observe(&stats_.allocations, held.blocks);
  untimed_ += held.driver_allocs - given_;
  given_ = held.driver_allocs;
  freed_ = held.driver_frees;
}

at::HostStats HostAllocator::get_stats() {
  std::lock_guard<std::mutex> guard(mutex_);
  read_reserved();
  stats_.num_host_alloc = stats_.host_alloc_time.count;  // computed as torch does
  stats_.num_host_free = stats_.host_free_time.count;
  return stats_;
}

void HostAllocator::reset_accumulated_stats() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                     &stats_.allocated_bytes}) {
    stat->reset_accumulated();
  }
  stats_.host_alloc_time.reset_accumulated();
  stats_.host_free_time.reset_accumulated();
}

void HostAllocator::reset_peak_stats() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                     &stats_.allocated_bytes}) {
    stat->reset_peak();
  }
  stats_.host_alloc_time.reset_peak();
  stats_.host_free_time.reset_peak();
}

void HostAllocator::begin_allocate_to_pool(c10::MempoolId_t pool,
                                           std::function<bool(c10::Stream)> filter) {
  routes_.begin(0, pool, std::move(filter));
  std::lock_guard<std::mutex> guard(mutex_);
  ++pools_[pool].uses;
}

void HostAllocator::end_allocate_to_pool(c10::MempoolId_t pool) { routes_.end(0, pool); }

// When its last user goes, the pool's blocks become ordinary ones again. The free ones go back.
void HostAllocator::release_pool(c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = pools_.find(pool);
  if (found == pools_.end() || --found->second.uses > 0) return;
  for (const auto& [bytes, ptr] : found->second.free) library().host_free(ptr);
  for (void* ptr : found->second.kept) library().host_free(ptr);
  pools_.erase(found);
}

}  // namespace glake::adapter
