#include "torch/cuda/pool_checkpoints.h"

#include "torch/cuda/calls.h"

namespace glake::adapter {

// The blocks of a pool that were live at one moment.
struct PoolCheckpoints::Checkpoint final : native::AllocatorState {
  Checkpoint(const CudaLibrary& library, glake_checkpoint* state, int device)
      : library(library), state(state), device(device) {}
  ~Checkpoint() override { library.checkpoint_free(state); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const CudaLibrary& library;
  glake_checkpoint* const state;
  const int device;
};

PoolCheckpoints::State PoolCheckpoints::take(c10::DeviceIndex device, c10::MempoolId_t pool) const {
  TORCH_CHECK(!foreign_.contains(devices_.checked(device), pool),
              "glake: a pool with an allocator of its own, as every one has with "
              "private_pools=legacy, has no checkpoints");
  glake_checkpoint* state = library_.pool_checkpoint(device, named(pool));
  if (state == nullptr) raise_error(library_);
  return std::make_shared<Checkpoint>(library_, state, device);
}

PoolCheckpoints::Changes PoolCheckpoints::set_back(c10::DeviceIndex device,
                                                   const State& state) const {
  const auto* checkpoint = dynamic_cast<Checkpoint*>(state.get());
  TORCH_CHECK(checkpoint != nullptr && checkpoint->device == device,
              "glake: this state is not a checkpoint of cuda:", static_cast<int>(device));
  Changes changes;
  require(library_,
          library_.pool_restore(
              checkpoint->state, &changes,
              [](void* self, void* ptr) { static_cast<Changes*>(self)->freed.push_back(ptr); },
              [](void* self, void* ptr, size_t, void*) {
                static_cast<Changes*>(self)->allocated.push_back(ptr);
              }));
  return changes;
}

}  // namespace glake::adapter
