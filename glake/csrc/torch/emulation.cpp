// The emulation: torch's CPU allocator on glake. Real training without a GPU then exercises the
// real allocator over simulated device memory. It is compiled by g++ against the installed torch's
// c10 headers at first use, and loaded by ctypes. It is for tests, demos and planning, never for
// production.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>

#include "torch/forked_memory.h"
#include "torch/library.h"
#include "torch/live_blocks.h"

namespace {

// Which memory serves allocations. Other threads may use tensors while the state changes from
// kUnopened, but during no other change.
enum class State : int {
  kUnopened,  // the driver opens at the first allocation
  kGlake,
  kStock,  // the driver could not be opened: torch's own memory, after a warning
  // A forked child uses torch's own memory; it reads the parent's blocks and never frees them.
  kForked,
  kExiting  // static destructors are running, and nothing is given back any more
};

struct Counters {
  std::atomic<uint64_t> allocations{0};    // served by glake
  std::atomic<uint64_t> bytes{0};          // requested of glake
  std::atomic<uint64_t> outside_bytes{0};  // requested of torch's own memory
  std::atomic<uint64_t> failed_frees{0};
};

// It is never destroyed, because tensors may be freed after static destructors have run.
struct Emulation {
  glake::adapter::Library library;
  glake::adapter::LiveBlocks blocks;
  glake::adapter::ForkedMemory inherited;
  std::atomic<State> state{State::kUnopened};
  std::mutex opening;
  bool strict = false;
  Counters counters;
};

Emulation& emulation() {
  static auto* instance = new Emulation;
  return *instance;
}

[[noreturn]] void raise(int code, size_t bytes, const std::string& text) {
  if (glake::adapter::is_out_of_memory(code, bytes)) {
    c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "glake: ", text);
  }
  TORCH_CHECK(false, "glake: ", text);
}

// The first allocation opens the driver. If it cannot be opened and GLAKE_STRICT is not set, the
// process stays on torch's own memory.
void* open_with(Emulation& e, size_t bytes) {
  std::lock_guard<std::mutex> guard(e.opening);
  void* block = e.library.malloc(bytes, 0, nullptr);
  std::string text;
  State state = e.state.load();
  if (state == State::kStock && block != nullptr) e.library.free(block);
  if (state == State::kStock) return nullptr;  // another thread was first
  if (block != nullptr && state == State::kUnopened) {
    e.inherited.learn(block);
    e.state.store(State::kGlake);
  }
  if (block != nullptr || state != State::kUnopened) return block;
  int code = e.library.error(&text);
  if (code == GLAKE_OUT_OF_MEMORY || code == GLAKE_INVALID_ARGUMENT ||
      code == GLAKE_REGION_REFUSED) {
    return nullptr;  // only this request is refused; the driver is open
  }
  if (e.strict) raise(code, bytes, text);
  e.state.store(State::kStock);
  if (code != GLAKE_FORKED) {
    TORCH_WARN("glake is off, torch's own CPU memory is used: ", text);
  }
  return nullptr;
}

void* from_glake(Emulation& e, size_t bytes) {
  void* block = e.state.load(std::memory_order_relaxed) == State::kUnopened
                    ? open_with(e, bytes)
                    : e.library.malloc(bytes, 0, nullptr);
  if (block != nullptr) {
    e.blocks.add(block, bytes);
    e.counters.allocations.fetch_add(1, std::memory_order_relaxed);
    e.counters.bytes.fetch_add(bytes, std::memory_order_relaxed);
    return block;
  }
  if (e.state.load() == State::kStock) return nullptr;  // the caller uses torch's own memory
  std::string text;
  int code = e.library.error(&text);
  raise(code, bytes, text);
}

void* from_torch(Emulation& e, size_t bytes) {
  void* block = c10::alloc_cpu(bytes);
  e.counters.outside_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return block;
}

// There is one deleter for every state, because raw_deleter() must always return the same function.
void release(void* block) {
  Emulation& e = emulation();
  State state = e.state.load(std::memory_order_relaxed);
  if (block == nullptr || state == State::kExiting) return;
  if (state == State::kForked && e.blocks.contains(block)) return;
  c10::profiledCPUMemoryReporter().Delete(block);
  if (state == State::kStock || state == State::kForked) {
    c10::free_cpu(block);
    return;
  }
  e.blocks.remove(block);
  if (e.library.free(block) != GLAKE_OK) e.counters.failed_frees.fetch_add(1);
}

class EmulationAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Emulation& e = emulation();
    void* block = nullptr;
    if (bytes > 0) {
      State state = e.state.load(std::memory_order_relaxed);
      if (state == State::kUnopened || state == State::kGlake) block = from_glake(e, bytes);
      if (block == nullptr) block = from_torch(e, bytes);
      c10::profiledCPUMemoryReporter().New(block, bytes);
    }
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

// A fork copies a process's memory, but not shared simulated memory. So the child's handler copies
// it, while the parent's handler waits on `copied`. The tables are locked meanwhile, which also
// keeps two threads from forking at once.
struct Fork {
  bool copies = false;
  int copied[2] = {-1, -1};
};
Fork& current_fork() {
  static Fork fork;
  return fork;
}

// If the live blocks have more bytes than this (a guess), they are not copied. The child then sees
// what the parent writes to them.
constexpr size_t kMostCopied = size_t{2} << 30;

void before_fork() {
  Emulation& e = emulation();
  e.blocks.lock();
  Fork& fork = current_fork();
  fork.copies = e.state.load() == State::kGlake && pipe2(fork.copied, O_CLOEXEC) == 0;
}

void after_fork_in_parent() {
  Fork& fork = current_fork();
  if (fork.copies) {
    constexpr int kPatience = 60000;  // milliseconds, for the case that the child is stopped
    close(fork.copied[1]);
    pollfd child{fork.copied[0], POLLIN, 0};
    while (poll(&child, 1, kPatience) < 0 && errno == EINTR) {
    }
    close(fork.copied[0]);
  }
  emulation().blocks.unlock();
}

void after_fork_in_child() {
  Emulation& e = emulation();
  Fork& fork = current_fork();
  if (e.state.load() == State::kUnopened) {
    new (&e.opening) std::mutex;  // a thread that held it does not exist in the child
  }
  if (e.state.load() == State::kGlake) {
    e.state.store(State::kForked);
    size_t live = 0;
    e.blocks.for_each([&](void*, size_t bytes) { live += bytes; });
    if (e.inherited.make_private() && fork.copies && live <= kMostCopied) {
      e.blocks.for_each([&](void* block, size_t bytes) { e.inherited.copy(block, bytes); });
    }
    e.inherited.forget();
  }
  if (fork.copies) {
    close(fork.copied[0]);
    close(fork.copied[1]);  // closing it wakes the parent
  }
  e.blocks.unlock();
}

}  // namespace

extern "C" {

// Makes glake torch's CPU allocator. Older tensors keep their memory. `strict`: an unusable driver
// is an error and not a warning. It must be called once, before other threads allocate. Returns 0,
// or -1 and a sentence in `text`.
__attribute__((visibility("default"))) int glake_emulation_install(const char* library, int strict,
                                                                   char* text, size_t capacity) {
  Emulation& e = emulation();
  std::string missing = e.library.open(library);
  if (!missing.empty()) {
    std::snprintf(text, capacity, "%s", missing.c_str());
    return -1;
  }
  e.strict = strict != 0;
  pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  // libglake was loaded before this, so its destructors run after this handler.
  std::atexit([] { emulation().state.store(State::kExiting); });
  constexpr uint8_t kPriority = 200;  // above torch's default (0), so that nothing resets it
  static auto* allocator = new EmulationAllocator;
  c10::SetAllocator(c10::DeviceType::CPU, allocator, kPriority);
  return 0;
}

// Gives {state, allocations and bytes served by glake, bytes served by torch, failed frees}.
__attribute__((visibility("default"))) void glake_emulation_counters(uint64_t out[5]) {
  const Emulation& e = emulation();
  out[0] = static_cast<uint64_t>(e.state.load());
  out[1] = e.counters.allocations.load();
  out[2] = e.counters.bytes.load();
  out[3] = e.counters.outside_bytes.load();
  out[4] = e.counters.failed_frees.load();
}

}  // extern "C"
