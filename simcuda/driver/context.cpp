// Contexts and each thread's stack of current ones.
#include "context.h"

#include <algorithm>
#include <atomic>

#include "driver.h"
#include "per_thread.h"
#include "runtime.h"

namespace simcuda {
namespace {

struct Current {
  uint64_t epoch = 0;  // of the driver to which the stack belongs
  std::vector<uint64_t> stack;
};

std::atomic<uint64_t> epochs{0};

// A count of the contexts that have begun or ended in the process.
std::atomic<uint64_t> changes{1};

// What a thread knows about its current device, and what `changes` was then; 0: nothing. It is in
// the static TLS block, so that a read takes one instruction.
struct Known {
  uint64_t changes;
  int device;
};
__attribute__((tls_model("initial-exec"))) thread_local Known known{0, SIMCUDA_NO_CONTEXT};

std::vector<uint64_t>& stack_of(uint64_t epoch) {
  Current& current = per_thread<Current, Current>();
  if (current.epoch != epoch) {
    current.epoch = epoch;
    current.stack.clear();
  }
  return current.stack;
}

}  // namespace

CUresult no_context() {
  Driver* driver = running.load();
  if (driver != nullptr && driver->contexts.current_was_reset()) {
    return fail(CUDA_ERROR_CONTEXT_IS_DESTROYED,
                "the calling thread's current context was reset (cuDevicePrimaryCtxReset); "
                "cuDevicePrimaryCtxRetain makes it usable again");
  }
  return fail(CUDA_ERROR_INVALID_CONTEXT, "the calling thread has no current context");
}

CUresult bad_context() { return fail(CUDA_ERROR_INVALID_CONTEXT, "not a live context"); }

CUresult no_device() { return fail(CUDA_ERROR_INVALID_DEVICE, "no such device"); }

// On a GPU this crashes (seen: benchmarks/gpu/results/2026-11-27-NVIDIA-H200-4).
CUresult bad_handle(const char* what) {
  books().violation("handle of nothing", std::string("not a live ") + what, 0);
  return fail(CUDA_ERROR_INVALID_HANDLE, std::string("not a live ") + what);
}

void Contexts::start(int devices, Machine* machine, const VisibleGpus* gpus, uint64_t memory) {
  machine_ = machine;
  gpus_ = gpus;
  memory_ = memory;
  epoch_ = ++epochs;
  for (int device = 0; device < devices; ++device) {
    primary_.push_back(create(device, 0));
    Context* context = find(primary_.back());
    context->primary = true;
    context->refs = 0;
  }
}

uint64_t Contexts::create(int device, unsigned flags) {
  Context context;
  context.device = device;
  context.flags = flags;
  context.refs = 1;
  changed();
  const uint64_t id = table_.add(context);
  find(id)->id = id;
  return id;
}

void Contexts::destroy(uint64_t id) {
  table_.remove(id);
  changed();
}

void Contexts::changed() { changes.fetch_add(1, std::memory_order_release); }

CUresult Contexts::take_memory(Context* context) {
  if (memory_ == 0 || context->memory != 0) return CUDA_SUCCESS;
  return machine_->acquire(gpus_->gpu(context->device), memory_, &context->memory, false);
}

void Contexts::give_memory(Context* context) {
  if (context->memory != 0) machine_->drop(context->memory);
  context->memory = 0;
}

Context* Contexts::live(CUcontext handle) {
  Context* context = find(handle);
  return context != nullptr && context->active() ? context : nullptr;
}

Context* Contexts::current() {
  const std::vector<uint64_t>& stack = stack_of(epoch_);
  if (stack.empty()) return nullptr;
  Context* context = find(stack.back());
  return context != nullptr && context->active() ? context : nullptr;
}

bool Contexts::current_was_reset() {
  const std::vector<uint64_t>& stack = stack_of(epoch_);
  const Context* context = stack.empty() ? nullptr : find(stack.back());
  return context != nullptr && context->reset;
}

int Contexts::device() {
  const Context* context = current();
  known = {changes.load(std::memory_order_acquire),
           context == nullptr ? SIMCUDA_NO_CONTEXT : context->device};
  return known.device;
}

bool Contexts::known_device(int* device) {
  *device = known.device;
  return known.changes == changes.load(std::memory_order_acquire);
}

bool Contexts::has_primary() {
  return std::any_of(primary_.begin(), primary_.end(),
                     [&](uint64_t id) { return find(id)->active(); });
}

void Contexts::push(uint64_t id) {
  known.changes = 0;
  stack_of(epoch_).push_back(id);
}

uint64_t Contexts::pop() {
  known.changes = 0;
  std::vector<uint64_t>& stack = stack_of(epoch_);
  if (stack.empty()) return 0;
  const uint64_t id = stack.back();
  stack.pop_back();
  return id;
}

void Contexts::set(uint64_t id) {
  known.changes = 0;
  std::vector<uint64_t>& stack = stack_of(epoch_);
  if (!stack.empty()) stack.pop_back();
  if (id != 0) stack.push_back(id);
}

}  // namespace simcuda
