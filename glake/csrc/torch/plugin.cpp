// The `basic` mode: glake as a torch.cuda.memory.CUDAPluggableAllocator. It is compiled against
// c10, so that a refused allocation becomes torch.OutOfMemoryError: torch does not check for NULL.
// CUDA types are declared here and not included, because only their names cross the interface.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/types.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>

#include "base/numbers.h"
#include "torch/library.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

#define GLAKE_PLUGIN extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMaxDevices = 64;

struct Plugin {
  glake::adapter::Library library;
  std::atomic<uint64_t> devices_used{0};  // a bit for each device that may be opened
  std::atomic<uint64_t> failed_frees{0};
};

// It is never destroyed, because torch may free after static destructors have run.
Plugin& plugin() {
  static auto* instance = new Plugin;
  return *instance;
}

[[noreturn]] void raise(size_t bytes = 0) {
  std::string text;
  int code = plugin().library.error(&text);
  TORCH_CHECK_WITH(OutOfMemoryError, !glake::adapter::is_out_of_memory(code, bytes),
                   "glake: ", text);
  TORCH_CHECK(false, "glake: ", text);
}

}  // namespace

// Returns 0, or -1 and a sentence in `text`.
GLAKE_PLUGIN int glake_plugin_open(const char* library, char* text, size_t capacity) {
  std::string missing = plugin().library.open(library);
  if (missing.empty()) return 0;
  std::snprintf(text, capacity, "%s", missing.c_str());
  return -1;
}

GLAKE_PLUGIN void* glake_plugin_alloc(ssize_t bytes, int device, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  TORCH_CHECK(bytes > 0, "glake: an allocation of ", bytes, " bytes");
  void* block = plugin().library.malloc(static_cast<size_t>(bytes), device, stream);
  if (block == nullptr) raise(static_cast<size_t>(bytes));
  if (device < kMaxDevices) plugin().devices_used.fetch_or(uint64_t{1} << device);
  return block;
}

// A deleter must not throw: a refused free is counted.
GLAKE_PLUGIN void glake_plugin_free(void* block, ssize_t, int, cudaStream_t) {
  if (plugin().library.free(block) != GLAKE_OK) plugin().failed_frees.fetch_add(1);
}

GLAKE_PLUGIN void glake_plugin_record_stream(void* block, cudaStream_t stream) {
  if (block != nullptr && plugin().library.record_stream(block, stream) != GLAKE_OK) raise();
}

// For torch.cuda.empty_cache().
GLAKE_PLUGIN void glake_plugin_reset() {
  uint64_t used = plugin().devices_used.load();
  for (int device = 0; device < kMaxDevices; ++device) {
    if ((used >> device & 1) != 0 && plugin().library.empty_cache(device) != GLAKE_OK) raise();
  }
}

// For torch.cuda.set_per_process_memory_fraction(). The limit is one for all devices.
GLAKE_PLUGIN void glake_plugin_memory_fraction(double fraction, int) {
  std::string value = glake::exact_text(fraction);
  if (plugin().library.configure("limit", value.c_str()) != GLAKE_OK) raise();
}

GLAKE_PLUGIN void* glake_plugin_base_alloc(void* block, size_t* bytes) {
  if (plugin().library.block_info(block, bytes, nullptr, nullptr) != GLAKE_OK) raise();
  return block;
}

// Private pools (CUDA graphs, MemPool) need memory that stays with its pool. This mode does not
// have that, and an ignored request would corrupt a captured graph's tensors.
GLAKE_PLUGIN void glake_plugin_begin_pool(int, c10::MempoolId_t,
                                          std::function<bool(cudaStream_t)>) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "glake's basic mode has no private memory pools, which CUDA graphs "
                              "and torch.cuda.MemPool need; unset GLAKE_ALLOCATOR for this job");
}
GLAKE_PLUGIN void glake_plugin_end_pool(int, c10::MempoolId_t) {}
GLAKE_PLUGIN void glake_plugin_release_pool(int, c10::MempoolId_t) {}

GLAKE_PLUGIN uint64_t glake_plugin_failed_frees() { return plugin().failed_frees.load(); }
