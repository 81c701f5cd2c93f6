#include "transfer/run/copy_kernel.h"

#include <algorithm>

#include "driver/device_scope.h"
#include "transfer/run/kernels/copy_blocks_ptx.h"

namespace glake::transfer {

bool CopyKernel::ready(int gpu) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto known = loaded_.find(gpu);
  if (known == loaded_.end()) {
    Loaded loaded;
    const Status s = driver_.load_kernel(gpu, kCopyBlocksPtx, kCopyBlocks, &loaded.kernel);
    if (!s.ok()) loaded.why = device_text(gpu) + ": " + driver_.describe(s);
    known = loaded_.emplace(gpu, std::move(loaded)).first;
  }
  return known->second.kernel.function != 0;
}

Status CopyKernel::launch(int gpu, Address table, size_t count, StreamHandle stream) {
  Kernel kernel;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    kernel = loaded_[gpu].kernel;
  }
  auto blocks = static_cast<unsigned>(count);
  constexpr unsigned kWarps = kBlockThreads / 32;
  const unsigned groups = std::clamp((blocks + kWarps - 1) / kWarps, 1u, kMostGroups);
  void* arguments[] = {&table, &blocks};
  const Status s = driver_.launch(kernel, groups, kBlockThreads, arguments, stream);
  if (s.ok()) launches_.fetch_add(1, std::memory_order_relaxed);
  return s;
}

std::string CopyKernel::why() const {
  std::lock_guard<std::mutex> guard(mutex_);
  std::string text;
  for (const auto& [gpu, loaded] : loaded_) {
    if (!loaded.why.empty()) text += (text.empty() ? "" : "; ") + loaded.why;
  }
  return text;
}

void CopyKernel::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto it = loaded_.begin(); it != loaded_.end(); it = loaded_.erase(it)) {
    if (it->second.kernel.module == 0) continue;
    DeviceScope scope(driver_, it->first);
    Status s = scope.status();
    if (s.ok()) s = driver_.unload_kernel(it->second.kernel);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "unloading a kernel: " + driver_.describe(s));
  }
}

}  // namespace glake::transfer
