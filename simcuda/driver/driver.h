// The driver as one object: options, machine, memory, contexts and streams. The wrapper of every
// exported call is here too.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include "blocks.h"
#include "books.h"
#include "captures.h"
#include "context.h"
#include "costs.h"
#include "driver_lock.h"
#include "graph.h"
#include "host.h"
#include "kernels.h"
#include "libraries.h"
#include "linkers.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "plan/topology.h"
#include "pools.h"
#include "scheduler.h"
#include "shared_links.h"
#include "stream.h"
#include "tick_clock.h"
#include "types.h"
#include "user_objects.h"
#include "visible.h"

namespace simcuda {

class Driver {
 public:
  static CUresult start(const Given& given, std::unique_ptr<Driver>* driver);
  ~Driver();

  // For phantom replays: ticks complete stream work, and not the schedule.
  bool ticking() const {
    return options.phantom && complete_after().load(std::memory_order_relaxed) != kAuto;
  }

  std::mutex mutex;
  Options options;
  VisibleGpus gpus;
  int devices = 0;  // those that the process sees; the machine may have more (options.devices)
  Topology topology;
  std::unique_ptr<Machine> machine;
  HostMemory host;
  Memory memory;
  Blocks blocks{&memory};
  Contexts contexts;
  Streams streams;
  UserObjects user_objects;
  Graphs graphs;
  Captures captures{&streams, &graphs};
  TickClock tick_clock{&streams, &contexts};
  Kernels kernels;
  Libraries libraries{&kernels};
  Linkers linkers;
  Pools pools;
  KernelCosts kernel_costs;
  std::unique_ptr<Scheduler> scheduler;
  DriverLock calls;

 private:
  Driver() = default;
};

// The running driver; nullptr before cuInit.
extern std::atomic<Driver*> running;
// Set in a forked child: CUDA does not survive fork.
extern std::atomic<bool> forked;

CUresult initialize();
// Whether CUDA_VISIBLE_DEVICES counts (simcuda_obey_visible_devices in runtime.h).
extern std::atomic<bool> obey_visible_devices;
// The options and the platform that a driver would have if it started now. It is not started.
CUresult describe(Options* options, Topology* topology);
CUresult not_initialized();

// The work common to all exported calls: books, faults, state, and catching all exceptions.
template <class Body>
CUresult call(Symbol symbol, uint64_t pages, Body&& body) {
  if (forked.load(std::memory_order_relaxed)) return not_initialized();
  if (in_host_function) return fail(CUDA_ERROR_NOT_PERMITTED, "no calls in a host function");
  const CUresult told = books().enter(symbol, pages);
  if (told != CUDA_SUCCESS) return told;
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr) return not_initialized();
  try {
    return body(*driver);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {  // the host could not make a thread
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
}

// The same, under the driver's mutex.
template <class Body>
CUresult locked(Symbol symbol, uint64_t pages, Body&& body) {
  return call(symbol, pages, [&](Driver& driver) {
    Lock lock(driver.mutex);
    const DriverLock::Turn turn(&driver.calls, &lock, symbol, {pages, {}});
    return body(driver);
  });
}

// The same, with the calling thread's current context.
template <class Body>
CUresult in_context(Symbol symbol, uint64_t pages, Body&& body) {
  return locked(symbol, pages, [&](Driver& driver) {
    Context* context = driver.contexts.current();
    if (context == nullptr) return no_context();
    const CUresult lost = driver.scheduler->lost().error(context->device);
    return lost == CUDA_SUCCESS ? body(driver, *context) : lost;
  });
}

// For calls on virtual memory. CUDA's reference does not list CUDA_ERROR_INVALID_CONTEXT among
// their returns, and PyTorch makes them on GPUs from threads without a context (HAMi-core, pull
// request 172). It is promised nowhere that they work in a process without any context. So one must
// be active.
template <class Body>
CUresult in_any_context(Symbol symbol, uint64_t pages, Body&& body) {
  return locked(symbol, pages, [&](Driver& driver) {
    const Context* current = driver.contexts.current();
    if (current == nullptr && !driver.contexts.has_primary()) return no_context();
    const CUresult lost = driver.scheduler->lost().error(current != nullptr ? current->device : -1);
    return lost == CUDA_SUCCESS ? body(driver) : lost;
  });
}

// The same as in_context(), for calls that wait. They may release the lock, and what they found
// before is invalid then.
template <class Body>
CUresult blocking(Symbol symbol, Body&& body) {
  return call(symbol, 0, [&](Driver& driver) -> CUresult {
    Lock lock(driver.mutex);
    const DriverLock::Turn turn(&driver.calls, &lock, symbol, {});
    Context* context = driver.contexts.current();
    if (context == nullptr) return no_context();
    const CUresult lost = driver.scheduler->lost().error(context->device);
    return lost == CUDA_SUCCESS ? body(driver, *context, &lock) : lost;
  });
}

CUresult bad_handle(const char* what);
CUresult no_device();

// Finds the stream that a call names. The default ones need a current context. The body gets the
// stream's handle in the table, because the stream may be gone once the lock was released.
// `load` says what the call's time depends on.
template <class Loaded, class Body>
CUresult on_stream_loaded(Symbol symbol, CUstream handle, Loaded&& load, Body&& body) {
  return call(symbol, 0, [&](Driver& driver) -> CUresult {
    Lock lock(driver.mutex);
    const DriverLock::Turn turn(&driver.calls, &lock, symbol, load(driver));
    const Context* current = driver.contexts.current();
    const Stream* stream = driver.streams.resolve(handle, current);
    if (stream == nullptr) return current == nullptr ? no_context() : bad_handle("stream");
    const CUresult lost = driver.scheduler->lost().error(stream->device);
    return lost == CUDA_SUCCESS ? body(driver, stream->id, &lock) : lost;
  });
}

template <class Body>
CUresult on_stream_blocking(Symbol symbol, CUstream handle, Body&& body) {
  return on_stream_loaded(
      symbol, handle, [](Driver&) { return DriverLock::Load{}; }, std::forward<Body>(body));
}

template <class Body>
CUresult on_stream(Symbol symbol, CUstream handle, Body&& body) {
  return on_stream_blocking(symbol, handle, [&](Driver& driver, uint64_t id, Lock*) -> CUresult {
    return body(driver, *driver.streams.find(id));
  });
}

// The memory at an address: a mapping, a block, or pinned host memory.
struct Range {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  int device = -1;
  bool host = false, vmm = false, managed = false;
  CUmemoryPool pool = nullptr;  // to which it belongs
  unsigned exportable = 0;
  uint32_t access = 0;
};
CUresult find_range(Driver* driver, CUdeviceptr address, Range* range);

inline uint64_t pages_of(size_t bytes) { return (bytes + kGranule - 1) / kGranule; }

}  // namespace simcuda

#define CALL(base) ::simcuda::Symbol::k_##base
