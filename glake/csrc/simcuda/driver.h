// The driver as one object: options, machine, memory, contexts, streams, and the wrapper every
// exported call goes through.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include "books.h"
#include "context.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "stream.h"
#include "types.h"

namespace simcuda {

class Driver {
 public:
  static CUresult start(const Given& given, std::unique_ptr<Driver>* driver);
  ~Driver();

  std::mutex mutex;
  Options options;
  int devices = 0;
  std::unique_ptr<Machine> machine;
  Memory memory;
  Contexts contexts;
  Streams streams;

 private:
  Driver() = default;
};

// The running driver; nullptr before cuInit.
extern std::atomic<Driver*> running;
// Set in a forked child: CUDA does not survive fork.
extern std::atomic<bool> forked;

CUresult initialize();
CUresult not_initialized();

// What every exported call does: books, faults, state, and no exception past this line.
template <class Body>
CUresult call(Symbol symbol, uint64_t pages, Body&& body) {
  if (forked.load(std::memory_order_relaxed)) return not_initialized();
  const CUresult told = books().enter(symbol, pages);
  if (told != CUDA_SUCCESS) return told;
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr) return not_initialized();
  try {
    return body(*driver);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// The same, under the driver's mutex.
template <class Body>
CUresult locked(Symbol symbol, uint64_t pages, Body&& body) {
  return call(symbol, pages, [&](Driver& driver) {
    std::lock_guard<std::mutex> lock(driver.mutex);
    return body(driver);
  });
}

// The same, with the calling thread's current context.
template <class Body>
CUresult in_context(Symbol symbol, uint64_t pages, Body&& body) {
  return locked(symbol, pages, [&](Driver& driver) {
    Context* context = driver.contexts.current();
    if (context == nullptr) return no_context();
    return body(driver, *context);
  });
}

inline uint64_t pages_of(size_t bytes) { return (bytes + kGranule - 1) / kGranule; }

}  // namespace simcuda

#define CALL(base) ::simcuda::Symbol::k_##base
