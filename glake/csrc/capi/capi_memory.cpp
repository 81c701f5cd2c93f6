// The C interface of memory that others must see whole: contiguous blocks, pins, memory of other
// processes, and pinned host memory.
#include "capi/capi_call.h"
#include "glake/glake.h"
#include "process/alloc_hooks.h"
#include "process/process.h"
#include "process/region_calls.h"

using namespace glake::capi;
using glake::Block;
using glake::Process;

namespace {

glake::Address address(void* ptr) { return reinterpret_cast<glake::Address>(ptr); }

bool is_kind(int kind) {
  return kind == GLAKE_STITCHED || kind == GLAKE_CONTIGUOUS_VMM || kind == GLAKE_CONTIGUOUS_LEGACY;
}

void require_kind(int kind) {
  if (is_kind(kind)) return;
  throw glake::Error(GLAKE_INVALID_ARGUMENT,
                     "no kind of memory has the number " + std::to_string(kind) +
                         "; it is GLAKE_STITCHED (0), GLAKE_CONTIGUOUS_VMM (1) or "
                         "GLAKE_CONTIGUOUS_LEGACY (2)");
}

}  // namespace

extern "C" {

void* glake_malloc_contiguous(size_t bytes, int device, void* stream, int kind) {
  if (kind == GLAKE_STITCHED) return glake_malloc(bytes, device, stream);
  void* result = nullptr;
  api_call([&] {
    require_size(bytes);
    require_kind(kind);
    result = glake::contiguous_malloc(Process::instance(), bytes, device, glake::stream_of(stream),
                                      {kind});
  });
  return result;
}

int glake_set_kind(int kind) {
  int before = GLAKE_STITCHED;
  int code = api_call([&] {
    require_kind(kind);
    before = Process::instance().kinds().set_kind(kind);
  });
  return code == GLAKE_OK ? before : -code;
}

int glake_pin(void* ptr) {
  return api_call([&] {
    Process& process = Process::instance();
    Block& b = process.block(ptr, false);
    glake::Sharing(b.heap->device).pin(b, process.caller_block(ptr, b), glake::PinOwner::kCaller);
  });
}

int glake_unpin(void* ptr) {
  return api_call([&] { Process::instance().unpin(ptr); });
}

size_t glake_ipc_share(void* ptr, char* handle, size_t capacity) {
  size_t length = 0;
  api_call([&] {
    Process& process = Process::instance();
    Block& b = process.block(ptr, false);
    length = copy_out(process.ipc().share(b, process.caller_block(ptr, b)), handle, capacity);
  });
  return length;
}

void* glake_ipc_open(const char* handle, int device, size_t* bytes) {
  void* result = nullptr;
  api_call([&] {
    require(handle != nullptr, "glake_ipc_open needs the text of glake_ipc_share");
    Process& process = Process::instance();
    glake::Bytes size = 0;
    glake::DeviceAllocator& on = process.device(device);
    result = reinterpret_cast<void*>(process.ipc().open(handle, on, &size));
    if (bytes != nullptr) *bytes = size;
  });
  return result;
}

int glake_ipc_close(void* ptr) {
  return api_call([&] { Process::instance().ipc().close(address(ptr)); });
}

void* glake_shard_create(size_t bytes, int device) {
  void* result = nullptr;
  api_call([&] {
    require_size(bytes);
    Process& process = Process::instance();
    glake::DeviceAllocator& on = process.device(device);
    result = reinterpret_cast<void*>(process.ipc().shards().create(on, bytes));
  });
  return result;
}

int glake_shard_seal(void* ptr) {
  return api_call([&] { Process::instance().ipc().shards().seal(address(ptr)); });
}

size_t glake_shard_share(void* ptr, char* handle, size_t capacity) {
  size_t length = 0;
  api_call([&] {
    length = copy_out(Process::instance().ipc().shards().share(address(ptr)), handle, capacity);
  });
  return length;
}

void* glake_shard_open(const char* handle, int device, size_t* bytes) {
  void* result = nullptr;
  api_call([&] {
    require(handle != nullptr, "glake_shard_open needs the text of glake_shard_share");
    Process& process = Process::instance();
    glake::Bytes size = 0;
    glake::DeviceAllocator& on = process.device(device);
    result = reinterpret_cast<void*>(process.ipc().shards().open(handle, on, &size));
    if (bytes != nullptr) *bytes = size;
  });
  return result;
}

int glake_shard_close(void* ptr) {
  return api_call([&] { Process::instance().ipc().shards().close(address(ptr)); });
}

int glake_device_uuid(int device, unsigned char uuid[16]) {
  return api_call([&] {
    require(uuid != nullptr, "glake_device_uuid needs room for 16 bytes");
    Process& process = Process::instance();
    process.device(device);
    glake::DeviceUuid found{};
    const glake::Status s = process.driver().uuid(device, &found);
    if (!s.ok()) {
      throw glake::Error(GLAKE_DRIVER_ERROR, "the driver does not name " +
                                                 glake::device_text(device) + ": " +
                                                 process.driver().describe(s));
    }
    std::copy(found.begin(), found.end(), uuid);
  });
}

void* glake_host_malloc(size_t bytes) {
  void* result = nullptr;
  api_call([&] {
    require_size(bytes);
    result = Process::instance().host().allocate(bytes);
  });
  return result;
}

int glake_host_free(void* ptr) {
  return api_call([&] {
    if (ptr == nullptr) return;
    Process& process = Process::instance();
    if (process.hooks().has(glake::kCopied)) {
      process.transfer().refuse_copied(ptr, process.host().requested(ptr));
    }
    process.host().free(ptr);
  });
}

size_t glake_host_block_bytes(void* ptr) {
  size_t bytes = 0;
  api_call([&] { bytes = Process::instance().host().block_bytes(ptr); });
  return bytes;
}

int glake_host_record_stream(void* ptr, int device, void* stream) {
  return api_call(
      [&] { Process::instance().host().record(ptr, device, glake::stream_of(stream)); });
}

int glake_host_empty_cache(void) {
  return api_call([] {
    Process& process = Process::instance();
    glake::RegionCalls(process).drop_freed();
    bool capturing = false;
    process.for_each_device(
        [&](glake::DeviceAllocator& device) { capturing = capturing || device.capturing(); });
    process.host().empty_cache(!capturing);
  });
}

size_t glake_host_stats(char* json, size_t capacity) {
  size_t length = 0;
  api_call([&] {
    Process& process = Process::instance();
    glake::RegionCalls(process).drop_freed();
    length = copy_out(process.host().stats_json(), json, capacity);
  });
  return length;
}

}  // extern "C"
