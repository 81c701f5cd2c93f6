// A stand-in for libc10_cuda: streams, guards and the places where torch looks for its allocator,
// over simcuda. With it the adapter, compiled for a CPU build of torch, runs.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/impl/CUDAGuardImpl.h>
#include <cuda.h>

#include <array>
#include <mutex>

#include "runtime.h"

namespace c10 {
C10_DEFINE_REGISTRY(FreeCudaMemoryCallbacksRegistry, FreeMemoryCallback)
}  // namespace c10

namespace c10::cuda::CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{nullptr};
}  // namespace c10::cuda::CUDACachingAllocator

namespace c10::cuda::impl {
namespace {
C10_REGISTER_GUARD_IMPL(CUDA, CUDAGuardImpl)
}  // namespace
}  // namespace c10::cuda::impl

namespace c10::cuda {

namespace {

constexpr int kMaxDevices = 64;
constexpr int kStreams = 32;

// Stream ids: 0 is the default stream, 1 to 32 are streams of the pool, and any other id is a
// caller's handle.
struct Pool {
  std::mutex mutex;
  std::array<std::array<CUstream, kStreams>, kMaxDevices> streams{};
  std::array<int, kMaxDevices> next{};
};
Pool& pool() {
  static auto* instance = new Pool;
  return *instance;
}

thread_local std::array<StreamId, kMaxDevices> current_stream{};

DeviceIndex or_current(DeviceIndex device) { return device >= 0 ? device : current_device(); }

CUDAStream stream_of(StreamId id, DeviceIndex device) {
  return CUDAStream(Stream(Stream::UNSAFE, Device(kCUDA, device), id));
}

}  // namespace

void c10_cuda_check_implementation(const int32_t status, const char* file, const char* function,
                                   const uint32_t line, const bool) {
  if (C10_LIKELY(status == 0)) return;
  TORCH_CHECK(false, "CUDA error: ", cudaGetErrorString(static_cast<cudaError_t>(status)), " in ",
              function, " (", file, ":", line, ")");
}

DeviceIndex device_count() noexcept {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<DeviceIndex>(count) : 0;
}
cudaError_t GetDevice(DeviceIndex* device) {
  int now = 0;
  cudaError_t status = cudaGetDevice(&now);
  *device = static_cast<DeviceIndex>(now);
  return status;
}
cudaError_t SetDevice(DeviceIndex device, const bool) { return cudaSetDevice(device); }
cudaError_t MaybeSetDevice(DeviceIndex device) { return cudaSetDevice(device); }
void set_device(DeviceIndex device, const bool) { C10_CUDA_CHECK(cudaSetDevice(device)); }
DeviceIndex current_device() {
  DeviceIndex now = 0;
  C10_CUDA_CHECK(GetDevice(&now));
  return now;
}
DeviceIndex ExchangeDevice(DeviceIndex device) {
  DeviceIndex before = current_device();
  if (device != before) C10_CUDA_CHECK(cudaSetDevice(device));
  return before;
}
DeviceIndex MaybeExchangeDevice(DeviceIndex device) { return ExchangeDevice(device); }
void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
void warn_or_error_on_sync() {}

CUDAStream getDefaultCUDAStream(DeviceIndex device) { return stream_of(0, or_current(device)); }
CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  device = or_current(device);
  return stream_of(current_stream[static_cast<size_t>(device)], device);
}
void setCurrentCUDAStream(CUDAStream stream) {
  current_stream[static_cast<size_t>(stream.device_index())] = stream.id();
}
CUDAStream getStreamFromPool(const int, DeviceIndex device) {
  device = or_current(device);
  auto index = static_cast<size_t>(device);
  Pool& all = pool();
  std::lock_guard<std::mutex> guard(all.mutex);
  int slot = all.next[index]++ % kStreams;
  CUstream& stream = all.streams[index][static_cast<size_t>(slot)];
  if (stream == nullptr) {
    DeviceIndex before = ExchangeDevice(device);
    stub::use_context();
    C10_CUDA_CHECK(static_cast<cudaError_t>(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
    ExchangeDevice(before);
  }
  return stream_of(slot + 1, device);
}
CUDAStream getStreamFromPool(const bool, DeviceIndex device) {
  return getStreamFromPool(0, device);
}
CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device) {
  return stream_of(reinterpret_cast<StreamId>(stream), device);
}
cudaStream_t CUDAStream::stream() const {
  if (id() == 0) return nullptr;
  if (id() > kStreams) return reinterpret_cast<cudaStream_t>(id());
  return pool().streams[static_cast<size_t>(device_index())][static_cast<size_t>(id() - 1)];
}
bool CUDAStream::query() const { return cudaStreamQuery(stream()) == cudaSuccess; }
void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream())); }

}  // namespace c10::cuda
