#include "process/transfer_host.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/transfer_tuning.h"
#include "debug/debug_device.h"
#include "heap/paused_heap.h"
#include "heap/region_book.h"
#include "memory/contiguous_index.h"
#include "process/alloc_hooks.h"
#include "process/process.h"
#include "transfer/engine.h"

namespace glake {
namespace {

// The process's allocator, as the engine sees it.
class TransferAllocator final : public transfer::Allocator {
 public:
  explicit TransferAllocator(Process& process) : process_(process) {}

  void open_device(int device) override { process_.device(device); }
  int used_device() override {
    int first = -1;
    process_.for_each_device([&](DeviceAllocator& each) {
      if (first < 0) first = each.number();
    });
    return std::max(first, 0);
  }
  void enable_peer(int gpu, int from) override {
    process_.ipc().enable_peer(process_.device(gpu), from);
  }
  HostPool& host() override { return process_.host(); }
  Owned owned(Address at) override { return process_.owned(at); }
  bool any_paused() override { return PausedHeap::any(); }
  void ask_before_free(bool ask) override { process_.hooks().set(kCopied, ask); }

  Address allocate(int gpu, Bytes bytes, StreamHandle stream) override {
    const auto plain = [stream](ThreadCache& cache, Bytes size, Bytes guards) {
      return cache.device()->allocate(size, stream, cache, guards);
    };
    return reinterpret_cast<Address>(
        process_.hooks().has(kDebug)
            ? hooked_malloc(process_, bytes, gpu, stream, {0, 0}, true, plain)
            : plain_malloc(process_, bytes, gpu, stream));
  }

  void forget_stream(int gpu, StreamHandle stream) override {
    process_.stream_ends(gpu, stream, StreamEnd::kNow);
  }

  void free(Address block) override {
    void* ptr = reinterpret_cast<void*>(block);
    if (process_.hooks().has(kDebug)) {
      hooked_free(process_, ptr);
    } else {
      plain_free(process_, ptr);
    }
  }

 private:
  Process& process_;
};

}  // namespace

TransferHost::TransferHost(Process& process) : process_(process) {}
TransferHost::~TransferHost() = default;

transfer::Engine* TransferHost::enter() {
  users_.fetch_add(1);
  transfer::Engine* engine = in_use_.load();
  if (engine == nullptr) leave();
  return engine;
}

void TransferHost::open(const std::string& topology, const std::string& name) {
  process_.check_usable();
  std::lock_guard<std::mutex> opening(mutex_);
  if (engine_ != nullptr) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "the transfer engine is open; glake_transfer_close() it first");
  }
  process_.host();  // makes the host pool now, before the engine asks for it
  engine_ = std::make_unique<transfer::Engine>(
      process_.driver(), std::make_unique<TransferAllocator>(process_), topology, name,
      process_.options().copy_order == CopyOrderKind::kEnqueued);
  in_use_.store(engine_.get());
}

// The caller must not hold the process's lock, because the engine may still allocate and free.
void TransferHost::close() {
  process_.check_usable();
  std::lock_guard<std::mutex> closing(mutex_);
  if (engine_ == nullptr) return;
  in_use_.store(nullptr);
  try {
    engine_->end_all();  // ends the calls that wait for a transfer
    while (users_.load() != 0) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(TransferTuning::kCloseSleepNs));
    }
    engine_->close();
  } catch (const Error&) {
    in_use_.store(engine_.get());
    throw;
  }
  engine_.reset();
}

void TransferHost::forget_stream(int device, StreamHandle stream) {
  transfer::Engine* engine = enter();
  if (engine == nullptr) return;
  engine->forget_stream(device, stream);
  leave();
}

void TransferHost::refuse_copied(void* ptr) {
  refuse_copied(ptr, process_.block(ptr, false).requested);
}

void TransferHost::refuse_copied(void* ptr, Bytes bytes) {
  const auto begin = reinterpret_cast<Address>(ptr), end = begin + std::max<Bytes>(bytes, 1);
  transfer::Engine* engine = enter();
  if (engine == nullptr) return;
  const bool used = engine->copying(begin, end);
  leave();
  if (!used) return;
  throw Error(GLAKE_INVALID_POINTER,
              hex(ptr) +
                  " is being copied, in no stream's order, or a copy that was given up may "
                  "still use it: free it when the copy is done (glake_copy_settled)");
}

}  // namespace glake
