// The process's transfer engine: opened and closed by its owner, used by any thread between.
#include <algorithm>
#include <chrono>
#include <thread>

#include "debug/debug_device.h"
#include "heap/paused_heap.h"
#include "heap/region_book.h"
#include "memory/contiguous_index.h"
#include "process/detours.h"
#include "process/process.h"
#include "transfer/engine.h"

namespace glake {
namespace {

// The process's allocator, as the engine sees it.
class TransferAllocator final : public transfer::Allocator {
 public:
  explicit TransferAllocator(Process& process) : process_(process) {}

  void open_device(int device) override { process_.device(device); }
  int used_device() override { return process_.used_device(); }
  void enable_peer(int gpu, int from) override { process_.device(gpu).peers().enable(from); }
  HostPool& host() override { return process_.host(); }
  Owned owned(Address at) override { return process_.owned(at); }
  bool any_paused() override { return PausedHeap::any(); }
  void ask_before_free(bool ask) override { process_.set_detour(kCopied, ask); }

  Address allocate(int gpu, Bytes bytes, StreamHandle stream) override {
    const auto plain = [stream](ThreadCache& cache, Bytes size) {
      return cache.device()->allocate(size, stream, cache);
    };
    return reinterpret_cast<Address>(
        process_.detoured(kDebug)
            ? detoured_malloc(process_, bytes, gpu, stream, {0, 0}, true, plain)
            : plain_malloc(process_, bytes, gpu, stream));
  }

  void free(Address block) override {
    void* ptr = reinterpret_cast<void*>(block);
    if (process_.detoured(kDebug)) {
      detoured_free(process_, ptr);
    } else {
      plain_free(process_, ptr);
    }
  }

 private:
  Process& process_;
};

}  // namespace

TransferUse::TransferUse() {
  Process& process = Process::instance();
  process.check_usable();
  process.transfer_users_.fetch_add(1);
  engine_ = process.transfer_in_use_.load();
  if (engine_ != nullptr) return;
  process.transfer_users_.fetch_sub(1);
  throw Error(GLAKE_TRANSFER_CLOSED, "the transfer engine is not open; glake_transfer_open() it");
}

void Process::open_transfer(const std::string& topology, const std::string& name) {
  check_usable();
  std::lock_guard<std::mutex> opening(transfer_mutex_);
  if (transfer_ != nullptr) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "the transfer engine is open; glake_transfer_close() it first");
  }
  host();  // opens the driver
  transfer_ =
      std::make_unique<transfer::Engine>(*driver_, std::make_unique<TransferAllocator>(*this),
                                         topology, name, options_.enqueue_copies);
  transfer_in_use_.store(transfer_.get());
}

// Not under mutex_: what the engine still does may allocate and free.
void Process::close_transfer() {
  check_usable();
  std::lock_guard<std::mutex> closing(transfer_mutex_);
  if (transfer_ == nullptr) return;
  transfer_in_use_.store(nullptr);
  try {
    transfer_->end_all();  // calls that wait for a transfer return
    while (transfer_users_.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    transfer_->close();
  } catch (const Error&) {
    transfer_in_use_.store(transfer_.get());
    throw;
  }
  transfer_.reset();
}

int Process::used_device() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (int device = 0; device < kMaxDevices; ++device) {
    if (devices_[device] != nullptr) return device;
  }
  return 0;
}

Owned Process::owned(Address at) {
  Region* region = PointerMap::find(at);
  const bool ours = region != nullptr && at - region->base() < region->size();
  bool paused = false;
  Block* b = ours ? region->heap()->around(*region, at, &paused) : ContiguousIndex::around(at);
  if (b == nullptr && !ours) return {};
  Owned found;
  found.device = (ours ? region->heap() : b->heap)->number;
  if (b == nullptr || b->state.load() != BlockState::kLive) return found;
  CallerBlock held{b->ptr, b->requested, b->ptr};
  DebugDevice* debug = detoured(kDebug) ? debug_of(*b->heap) : nullptr;
  if (debug != nullptr) {  // between its guards
    void* inner = reinterpret_cast<void*>(b->ptr + debug->overhead() / 2);
    held = caller_block(inner, *b);
    // One of before the guards.
    if (held.begin != b->ptr) held = {b->ptr, b->requested, b->ptr};
  }
  if (at < held.ptr || at - held.ptr >= held.bytes) return found;
  found.begin = held.ptr;
  found.bytes = held.bytes;
  if (paused) {
    RegionBook& book = RegionBook::instance();
    const PoolId pool = b->heap->pool_id();
    found.paused = book.text(pool) + " on " + device_text(found.device) +
                   ", which is paused: " + book.way_back(pool) + " first";
  }
  return found;
}

void Process::refuse_copied(void* ptr) { refuse_copied(ptr, block(ptr, false).requested); }

void Process::refuse_copied(void* ptr, Bytes bytes) {
  const auto begin = reinterpret_cast<Address>(ptr), end = begin + std::max<Bytes>(bytes, 1);
  transfer_users_.fetch_add(1);
  transfer::Engine* engine = transfer_in_use_.load();
  const bool used = engine != nullptr && engine->copying(begin, end);
  transfer_users_.fetch_sub(1);
  if (!used) return;
  throw Error(GLAKE_INVALID_POINTER,
              hex(ptr) +
                  " is being copied, in no stream's order, or a copy that was given up may "
                  "still use it: free it when the copy is done (glake_copy_settled)");
}

}  // namespace glake
