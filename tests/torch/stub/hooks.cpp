// Makes a CPU build of torch see CUDA as its accelerator. Python tests use it, C++ tests do not.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::cuda::current_device(); }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return c10::cuda::CUDACachingAllocator::get();
  }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

// Does what torch's own initialisation of CUDA does.
extern "C" void stub_initialise() {
  c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
}

// Allocates a block until stub_free(). Returns its address, or null for a c10::OutOfMemoryError.
extern "C" void* stub_allocate(size_t bytes) try {
  return c10::GetAllocator(c10::kCUDA)->raw_allocate(bytes);
} catch (const c10::OutOfMemoryError&) {
  return nullptr;
}
extern "C" void stub_free(void* ptr) { c10::GetAllocator(c10::kCUDA)->raw_deallocate(ptr); }
