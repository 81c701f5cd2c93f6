#include "torch/cuda/ipc_handles.h"

#include "torch/cuda/calls.h"

namespace glake::adapter {

namespace {
constexpr char kHandleMark[] = "glake:";
}

std::string IpcHandles::share(void* ptr) {
  const KnownBlock known = blocks_.known(ptr);
  TORCH_CHECK(!known.foreign,
              "glake: this tensor's memory is of a pool with an allocator of its own, and cannot "
              "be sent to another process");
  TORCH_CHECK(
      !known.uncached,
      "glake: this tensor was made with caching off, and cannot be sent to another process");
  std::string text(4096, '\0');
  size_t length = library_.ipc_share(ptr, &text[0], text.size());
  if (length == 0) raise_error(library_);
  TORCH_CHECK(length < text.size(), "glake: an IPC handle of ", length, " bytes");
  text.resize(length);
  return kHandleMark + text;
}

void* IpcHandles::open(const std::string& handle) {
  constexpr size_t kMarkLength = sizeof kHandleMark - 1;
  TORCH_CHECK(handle.compare(0, kMarkLength, kHandleMark) == 0,
              "glake: the tensor was sent by a process that does not use glake: start both with "
              "GLAKE_ALLOCATOR=1, or neither");
  c10::DeviceIndex device = c10::cuda::current_device();
  devices_.use(device);
  size_t bytes = 0;
  void* ptr = library_.ipc_open(handle.c_str() + kMarkLength, device, &bytes);
  if (ptr == nullptr) raise_error(library_);
  return ptr;
}

}  // namespace glake::adapter
