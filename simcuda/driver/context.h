// Contexts and each thread's stack of current ones.
#pragma once

#include <map>

#include "machine.h"
#include "types.h"
#include "visible.h"

namespace simcuda {

struct Context {
  int device = -1;
  bool primary = false;
  uint32_t refs = 0;   // of a primary one: times retained; 0: inactive
  bool reset = false;  // inactive until it is retained again, although there are references
  bool active() const { return refs > 0 && !reset; }
  unsigned flags = 0;
  uint32_t peers = 0;  // devices that this context may reach
  uint64_t id = 0;     // its handle
  // The extent that it takes of the device's memory (option context_memory); 0: none.
  uint32_t memory = 0;
  std::map<int, size_t> limits;  // as set, by CUlimit
  uint64_t synced = 0;           // phantom: the work up to this sequence number has been waited for
};

class Contexts {
 public:
  // `memory` is how much a context with its loaded code takes of its device (option
  // context_memory).
  void start(int devices, Machine* machine, const VisibleGpus* gpus, uint64_t memory);
  Context* primary(int device) { return find(primary_[static_cast<size_t>(device)]); }
  bool has_primary();  // whether some device's primary context is active
  Context* find(uint64_t id) { return table_.find(id); }
  // The context of a handle, if it is active.
  Context* live(CUcontext handle);
  Context* find(CUcontext handle) { return find(reinterpret_cast<uint64_t>(handle)); }
  uint64_t create(int device, unsigned flags);
  void destroy(uint64_t id);
  // The stack of the calling thread.
  Context* current();
  bool current_was_reset();
  // The device of the calling thread's current context, or SIMCUDA_NO_CONTEXT. device() is called
  // under the driver's mutex, and remembers the answer. known_device() needs no mutex. It gives the
  // remembered answer, or false if this may be out of date.
  int device();
  static bool known_device(int* device);
  // A context has begun or ended, so what threads remember is out of date.
  static void changed();
  void push(uint64_t id);
  uint64_t pop();  // 0: the stack is empty
  void set(uint64_t id);
  // Takes the memory that the context has on its device while it lives.
  CUresult take_memory(Context* context);
  void give_memory(Context* context);

 private:
  Machine* machine_ = nullptr;
  const VisibleGpus* gpus_ = nullptr;
  uint64_t memory_ = 0;
  Slots<Context, 2> table_;
  std::vector<uint64_t> primary_;
  uint64_t epoch_ = 0;
};

inline CUcontext as_context(uint64_t id) { return reinterpret_cast<CUcontext>(id); }
CUresult no_context();
CUresult bad_context();

}  // namespace simcuda
