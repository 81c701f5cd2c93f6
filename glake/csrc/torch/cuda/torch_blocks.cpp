#include "torch/cuda/torch_blocks.h"

#include "base/types.h"
#include "torch/cuda/calls.h"
#include "torch/cuda/rounding.h"

namespace glake::adapter {

using c10::DeviceIndex;
using c10::MempoolId_t;

void* TorchBlocks::obtain_uncached(size_t bytes, int device) {
  devices_.use(device);
  return uncached_.obtain(bytes, device);
}

void* TorchBlocks::obtain(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  devices_.use(device);
  bytes = rounded(bytes);
  MempoolId_t pool = pools_.of(device, stream);
  void* ptr = C10_LIKELY(pool == kNoPool) ? library_.malloc(bytes, device, stream)
                                          : attempt(bytes, device, stream, pool);
  if (C10_UNLIKELY(ptr == nullptr)) ptr = recover(bytes, device, stream, pool);
  if (BlockListeners::any()) listeners_.tell(ptr, static_cast<int64_t>(bytes), device);
  return ptr;
}

void* TorchBlocks::obtain_at(void* where, size_t bytes, DeviceIndex device, cudaStream_t stream) {
  MempoolId_t pool = pools_.of(device, stream);
  TORCH_CHECK(!foreign_.contains(device, pool), "glake: memory of pool (", pool.first, ", ",
              pool.second, ") is another allocator's, and cannot be asked for by its address");
  devices_.use(device);
  bytes = rounded(bytes);
  void* ptr = library_.pool_malloc_at(where, bytes, device, stream, named(pool));
  if (ptr == nullptr) raise_error(library_, bytes);
  listeners_.tell(ptr, static_cast<int64_t>(bytes), device);
  return ptr;
}

void* TorchBlocks::attempt(size_t bytes, int device, cudaStream_t stream, MempoolId_t pool) {
  if (pool == kNoPool) return library_.malloc(bytes, device, stream);
  if (!foreign_.contains(device, pool)) {
    return library_.pool_malloc(bytes, device, stream, named(pool));
  }
  return foreign_.allocate(round_up(bytes, kAlignment), device, stream, pool,
                           pools_.capturing(device), history_.gather_for_block());
}

// Calls the callbacks that were registered to give memory back when it runs out, and empties pools
// without a user.
bool TorchBlocks::make_room(int device, MempoolId_t pool) {
  bool room = false;
  auto* registry = c10::FreeCudaMemoryCallbacksRegistry();
  for (const auto& name : registry->Keys()) room |= registry->Create(name)->Execute();
  if (!pools_.capturing(device)) {
    room |= foreign_.empty(device, kNoPool) > 0;
    if (foreign_.contains(device, pool)) room |= foreign_.empty(device, pool) > 0;
  }
  return room;
}

void* TorchBlocks::recover(size_t bytes, int device, cudaStream_t stream, MempoolId_t pool) {
  std::string text;
  int code = library_.error(&text);
  TORCH_CHECK(is_out_of_memory(code, bytes), "glake: ", text);
  // Another allocator's pool counts nothing in the library.
  const int64_t each = foreign_.contains(device, pool) ? 0 : 1;
  int64_t counted = each;
  void* ptr = nullptr;
  if (make_room(device, pool)) {
    ptr = attempt(bytes, device, stream, pool);
    if (ptr == nullptr) {
      library_.error(&text);
      counted += each;
    }
  }
  if (ptr == nullptr && pool == kNoPool) {
    ptr = foreign_.lend(round_up(bytes, kAlignment), device, stream, pools_.capturing(device),
                        history_.gather_for_block());
  }
  observers_.forgive(device, ptr != nullptr ? counted : counted - each);
  if (ptr != nullptr) return ptr;
  observers_.refuse(bytes, device, text);
}

bool TorchBlocks::describe(const void* ptr, KnownBlock* out) {
  ForeignBlock block;
  if (foreign_.describe(ptr, &block)) {
    *out = {block.requested, block.segment->device, block.segment->stream, true, false};
    return true;
  }
  UncachedBlocks::Block uncached;
  if (C10_UNLIKELY(uncached_.any()) && uncached_.describe(ptr, &uncached)) {
    *out = {uncached.bytes, uncached.device, nullptr, false, true};
    return true;
  }
  return library_.block_info(ptr, &out->bytes, &out->device, &out->stream) == GLAKE_OK;
}

KnownBlock TorchBlocks::known(const void* ptr) {
  KnownBlock known;
  if (!describe(ptr, &known)) raise_error(library_);
  return known;
}

bool TorchBlocks::give_back(void* ptr) {
  History::Freeing freeing(history_);
  if (C10_UNLIKELY(uncached_.any()) && uncached_.give_back(ptr)) return true;
  const bool heard = BlockListeners::any();
  if (C10_UNLIKELY(heard || foreign_.any())) return give_back_known(ptr, heard);
  return library_.free(ptr) == GLAKE_OK;
}

bool TorchBlocks::give_back_known(void* ptr, bool heard) {
  KnownBlock known;
  if (!describe(ptr, &known)) return false;
  if (heard) listeners_.tell(ptr, -static_cast<int64_t>(known.bytes), known.device);
  if (known.foreign) return foreign_.free(ptr, known.device, pools_.capturing(known.device));
  return library_.free(ptr) == GLAKE_OK;
}

void TorchBlocks::record_stream(void* ptr, cudaStream_t stream) {
  if (foreign_.record_stream(ptr, stream)) return;
  UncachedBlocks::Block uncached;
  const bool may = C10_UNLIKELY(uncached_.any());
  if (may && uncached_.describe(ptr, &uncached)) return;  // its free waits for the device
  require(library_, library_.record_stream(ptr, stream));
}

}  // namespace glake::adapter
