// torch's blocks: how each is obtained, described and given back, whichever allocator has its
// memory.
#pragma once

#include <string>

#include "torch/cuda/block_listeners.h"
#include "torch/cuda/foreign.h"
#include "torch/cuda/history.h"
#include "torch/cuda/oom_observers.h"
#include "torch/cuda/private_pools.h"
#include "torch/cuda/torch_devices.h"
#include "torch/cuda/uncached_blocks.h"

namespace glake::adapter {

// A block as torch's reports show it.
struct KnownBlock {
  size_t bytes = 0;  // as asked for
  int device = 0;
  void* stream = nullptr;
  bool foreign = false, uncached = false;
};

class TorchBlocks {
 public:
  TorchBlocks(const CudaLibrary& library, TorchDevices& devices, PrivatePools& pools,
              ForeignPools& foreign, const History& history, OomObservers& observers)
      : library_(library),
        devices_(devices),
        pools_(pools),
        foreign_(foreign),
        history_(history),
        observers_(observers) {}

  void set_caching(bool value) { uncached_.set_caching(value); }
  bool caching() const { return uncached_.caching(); }

  // The next three throw. obtain_uncached() is for requests while caching is switched off.
  void* obtain_uncached(size_t bytes, int device);
  void* obtain(size_t bytes, c10::DeviceIndex device, cudaStream_t stream);
  // Obtains a block at this address; null: at any address.
  void* obtain_at(void* where, size_t bytes, c10::DeviceIndex device, cudaStream_t stream);

  bool give_back(void* ptr);  // false: refused, glake_last_error() says why
  void record_stream(void* ptr, cudaStream_t stream);
  KnownBlock known(const void* ptr);  // throws if it is not a block

 private:
  void* attempt(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool);
  void* recover(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool);
  // give_back() uses this if others must be told, or if the memory may be another allocator's.
  C10_NOINLINE bool give_back_known(void* ptr, bool heard);
  bool make_room(int device, c10::MempoolId_t pool);
  bool describe(const void* ptr, KnownBlock* out);

  const CudaLibrary& library_;
  TorchDevices& devices_;
  PrivatePools& pools_;
  ForeignPools& foreign_;
  const History& history_;
  OomObservers& observers_;
  BlockListeners listeners_{library_};
  UncachedBlocks uncached_{library_, listeners_};
};

}  // namespace glake::adapter
