// A stand-in for libcudart over simcuda's driver. It has the calls that the adapter and c10's
// headers make.
#include "runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

thread_local int current = -1;
thread_local cudaError_t last = cudaSuccess;

cudaError_t seen(CUresult result) {
  auto status = static_cast<cudaError_t>(result);  // both have the same numbers
  if (status != cudaSuccess) last = status;
  return status;
}

cudaError_t seen(cudaError_t status) {
  if (status != cudaSuccess) last = status;
  return status;
}

CUdeviceptr at(const void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

CUcontext context(int device) {
  static CUcontext contexts[64] = {};
  cuInit(0);
  if (contexts[device] == nullptr) cuDevicePrimaryCtxRetain(&contexts[device], device);
  return contexts[device];
}

}  // namespace

namespace stub {

void use_context() {
  CUcontext now = nullptr;
  if (current < 0) current = 0;
  cuInit(0);
  cuCtxGetCurrent(&now);
  if (now != context(current)) cuCtxSetCurrent(context(current));
}

}  // namespace stub

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  cuInit(0);
  return seen(cuDeviceGetCount(count));
}
cudaError_t cudaGetDevice(int* device) {
  if (current < 0) current = 0;
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return seen(cudaErrorInvalidDevice);
  current = device;
  return seen(cuCtxSetCurrent(context(device)));
}
cudaError_t cudaGetLastError() {
  cudaError_t status = last;
  last = cudaSuccess;
  return status;
}
const char* cudaGetErrorString(cudaError_t status) {
  const char* text = "unknown";
  cuGetErrorString(static_cast<CUresult>(status), &text);
  return text;
}
cudaError_t cudaDeviceSynchronize() {
  stub::use_context();
  return seen(cuCtxSynchronize());
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  stub::use_context();
  return seen(cuCtxEnablePeerAccess(context(peer), flags));
}
cudaError_t cudaMalloc(void** ptr, size_t bytes) {
  stub::use_context();
  CUdeviceptr made = 0;
  cudaError_t status = seen(cuMemAlloc(&made, bytes));
  *ptr = reinterpret_cast<void*>(made);
  return status;
}
cudaError_t cudaFree(void* ptr) {
  stub::use_context();
  return seen(cuMemFree(at(ptr)));
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  stub::use_context();
  return seen(cuMemGetInfo(free, total));
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  stub::use_context();
  return seen(cuMemcpy(at(to), at(from), bytes));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stub::use_context();
  return seen(cuMemcpyAsync(at(to), at(from), bytes, stream));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  stub::use_context();
  return seen(
      cuMemcpyPeerAsync(at(to), context(to_device), at(from), context(from_device), bytes, stream));
}
cudaError_t cudaMemsetAsync(void* ptr, int value, size_t bytes, cudaStream_t stream) {
  stub::use_context();
  return seen(cuMemsetD8Async(at(ptr), static_cast<unsigned char>(value), bytes, stream));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stub::use_context();
  return seen(cuStreamSynchronize(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  stub::use_context();
  return seen(cuStreamQuery(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  stub::use_context();
  return seen(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  stub::use_context();
  return seen(cuStreamGetPriority(stream, priority));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  stub::use_context();
  return seen(cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  stub::use_context();
  return seen(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  stub::use_context();
  return seen(cuStreamEndCapture(stream, graph));
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return seen(cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  stub::use_context();
  return seen(cuEventCreate(event, flags));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return seen(cuEventDestroy(event)); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return seen(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return seen(cuEventSynchronize(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  stub::use_context();
  return seen(cuEventRecord(event, stream));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t second) {
  return seen(cuEventElapsedTime(ms, first, second));
}

}  // extern "C"
