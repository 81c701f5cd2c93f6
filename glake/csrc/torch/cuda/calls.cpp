#include "torch/cuda/calls.h"

namespace glake::adapter {

std::string out_of_memory_text(const std::string& text) {
  return text.compare(0, kOutOfMemoryPhrase.size(), kOutOfMemoryPhrase) == 0
             ? text
             : std::string(kOutOfMemoryPhrase) + text;
}

void raise_error(const CudaLibrary& library, size_t bytes) {
  std::string text;
  int code = library.error(&text);
  TORCH_CHECK_WITH(OutOfMemoryError, !is_out_of_memory(code, bytes), out_of_memory_text(text));
  TORCH_CHECK(false, "glake: ", text);
}

}  // namespace glake::adapter
