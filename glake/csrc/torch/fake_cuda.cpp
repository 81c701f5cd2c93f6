// A CUDA device that exists in name only, for `glake plan`. With it a CPU build of torch runs
// autograd, its device threads, streams and SDPA's choice of kernel for fake "cuda" tensors, whose
// memory nobody touches. It is loaded before `import torch`, because torch asks for its CUDA hooks
// only once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

namespace {

constexpr int kMostDevices = 64;
constexpr int64_t kPool = 32;  // streams of each priority, as many as in torch's CUDA stream pool

std::atomic<int> devices{1};
std::atomic<int> attention{static_cast<int>(at::SDPBackend::flash_attention)};
std::atomic<int64_t> streams_made[2] = {0, 0};
thread_local int8_t present_device = 0;
thread_local std::array<int64_t, kMostDevices> current_stream{};

size_t slot(c10::Device device) {
  int index = device.has_index() ? device.index() : present_device;
  return static_cast<size_t>(index) % kMostDevices;
}

c10::Stream stream_of(c10::Device device, int64_t id) {
  auto index = static_cast<c10::DeviceIndex>(slot(device));
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, index), id);
}

// No work is ever pending, so an event is done as soon as it is recorded.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return c10::Device(c10::DeviceType::CUDA, present_device);
  }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) present_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(device, current_stream[slot(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return getNewStream(device, high ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    int pool = priority < 0 ? 1 : 0;
    return stream_of(device, 1 + streams_made[pool]++ % kPool + pool * kPool);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::Stream before = getStream(stream.device());
    current_stream[slot(stream.device())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(devices.load());
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static char recorded;  // any address but null
    *event = &recorded;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.0; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// The kernel that torch's CUDA build takes, by its published conditions. torch itself pads the head
// size to a multiple of 8 before the flash kernel.
int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double, bool is_causal, std::optional<double>,
               bool enable_gqa) {
  using at::SDPBackend;
  const at::Context& context = at::globalContext();
  bool dense = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  bool same_heads = query.sym_size(1) == key.sym_size(1) && key.sym_size(1) == value.sym_size(1);
  bool square = !is_causal || query.sym_size(2) == key.sym_size(2);
  bool flash = dense && half && !mask.has_value() && square && (same_heads || enable_gqa) &&
               query.sym_size(3) <= 256 && query.sym_size(3) == value.sym_size(3);
  auto wanted = static_cast<SDPBackend>(attention.load());
  if (wanted == SDPBackend::flash_attention && flash && context.userEnabledFlashSDP()) {
    return static_cast<int64_t>(SDPBackend::flash_attention);
  }
  if (wanted != SDPBackend::math && dense && same_heads && context.userEnabledMemEfficientSDP()) {
    return static_cast<int64_t>(SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(SDPBackend::math);
}

const bool kChosenHere = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
  return true;
}();

}  // namespace

namespace at {

struct FakeCUDAHooks final : CUDAHooksInterface {
  explicit FakeCUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(devices.load()); }
  int getNumGPUs() const override { return devices.load(); }
  DeviceIndex current_device() const override { return current_device_index(); }
  DeviceIndex getCurrentDevice() const override { return current_device_index(); }
  void setCurrentDevice(DeviceIndex device) const override { current_device_index() = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device_index(), device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device_index() : exchangeDevice(device);
  }
  void deviceSynchronize(DeviceIndex) const override {}
  // Random numbers and pinned memory are the host's, because nothing reads the values.
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(kCPU); }

 private:
  static int8_t& current_device_index() { return present_device; }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeCUDAHooks)

}  // namespace at

// Sets how many devices there are, and SDPA's preferred kernel (0 math, 1 flash, 2
// memory-efficient).
extern "C" __attribute__((visibility("default"))) void glake_fake_cuda(int count, int kernel) {
  devices.store(count < 1 ? 1 : count > kMostDevices ? kMostDevices : count);
  attention.store(kernel);
}
