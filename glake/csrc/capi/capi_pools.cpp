// The C interface of private pools.
#include "capi/capi_call.h"
#include "process/alloc_hooks.h"
#include "process/process.h"

using namespace glake::capi;
using glake::PoolId;
using glake::Process;

struct glake_checkpoint {
  int device;
  PoolId pool;
  uint64_t generation;
  glake::Checkpoint blocks;
};

namespace {

PoolId id_of(glake_pool pool) { return {pool.first, pool.second}; }

}  // namespace

extern "C" {

int glake_pool_retain(int device, glake_pool pool) {
  return api_call([&] { Process::instance().device(device).pools().retain(id_of(pool)); });
}

int glake_pool_release(int device, glake_pool pool) {
  return api_call([&] { Process::instance().device(device).pools().release(id_of(pool)); });
}

int glake_pool_uses(int device, glake_pool pool) {
  int users = 0;
  int code =
      api_call([&] { users = Process::instance().device(device).pools().users(id_of(pool)); });
  return code == GLAKE_OK ? users : -code;
}

int glake_pool_set_flags(int device, glake_pool pool, unsigned flags) {
  return api_call(
      [&] { Process::instance().device(device).pools().set_flags(id_of(pool), flags); });
}

void* glake_pool_malloc(size_t bytes, int device, void* stream, glake_pool pool) {
  if (id_of(pool) == PoolId{}) return glake_malloc(bytes, device, stream);
  void* result = nullptr;
  api_call([&] {
    require_size(bytes);
    result = glake::pool_malloc(Process::instance(), bytes, device, glake::stream_of(stream),
                                id_of(pool));
  });
  return result;
}

void* glake_pool_malloc_at(void* ptr, size_t bytes, int device, void* stream, glake_pool pool) {
  void* result = nullptr;
  api_call([&] {
    require_size(bytes);
    result = glake::pool_malloc_at(Process::instance(), ptr, bytes, device,
                                   glake::stream_of(stream), id_of(pool));
  });
  return result;
}

int glake_pool_empty_cache(int device, glake_pool pool) {
  return api_call([&] {
    auto& allocator = Process::instance().device(device);
    glake::watched_trim([&] { allocator.pools().empty(id_of(pool)); });
  });
}

glake_checkpoint* glake_pool_checkpoint(int device, glake_pool pool) {
  glake_checkpoint* made = nullptr;
  api_call([&] {
    Process& process = Process::instance();
    glake::Checkpoint blocks = process.device(device).pools().checkpoint(id_of(pool));
    made = new glake_checkpoint{device, id_of(pool), process.generation(), std::move(blocks)};
  });
  return made;
}

void glake_checkpoint_free(glake_checkpoint* checkpoint) {
  api_call([&] { delete checkpoint; });
}

int glake_pool_restore(glake_checkpoint* checkpoint, void* self, void (*freed)(void*, void*),
                       void (*allocated)(void*, void*, size_t, void*)) {
  return api_call([&] {
    require(checkpoint != nullptr, "glake_pool_restore needs a checkpoint");
    Process& process = Process::instance();
    process.device(checkpoint->device);  // opens the device if it was not open
    require(checkpoint->generation == process.generation(),
            "the checkpoint was made before glake_shutdown()");
    glake::RestoreLog log =
        glake::pool_restore(process, checkpoint->device, checkpoint->pool, checkpoint->blocks);
    glake::Alone outside(false);  // the caller's functions may call glake
    for (const glake::SavedBlock& b : log.freed) {
      if (freed != nullptr) freed(self, reinterpret_cast<void*>(b.ptr));
    }
    for (const glake::SavedBlock& b : log.allocated) {
      if (allocated == nullptr) break;
      allocated(self, reinterpret_cast<void*>(b.ptr), b.requested,
                reinterpret_cast<void*>(glake::given_name(b.stream)));
    }
  });
}

}  // extern "C"
