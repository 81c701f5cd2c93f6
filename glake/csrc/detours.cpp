#include "detours.h"

namespace glake {

void* detoured_malloc(Process& process, Bytes bytes, int device, StreamHandle stream) {
  void* ptr = plain_malloc(process, bytes, device, stream);
  if (process.detoured(kTraced)) process.trace().allocated(ptr, bytes, stream);
  return ptr;
}

void detoured_free(Process& process, void* ptr) {
  Block& b = process.block(ptr, true);
  if (process.detoured(kTraced)) process.trace().freed(ptr);
  ThreadCache& cache = process.cache(b.device->device());
  b.device->free(&b, cache);
}

}  // namespace glake
