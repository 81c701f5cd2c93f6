// How the CUDA allocator calls glake's C interface. Failures are thrown as torch's exceptions.
#pragma once

#include <string>
#include <string_view>

#include "torch/cuda/version.h"
#include "torch/library.h"

namespace glake::adapter {

// The text begins with PyTorch's phrase, once, because other software looks for it. The core's own
// texts have the phrase already.
constexpr std::string_view kOutOfMemoryPhrase = "CUDA out of memory. ";
std::string out_of_memory_text(const std::string& text);

// Throws the calling thread's last error. `bytes` is the size of the request, if it was one for
// memory.
[[noreturn]] void raise_error(const CudaLibrary& library, size_t bytes = 0);

inline void require(const CudaLibrary& library, int status) {
  if (status != GLAKE_OK) raise_error(library);
}

inline glake_pool named(c10::MempoolId_t pool) { return {pool.first, pool.second}; }

// Calls visit.segment() for each segment, and then visit.block() for each of its blocks. `told`:
// the visit is for a snapshot, which the history records as an event.
template <typename Visit>
void visit_memory(const CudaLibrary& library, int device, Visit& visit, bool told = false) {
  auto segment = [](void* self, const glake_segment_info* each) {
    static_cast<Visit*>(self)->segment(*each);
  };
  auto block = [](void* self, const glake_block_record* each) {
    static_cast<Visit*>(self)->block(*each);
  };
  auto* call = told ? library.visit_memory : library.visit_blocks;
  require(library, call(device, &visit, segment, block));
}

}  // namespace glake::adapter
