#include "torch/cuda/device_memory.h"

#include <algorithm>
#include <map>

#include "base/types.h"
#include "torch/cuda/calls.h"
#include "torch/cuda/on_device.h"

namespace glake::adapter {

using c10::DeviceIndex;
using c10::MempoolId_t;

DeviceMemory::DeviceMemory(const CudaLibrary& library, TorchDevices& devices,
                           const PrivatePools& pools, ForeignPools& foreign)
    : library_(library), devices_(devices), pools_(pools), foreign_(foreign) {
  for (auto& fraction : fractions_) fraction.store(-1);
}

double DeviceMemory::fraction(DeviceIndex device) const {
  double asked = fractions_[static_cast<size_t>(devices_.checked(device))].load();
  if (asked >= 0) return asked;
  double fraction = library_.limit_fraction(device);
  if (fraction < 0) raise_error(library_);
  return fraction;
}

void DeviceMemory::start_with(double fraction) {
  for (auto& each : fractions_) each.store(fraction);
  devices_.on_first_use([this, fraction](DeviceIndex device) { limit(fraction, device); });
}

void DeviceMemory::set_fraction(double fraction, DeviceIndex device) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within (0, 1).");
  devices_.use(devices_.checked(device));
  limit(fraction, device);
  fractions_[static_cast<size_t>(device)].store(fraction);
}

// The least limit is a granule.
void DeviceMemory::limit(double fraction, DeviceIndex device) {
  double least = static_cast<double>(kGranule + 1) / static_cast<double>(info(device).second);
  require(library_, library_.set_limit_fraction(device, std::min(1.0, std::max(fraction, least))));
}

std::pair<size_t, size_t> DeviceMemory::info(DeviceIndex device) const {
  size_t free = 0, total = 0;
  require(library_, library_.memory_info(devices_.checked(device), &free, &total));
  return {free, total};
}

size_t DeviceMemory::largest(DeviceIndex device, size_t at_least) {
  if (at_least == 0) at_least = info(device).first;
  devices_.use(device);
  size_t cached = 0;
  require(library_, library_.largest_free(device, &cached));
  return std::max(at_least, cached);
}

std::vector<native::StreamSegmentSize> DeviceMemory::segment_sizes(DeviceIndex device) const {
  struct Sums {
    std::map<std::pair<void*, bool>, size_t> bytes;
    void segment(const glake_segment_info& each) {
      if (each.paused == 0) bytes[{each.stream, each.large == 0}] += each.bytes;
    }
    void block(const glake_block_record&) {}
  } sums;
  if (devices_.used(devices_.checked(device))) visit_memory(library_, device, sums);
  std::vector<native::StreamSegmentSize> sizes;
  for (const auto& [key, bytes] : sums.bytes) {
    sizes.emplace_back(static_cast<cudaStream_t>(key.first), key.second, bytes);
  }
  return sizes;
}

void DeviceMemory::empty_cache(MempoolId_t pool) {
  for (int device = 0; device < kMaxDevices; ++device) {
    if (!devices_.used(device)) continue;
    if (!pools_.capturing(device)) foreign_.empty(device, pool);
    if (pool == kNoPool) {
      require(library_, library_.empty_cache(device));
      continue;
    }
    // For a pool that has ended this does nothing.
    require(library_, library_.pool_empty_cache(device, named(pool)));
  }
}

void DeviceMemory::enable_peer_access(DeviceIndex device, DeviceIndex to) {
  devices_.checked(device);
  devices_.use(devices_.checked(to));
  {
    // This serves memory that is not glake's: NCCL's, and blocks of the driver's own allocator.
    OnDevice on(device);
    cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(status);
    }
  }
  require(library_, library_.enable_peer_access(to, device));
}

}  // namespace glake::adapter
