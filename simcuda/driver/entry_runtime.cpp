// What the stand-ins for the CUDA runtime libraries need (runtime.h).
#include <cstdio>
#include <cstring>
#include <map>
#include <unordered_map>

#include "control.h"
#include "driver.h"
#include "runtime.h"
#include "simcuda/compute.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

struct Missed {
  std::string library, function;
  uint64_t times = 0;
};

struct Kernel {
  std::string name;
  uint64_t times = 0;
};

// Counts launches by the address of the kernel's name, because launches are many. Names are few,
// and live as long as the process.
struct RuntimeBooks {
  std::mutex mutex;
  std::unordered_map<const char*, Kernel> kernels;
  std::map<std::string, Missed> missed;

  void count(const char* name) {
    std::lock_guard<std::mutex> lock(mutex);
    Kernel& kernel = kernels[name];
    if (kernel.times++ == 0) kernel.name = name;
  }
};

RuntimeBooks& runtime_books() {
  // Never destroyed, because threads may launch while the process ends.
  static auto* kept = new RuntimeBooks;
  return *kept;
}

std::string launches_json(bool clear) {
  RuntimeBooks& books = runtime_books();
  std::lock_guard<std::mutex> lock(books.mutex);
  std::map<std::string, uint64_t> times;  // several libraries may register the same kernel
  for (const auto& [address, kernel] : books.kernels) times[kernel.name] += kernel.times;
  std::string text = "{";
  for (const auto& [name, count] : times) {
    text += (text.size() > 1 ? ", " : "") + json_quote(name) + ": " + std::to_string(count);
  }
  if (clear) books.kernels.clear();
  return text + "}";
}

std::string missing_json(bool clear) {
  RuntimeBooks& books = runtime_books();
  std::lock_guard<std::mutex> lock(books.mutex);
  std::string text = "[";
  for (const auto& [key, missed] : books.missed) {
    text += (text.size() > 1 ? ", " : "") + std::string("{\"library\": ") +
            json_quote(missed.library) + ", \"function\": " + json_quote(missed.function) +
            ", \"times\": " + std::to_string(missed.times) + "}";
  }
  if (clear) books.missed.clear();
  return text + "]";
}

}  // namespace

void simcuda::count_launch(const char* name) { runtime_books().count(name); }

int simcuda_current_device(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked.load(std::memory_order_relaxed)) return SIMCUDA_NOT_RUNNING;
  int device = SIMCUDA_NO_CONTEXT;
  if (Contexts::known_device(&device)) return device;
  std::lock_guard<std::mutex> lock(driver->mutex);
  return driver->contexts.device();
}

namespace {
thread_local std::string refused;
}

const char* simcuda::refused_kernel() { return refused.empty() ? nullptr : refused.c_str(); }

CUresult simcuda::launch_uncomputed(Driver* driver, Stream* stream, const char* name) {
  const Context* current = driver->contexts.current();
  refused.clear();
  if (current == nullptr) return no_context();
  if (!computed_by_somebody(name)) {
    refused = std::string("nobody computes the kernel ") + name +
              " in numbers mode (glake's docs/dry-run.md)";
    return fail(CUDA_ERROR_NOT_SUPPORTED, refused);
  }
  // "A kernel launch will fail if it is issued to a stream that is not associated to the current
  // device": CUDA programming guide, Stream and Event Behavior.
  if (stream->context != current->id) {
    return fail(CUDA_ERROR_INVALID_HANDLE, "the stream is not of the current context");
  }
  const auto op = std::make_shared<Op>();
  op->latency_ns = driver->kernel_costs.start_ns;
  op->launch = true;
  const CUresult result = submit(driver, stream, op);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture == nullptr) {
    count_launch(name);
  } else {
    stream->capture->graph->nodes.back().kernel = name;  // counted when it is launched
  }
  return result;
}

int simcuda_launch(const char* name, CUstream handle) {
  return on_stream_blocking(
      CALL(cuLaunchKernel), handle, [&](Driver& driver, uint64_t id, Lock* lock) {
        const CUresult result = launch_uncomputed(&driver, driver.streams.find(id), name);
        driver.scheduler->waits().make_room(lock);
        return result;
      });
}

size_t simcuda_launches(char* json, size_t capacity, int clear) {
  return answer(launches_json(clear != 0), json, capacity);
}

void simcuda_missed(const char* library, const char* function) {
  RuntimeBooks& books = runtime_books();
  std::lock_guard<std::mutex> lock(books.mutex);
  Missed& missed = books.missed[std::string(library) + "." + function];
  const bool told = missed_in_cover();
  if (missed.times++ != 0 || told) return;
  missed.library = library;
  missed.function = function;
  std::fprintf(stderr,
               "glake: %s has no %s: it returns \"not supported\" (docs/real.md says which "
               "functions the stand-ins have)\n",
               library, function);
}

size_t simcuda_missing(char* json, size_t capacity, int clear) {
  return answer(missing_json(clear != 0), json, capacity);
}

int simcuda_machine(simcuda_machine_facts* facts) {
  if (facts == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Options options;
  Topology topology;
  const CUresult result = describe(&options, &topology);
  if (result != CUDA_SUCCESS) return result;
  if (options.machine.size() >= sizeof facts->machine ||
      options.preset.size() >= sizeof facts->preset ||
      options.platforms.size() >= sizeof facts->platforms) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "a platform's name or file, or a machine's name, is too long");
  }
  *facts = {};
  facts->devices = options.devices;
  facts->memory_bytes = options.memory;
  for (int a = 0; a < topology.gpus(); ++a) {
    for (int b = 0; b < topology.gpus(); ++b) {
      if (topology.peers(a, b)) facts->peers[a] |= 1u << b;
    }
  }
  std::strcpy(facts->machine, options.machine.c_str());
  std::strcpy(facts->preset, options.preset.c_str());
  std::strcpy(facts->platforms, options.platforms.c_str());
  return CUDA_SUCCESS;
}

uint64_t simcuda_used_bytes(int gpu) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked || gpu < 0 || gpu >= driver->options.devices) return 0;
  std::lock_guard<std::mutex> lock(driver->mutex);
  return driver->machine->used(gpu);
}

void simcuda_obey_visible_devices(int obey) { obey_visible_devices = obey != 0; }
