#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

void TorchDevices::init(int count) {
  TORCH_CHECK(count <= kMaxDevices, "glake: ", count, " devices are more than the ", kMaxDevices,
              " it can manage in a process");
  if (count > known_.load()) known_.store(count);
}

c10::DeviceIndex TorchDevices::checked(c10::DeviceIndex device) const {
  const int known = known_.load();
  TORCH_CHECK(device >= 0 && device < kMaxDevices && (known == 0 || device < known),
              "Invalid device argument ", static_cast<int>(device),
              ": did you call init? torch knows ", known, " devices");
  return device;
}

void TorchDevices::use_first(int device) {
  std::lock_guard<std::mutex> guard(starting_);
  if (used(device)) return;
  if (starts_) starts_(static_cast<c10::DeviceIndex>(device));
  used_.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
}

int TorchDevices::count() const {
  int count = known_.load();
  for (int device = count; device < kMaxDevices; ++device) {
    if (used(device)) count = device + 1;
  }
  return count;
}

}  // namespace glake::adapter
