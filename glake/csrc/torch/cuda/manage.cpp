// Limits, caches, peers and memory of other processes.
#include <cmath>
#include <cstdlib>
#include <map>

#include "base/types.h"
#include "torch/cuda/allocator.h"
#include "torch/cuda/on_device.h"

namespace glake::adapter {

CudaAllocator::CudaAllocator() {
  // torch's own switch for debugging: no caching.
  for (auto& fraction : fractions_) fraction.store(-1);
  const char* uncached = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  if (uncached != nullptr && std::string(uncached) == "1") enabled_.store(false);
}

CudaAllocator& CudaAllocator::instance() {
  static auto* allocator = new CudaAllocator;
  return *allocator;
}

// torch tells how many devices there are when it initialises CUDA; no driver is opened yet.
void CudaAllocator::init(int device_count) {
  TORCH_CHECK(device_count <= kMaxDevices, "glake: ", device_count, " devices are more than the ",
              kMaxDevices, " it can manage in a process");
  if (device_count > devices_.load()) devices_.store(device_count);
}

bool CudaAllocator::initialized() { return devices_.load() > 0; }

std::string CudaAllocator::name() { return "glake"; }

DeviceIndex CudaAllocator::checked(DeviceIndex device) const {
  int devices = devices_.load();
  TORCH_CHECK(device >= 0 && device < kMaxDevices && (devices == 0 || device < devices),
              "Invalid device argument ", static_cast<int>(device),
              ": did you call init? torch knows ", devices, " devices");
  return device;
}

// Off: every new tensor is a driver allocation of its own, given back at its free. For debugging.
void CudaAllocator::enable(bool value) { enabled_.store(value); }
bool CudaAllocator::isEnabled() const { return enabled_.load(); }

double CudaAllocator::getMemoryFraction(DeviceIndex device) {
  double asked = fractions_[static_cast<size_t>(checked(device))].load();
  if (asked >= 0) return asked;
  double fraction = library_.limit_fraction(checked(device));
  if (fraction < 0) raise();
  return fraction;
}

// A granule is the least that can be had at all.
void CudaAllocator::setMemoryFraction(double fraction, DeviceIndex device) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within (0, 1).");
  use(checked(device));
  size_t free = 0, total = 0;
  require(library_.memory_info(device, &free, &total));
  double least = static_cast<double>(kGranule + 1) / static_cast<double>(total);
  require(library_.set_limit_fraction(device, std::min(1.0, std::max(fraction, least))));
  fractions_[static_cast<size_t>(device)].store(fraction);
}

void CudaAllocator::emptyCache(MempoolId_t pool) {
  History::Freeing freeing(history_);
  for (int device = 0; device < kMaxDevices; ++device) {
    if (!used(device)) continue;
    if (!capturing(device)) foreign_.empty(device, pool);
    if (pool == kNoPool) {
      require(library_.empty_cache(device));
      continue;
    }
    require(library_.pool_empty_cache(device, named(pool)));  // of an ended one: nothing
  }
}

// The largest block that could be had: cuDNN sizes its workspaces by it.
void CudaAllocator::cacheInfo(DeviceIndex device, size_t* largest) {
  size_t cached = 0, free = 0, total = 0;
  if (*largest == 0) {
    require(library_.memory_info(checked(device), &free, &total));
    *largest = free;
  }
  use(device);
  require(library_.largest_free(device, &cached));
  *largest = std::max(*largest, cached);
}

std::vector<native::StreamSegmentSize> CudaAllocator::getExpandableSegmentSizes(
    DeviceIndex device) {
  struct Sums {
    std::map<std::pair<void*, bool>, size_t> bytes;
    void segment(const glake_segment_info& each) {
      if (each.paused == 0) bytes[{each.stream, each.large == 0}] += each.bytes;
    }
    void block(const glake_block_record&) {}
  } sums;
  if (used(checked(device))) visit_memory(device, sums);
  std::vector<native::StreamSegmentSize> sizes;
  for (const auto& [key, bytes] : sums.bytes) {
    sizes.emplace_back(static_cast<cudaStream_t>(key.first), key.second, bytes);
  }
  return sizes;
}

std::pair<size_t, size_t> CudaAllocator::getMemoryInfo(DeviceIndex device) {
  size_t free = 0, total = 0;
  require(library_.memory_info(checked(device), &free, &total));
  return {free, total};
}

// torch's direction: work on `device` may then reach memory of `to`.
void CudaAllocator::enablePeerAccess(DeviceIndex device, DeviceIndex to) {
  checked(device);
  use(checked(to));
  {
    // For what is not glake's: NCCL's memory, and blocks of the driver's own allocator.
    OnDevice on(device);
    cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(status);
    }
  }
  require(library_.enable_peer_access(to, device));
}

namespace {
constexpr char kHandleMark[] = "glake:";
}

native::ShareableHandle CudaAllocator::shareIpcHandle(void* ptr) {
  Known known;
  if (!describe(ptr, &known)) raise();
  TORCH_CHECK(!known.foreign,
              "glake: this tensor's memory is of a pool with an allocator of its own, and cannot "
              "be sent to another process");
  TORCH_CHECK(
      !known.uncached,
      "glake: this tensor was made with caching off, and cannot be sent to another process");
  std::string text(4096, '\0');
  size_t length = library_.ipc_share(ptr, &text[0], text.size());
  if (length == 0) raise();
  TORCH_CHECK(length < text.size(), "glake: an IPC handle of ", length, " bytes");
  text.resize(length);
  return {0, kHandleMark + text};
}

std::shared_ptr<void> CudaAllocator::getIpcDevPtr(std::string handle) {
  constexpr size_t kMarkLength = sizeof kHandleMark - 1;
  TORCH_CHECK(handle.compare(0, kMarkLength, kHandleMark) == 0,
              "glake: the tensor was sent by a process that does not use glake: start both with "
              "GLAKE_ALLOCATOR=1, or neither");
  DeviceIndex device = c10::cuda::current_device();
  use(device);
  size_t bytes = 0;
  void* ptr = library_.ipc_open(handle.c_str() + kMarkLength, device, &bytes);
  if (ptr == nullptr) raise();
  return {ptr, [](void* opened) {
            CudaAllocator& self = instance();
            if (!self.exiting()) self.library_.ipc_close(opened);
          }};
}

}  // namespace glake::adapter
