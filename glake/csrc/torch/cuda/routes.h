// Which pool an allocation goes to. A device has a list of the pools in use, each with torch's
// question "is this stream's memory yours?". If several say yes, the allocation goes to the one
// that was begun last, so that pools nest.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "torch/cuda/version.h"
#include "torch/library.h"

namespace glake::adapter {

constexpr int kMaxDevices = 64;
constexpr c10::MempoolId_t kNoPool{0, 0};

template <typename Stream>
class Routes {
 public:
  using Filter = std::function<bool(Stream)>;

  void begin(int device, c10::MempoolId_t pool, Filter filter) {
    std::unique_lock<std::shared_mutex> guard(mutex_);
    for (const auto& [id, unused] : routes_[device]) {
      TORCH_CHECK(id != pool, "glake: allocations already go to pool (", pool.first, ", ",
                  pool.second, ")");
    }
    routes_[device].emplace_back(pool, std::move(filter));
    count_.fetch_add(1);
  }
  void end(int device, c10::MempoolId_t pool) {
    std::unique_lock<std::shared_mutex> guard(mutex_);
    auto& routes = routes_[device];
    for (auto route = routes.begin(); route != routes.end(); ++route) {
      if (route->first != pool) continue;
      routes.erase(route);
      count_.fetch_sub(1);
      return;
    }
    TORCH_CHECK(false, "glake: no allocations go to pool (", pool.first, ", ", pool.second, ")");
  }
  // kNoPool: the device's own memory.
  c10::MempoolId_t pool(int device, const Stream& stream) const {
    if (count_.load(std::memory_order_acquire) == 0) return kNoPool;
    std::shared_lock<std::shared_mutex> guard(mutex_);
    const auto& routes = routes_[device];
    for (auto route = routes.rbegin(); route != routes.rend(); ++route) {
      if (route->second(stream)) return route->first;
    }
    return kNoPool;
  }
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }

 private:
  mutable std::shared_mutex mutex_;
  std::atomic<int> count_{0};
  std::vector<std::pair<c10::MempoolId_t, Filter>> routes_[kMaxDevices];
};

// Whether other code made the stream. The ids of c10's own streams are odd. A stream of other code
// has its handle as id, which is even.
inline bool of_others(const c10::cuda::CUDAStream& stream) {
  return stream.id() != 0 && (stream.id() & 1) == 0;
}
// Tells glake that the stream may end (glake_stream_may_end).
void tell_of_others(int device, cudaStream_t stream);

// The runtime's handle of a stream. CUDAStream::stream() puts a guard of the device around its
// search, which asks the runtime more than once. The default stream, with c10's number 0, is CUDA's
// null stream. Any other stream of torch's has one handle for the process's life, so each thread
// keeps the handle of the stream that it used last. Of a stream that other code made, c10 knows
// only the handle. Such a stream may be destroyed at any time, and a new stream may get the handle.
// So glake is told each time.
inline cudaStream_t handle_of(const c10::cuda::CUDAStream& stream) {
  if (C10_LIKELY(stream.id() == 0)) return nullptr;
  struct Last {
    c10::StreamId id = 0;
    cudaStream_t handle = nullptr;
    c10::DeviceIndex device = -1;
  };
  thread_local Last last;
  Last& mine = last;
  if (C10_UNLIKELY(mine.device != stream.device_index() || mine.id != stream.id())) {
    if (of_others(stream)) {
      tell_of_others(stream.device_index(), stream.stream());
      return stream.stream();
    }
    mine = {stream.id(), stream.stream(), stream.device_index()};
  }
  return mine.handle;
}

}  // namespace glake::adapter
