// The stand-in for the CUDA runtime: errors and devices of each thread, primary contexts, modules
// and launches of compiled code, and capture. Where CUDA's manual says so, a check quotes it.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "sim_harness.h"
#include "simcuda/driver/runtime.h"
#include "simcuda/runtime/cudart/types.h"

using namespace cudart;  // NOLINT: types of the interface under test

extern "C" {
CUresult cuCtxCreate_v2(CUcontext*, unsigned, CUdevice);
Error cudaGetLastError();
Error cudaPeekAtLastError();
const char* cudaGetErrorName(Error);
Error cudaGetDevice(int*);
Error cudaSetDevice(int);
Error cudaGetDeviceCount(int*);
Error cudaMalloc(void**, size_t);
Error cudaFree(void*);
Error cudaMemcpy(void*, const void*, size_t, int);
Error cudaMemcpyAsync(void*, const void*, size_t, int, CUstream);
Error cudaMemset(void*, int, size_t);
Error cudaPointerGetAttributes(PointerAttributes*, const void*);
Error cudaDeviceSynchronize();
Error cudaStreamCreateWithFlags(CUstream*, unsigned);
Error cudaStreamSynchronize(CUstream);
Error cudaStreamQuery(CUstream);
Error cudaStreamBeginCapture(CUstream, int);
Error cudaStreamEndCapture(CUstream, CUgraph*);
Error cudaStreamIsCapturing(CUstream, int*);
Error cudaGraphDestroy(CUgraph);
Error cudaMallocAsync(void**, size_t, CUstream);
Error cudaMallocManaged(void**, size_t, unsigned);
Error cudaIpcGetMemHandle(IpcHandle*, void*);
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(Dim3, Dim3, size_t, CUstream);
Error __cudaPopCallConfiguration(Dim3*, Dim3*, size_t*, void*);
Error cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, CUstream);
Error cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, size_t, CUstream);
Error cudaFuncSetAttribute(const void*, int, int);
Error cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int);
Error cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, int);
Error cudaDeviceGetLimit(size_t*, int);
Error cudaDeviceSetLimit(int, size_t);
Error cudaMallocArray(void**, const ChannelFormat*, size_t, size_t, unsigned);
ChannelFormat cudaCreateChannelDesc(int, int, int, int, int);
Error cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long, int*);
}

namespace {

// The simulator has not been started. The runtime starts it.
struct Fresh {
  explicit Fresh(Settings settings = {}) {
    simcuda_reset();
    OK(simcuda_configure("memory", "64MiB"));
    OK(simcuda_configure("devices", "2"));
    for (const auto& [key, value] : settings) OK(simcuda_configure(key, value));
    OK(cudaSetDevice(0));  // this thread may have chosen another in the check before
    cudaGetLastError();
  }
  ~Fresh() { simcuda_reset(); }
};

template <class Body>
void in_thread(Body&& body) {
  std::string why;
  std::thread([&] {
    try {
      body();
    } catch (const Failed& failed) {
      why = failed.why;
    }
  }).join();
  if (!why.empty()) throw Failed{why};
}

// "Returns the last error ... in the host thread and resets it": cudaGetLastError.
void check_errors() {
  Fresh fresh;
  GIVES(kInvalidDevice, cudaSetDevice(9));
  in_thread([] { OK(cudaPeekAtLastError()); });
  GIVES(kInvalidDevice, cudaPeekAtLastError());
  int count = 0;
  OK(cudaGetDeviceCount(&count));  // a success resets nothing
  GIVES(kInvalidDevice, cudaGetLastError());
  OK(cudaGetLastError());
  TRUE(std::strcmp(cudaGetErrorName(2), "cudaErrorMemoryAllocation") == 0);
  TRUE(std::strcmp(cudaGetErrorName(12345), "unrecognized error code") == 0);
}

// "Any further CUDA work will return the same error": cudaErrorIllegalAddress.
void check_lasting_error() {
  Fresh fresh;
  void* host = nullptr;
  void* device = nullptr;
  OK(cudaMalloc(&device, 4096));
  OK(cuMemHostAlloc(&host, 4096, 0));
  CUdeviceptr reserved = 0;
  OK(cuMemAddressReserve(&reserved, kGranule, 0, 0, 0));
  OK(cudaMemcpyAsync(reinterpret_cast<void*>(reserved), host, 64, kHostToDevice, nullptr));
  GIVES(kIllegalAddress, cudaDeviceSynchronize());
  GIVES(kIllegalAddress, cudaGetLastError());
  GIVES(kIllegalAddress, cudaGetLastError());
  GIVES(kIllegalAddress, cudaMemset(device, 0, 16));
}

// What cudaGetDevice() says follows each change of the thread's current context, also one that
// another thread makes: a thread remembers its device.
void check_remembered_device() {
  Fresh fresh;
  const auto device = [] {
    int now = -1;
    OK(cudaGetDevice(&now));
    return now;
  };
  TRUE(device() == 0);
  CUcontext made = nullptr, popped = nullptr;
  OK(cuCtxCreate_v2(&made, 0, 1));
  TRUE(device() == 1);
  OK(cuCtxPopCurrent(&popped));
  TRUE(device() == 0);
  OK(cuCtxPushCurrent(made));
  TRUE(device() == 1);
  in_thread([&] {
    TRUE(device() == 0);
    OK(cuCtxSetCurrent(made));
    TRUE(device() == 1);
    OK(cuCtxDestroy(made));
    TRUE(device() == 0);
  });
  TRUE(device() == 0);  // its current context is no more
  CUcontext primary = nullptr;
  OK(cuDevicePrimaryCtxRetain(&primary, 1));
  OK(cuCtxSetCurrent(primary));
  TRUE(device() == 1);
  in_thread([] { OK(cuDevicePrimaryCtxRelease(1)); });
  TRUE(device() == 0);
  OK(cuDevicePrimaryCtxRetain(&primary, 1));
  TRUE(device() == 1);
  in_thread([] { OK(cuDevicePrimaryCtxRelease(1)); });
}

// Each thread has its own device. The driver refuses calls of a thread without a context. The
// runtime gives such a thread the primary context of its device. The second cudaGetDevice() makes
// no driver call.
void check_devices() {
  Fresh fresh;
  OK(cudaSetDevice(1));
  void* there = nullptr;
  OK(cudaMalloc(&there, 4096));
  in_thread([] {
    int device = -1;
    CUdeviceptr address = 0;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&address, 4096));
    OK(cudaGetDevice(&device));  // binds no context to the thread
    TRUE(device == 0);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&address, 4096));
    // Virtual memory needs a context of the process, not of the thread.
    OK(cuMemAddressReserve(&address, kGranule, 0, 0, 0));
    OK(cuMemAddressFree(address, kGranule));
  });
  in_thread([] {
    CUdeviceptr address = 0;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&address, 4096));
    void* here = nullptr;
    OK(cudaMalloc(&here, 4096));
    OK(cuMemAlloc(&address, 4096));
  });
  const int64_t calls = simcuda_calls("*");
  int device = -1;
  OK(cudaGetDevice(&device));
  OK(cudaSetDevice(1));
  TRUE(device == 1 && simcuda_calls("*") == calls);
  PointerAttributes told;
  OK(cudaPointerGetAttributes(&told, there));
  TRUE(told.type == kDevice && told.device == 1);
  OK(cudaPointerGetAttributes(&told, &device));
  TRUE(told.type == kUnregistered && told.host_pointer == &device);
  // "The runtime will pick up this context": Interactions with the CUDA Driver API.
  CUcontext primary = nullptr;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  OK(cudaGetDevice(&device));
  TRUE(device == 0);
}

char kernel_stub, variable_stub;

// Registers a kernel and a variable, as code that nvcc compiled does when it is loaded.
struct Module {
  Module() : handle(__cudaRegisterFatBinary(nullptr)) {
    __cudaRegisterFunction(handle, &kernel_stub, nullptr, "a_kernel", -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    __cudaRegisterVar(handle, &variable_stub, nullptr, "a_variable", 0, 8, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
  }
  ~Module() { __cudaUnregisterFatBinary(handle); }
  void** handle;
};

std::string launches() {
  std::string text(4096, '\0');
  text.resize(simcuda_launches(text.data(), text.size(), 0));
  return text;
}

void check_launches() {
  Fresh fresh;
  simcuda_launches(nullptr, 0, 1);
  GIVES(kInvalidDeviceFunction, cudaLaunchKernel(&kernel_stub, {}, {}, nullptr, 0, nullptr));
  {
    Module module;
    CUstream stream = nullptr, found = nullptr;
    OK(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
    __cudaPushCallConfiguration({3, 2, 1}, {64, 1, 1}, 128, stream);
    Dim3 grid, block;
    size_t shared = 0;
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &found));
    TRUE(grid.x == 3 && grid.y == 2 && block.x == 64 && shared == 128 && found == stream);
    GIVES(kMissingConfiguration, __cudaPopCallConfiguration(&grid, &block, &shared, &found));
    OK(cudaLaunchKernel(&kernel_stub, grid, block, nullptr, shared, stream));
    GIVES(CUDA_ERROR_NOT_READY, cudaStreamQuery(stream));  // it is work of the stream
    OK(cudaStreamSynchronize(stream));
    TRUE(launches() == "{\"a_kernel\": 1}");
    GIVES(kInvalidConfiguration, cudaLaunchKernel(&kernel_stub, {}, {2048}, nullptr, 0, stream));
    GIVES(kInvalidConfiguration, cudaLaunchKernel(&kernel_stub, {0}, {}, nullptr, 0, stream));
    GIVES(kInvalidValue, cudaLaunchKernel(&kernel_stub, {}, {}, nullptr, 100 << 10, stream));
    for (const Dim3 block : {Dim3{0}, Dim3{2048}}) {
      GIVES(kInvalidConfiguration,
            cudaLaunchCooperativeKernel(&kernel_stub, {}, block, nullptr, 0, stream));
    }
    OK(cudaLaunchCooperativeKernel(&kernel_stub, {}, {}, nullptr, 0, stream));
    OK(cudaFuncSetAttribute(&kernel_stub, kMaxDynamicShared, 100 << 10));
    OK(cudaLaunchKernel(&kernel_stub, {}, {}, nullptr, 100 << 10, stream));
    OK(cudaSetDevice(1));  // "a kernel launch will fail if it is issued to a stream that is not
                           // associated to the current device": Stream and Event Behavior
    GIVES(kInvalidHandle, cudaLaunchKernel(&kernel_stub, {}, {}, nullptr, 0, stream));
  }
  GIVES(kInvalidDeviceFunction, cudaLaunchKernel(&kernel_stub, {}, {}, nullptr, 0, nullptr));
}

void check_variables() {
  Fresh fresh;
  Module module;
  uint64_t value = 42, back = 0;
  OK(cudaMemcpyToSymbol(&variable_stub, &value, 8, 0, kHostToDevice));
  OK(cudaMemcpyFromSymbol(&back, &variable_stub, 8, 0, kDeviceToHost));
  TRUE(back == 42);
  GIVES(kInvalidValue, cudaMemcpyToSymbol(&variable_stub, &value, 8, 4, kHostToDevice));
  GIVES(kInvalidSymbol, cudaMemcpyToSymbol(&back, &value, 8, 0, kHostToDevice));
  GIVES(kInvalidMemcpyDirection, cudaMemcpy(&back, &value, 8, 7));
}

void check_capture() {
  Fresh fresh;
  Module module;
  CUstream stream = nullptr;
  OK(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  simcuda_launches(nullptr, 0, 1);
  OK(cudaStreamBeginCapture(stream, 0));
  int status = -1;
  OK(cudaStreamIsCapturing(stream, &status));
  TRUE(status == kCaptureActive);
  OK(cudaLaunchKernel(&kernel_stub, {}, {}, nullptr, 0, stream));
  TRUE(launches() == "{}");  // it becomes part of the graph, and is not run
  CUgraph graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphDestroy(graph));
  OK(cudaStreamBeginCapture(stream, 0));
  void* pointer = nullptr;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cudaMalloc(&pointer, 4096));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cudaStreamEndCapture(stream, &graph));
}

void check_managed() {
  Fresh fresh;
  void* pointer = nullptr;
  GIVES(kInvalidValue, cudaMallocManaged(&pointer, 4096, 0));
  GIVES(kInvalidValue, cudaMallocManaged(&pointer, 0, 1));
  OK(cudaMallocManaged(&pointer, 4096, 1));
  PointerAttributes known;
  OK(cudaPointerGetAttributes(&known, pointer));
  TRUE(known.type == 3 && known.device == 0 && known.device_pointer == pointer);
  TRUE(known.host_pointer == pointer);
  OK(cudaMemset(pointer, 7, 4096));
  OK(cudaDeviceSynchronize());
  TRUE(static_cast<char*>(pointer)[4095] == 7);  // the host reads it where it is
  static_cast<char*>(pointer)[0] = 9;
  char copy = 0;
  OK(cudaMemcpy(&copy, pointer, 1, 2));
  TRUE(copy == 9);
  IpcHandle handle;
  GIVES(kInvalidValue, cudaIpcGetMemHandle(&handle, pointer));
  OK(cudaFree(pointer));
  GIVES(kInvalidValue, cudaFree(pointer));
}

// Several threads make the first call of the runtime at the same time. It starts once, and all
// threads get the same context.
void check_first_use_by_threads() {
  constexpr int kThreads = 12;
  for (int round = 0; round < 400; ++round) {
    simcuda_reset();
    OK(simcuda_configure("memory", "64MiB"));
    std::atomic<int> ready{0};
    std::atomic<bool> made{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (++ready; ready.load() < kThreads;) std::this_thread::yield();
        if (i % 3 != 0) {
          OK(cudaFree(nullptr));  // the usual way to begin
          made = true;
          return;
        }
        while (!made.load()) std::this_thread::yield();
        int device = -1;
        CUdeviceptr address = 0;
        OK(cudaGetDevice(&device));
        OK(cuMemAddressReserve(&address, kGranule, 0, 0, 0));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// A call that the driver lacks returns "not supported", never a success that does nothing.
void check_unsupported() {
  Fresh fresh;
  void* pointer = nullptr;
  int status = -1;
  OK(cudaGetDriverEntryPointByVersion("cuMemCreate", &pointer, 12000, 0, &status));
  TRUE(status == 0 && pointer != nullptr);
  OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &pointer, 12000, 0, &status));
  TRUE(status == 1 && pointer == nullptr);
  const ChannelFormat format = cudaCreateChannelDesc(32, 16, 8, 4, 2);
  TRUE(format.x == 32 && format.y == 16 && format.z == 8 && format.w == 4 && format.kind == 2);
  GIVES(kNotSupported, cudaMallocArray(&pointer, &format, 8, 8, 0));
  GIVES(kNotSupported, cudaGetLastError());
}

// A limit is of the current device. Those of other devices stay.
void check_limits() {
  Fresh fresh;
  constexpr int kStack = 0, kUnknown = 99;
  constexpr Error kUnsupportedLimit = 215;
  size_t first = 0, now = 0;
  OK(cudaDeviceGetLimit(&first, kStack));
  OK(cudaDeviceSetLimit(kStack, 4 * first));
  OK(cudaDeviceGetLimit(&now, kStack));
  TRUE(now == 4 * first);
  OK(cudaSetDevice(1));
  OK(cudaDeviceGetLimit(&now, kStack));
  TRUE(now == first);
  GIVES(kUnsupportedLimit, cudaDeviceGetLimit(&now, kUnknown));
  GIVES(kUnsupportedLimit, cudaGetLastError());
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"errors", check_errors},
                        {"lasting error", check_lasting_error},
                        {"devices", check_devices},
                        {"remembered device", check_remembered_device},
                        {"launches", check_launches},
                        {"variables", check_variables},
                        {"capture", check_capture},
                        {"managed memory", check_managed},
                        {"first use by threads", check_first_use_by_threads},
                        {"unsupported", check_unsupported},
                        {"limits", check_limits},
                    });
}
