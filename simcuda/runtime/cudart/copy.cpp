// Copies and memsets.
#include "cudart.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

namespace {

// Each kind of copy has a driver call, which also decides when the host waits ("API synchronization
// behavior"). For host to host, the driver only has the call that infers the kind.
Error copy_now(void* to, const void* from, size_t bytes, int kind) {
  switch (kind) {
    case kHostToDevice:
      return told(driver().cuMemcpyHtoD(address(to), from, bytes));
    case kDeviceToHost:
      return told(driver().cuMemcpyDtoH(to, address(from), bytes));
    case kDeviceToDevice:
      return told(driver().cuMemcpyDtoD(address(to), address(from), bytes));
    case kHostToHost:
    case kDefault:
      return told(driver().cuMemcpy(address(to), address(from), bytes));
    default:
      return told(kInvalidMemcpyDirection);
  }
}

Error copy_later(void* to, const void* from, size_t bytes, int kind, CUstream stream) {
  switch (kind) {
    case kHostToDevice:
      return told(driver().cuMemcpyHtoDAsync(address(to), from, bytes, stream));
    case kDeviceToHost:
      return told(driver().cuMemcpyDtoHAsync(to, address(from), bytes, stream));
    case kDeviceToDevice:
      return told(driver().cuMemcpyDtoDAsync(address(to), address(from), bytes, stream));
    case kHostToHost:
    case kDefault:
      return told(driver().cuMemcpyAsync(address(to), address(from), bytes, stream));
    default:
      return told(kInvalidMemcpyDirection);
  }
}

bool is_kind(int kind) { return kind >= kHostToHost && kind <= kDefault; }

CUDA_MEMCPY2D rows_of(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                      size_t height, int kind) {
  const auto type = [&](bool host) {
    return kind == kDefault ? CU_MEMORYTYPE_UNIFIED
           : host           ? CU_MEMORYTYPE_HOST
                            : CU_MEMORYTYPE_DEVICE;
  };
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = type(kind == kHostToHost || kind == kHostToDevice);
  copy.dstMemoryType = type(kind == kHostToHost || kind == kDeviceToHost);
  copy.srcHost = from;
  copy.srcDevice = address(from);
  copy.srcPitch = from_pitch;
  copy.dstHost = to;
  copy.dstDevice = address(to);
  copy.dstPitch = to_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

Error check_rows(size_t to_pitch, size_t from_pitch, size_t width, int kind) {
  constexpr Error kInvalidPitch = 12;
  if (!is_kind(kind)) return kInvalidMemcpyDirection;
  return width > to_pitch || width > from_pitch ? kInvalidPitch : kSuccess;
}

Error peers(int to, int from, CUcontext* there, CUcontext* here) {
  const CUresult result = primary_context(to, there);
  return result != CUDA_SUCCESS ? result : primary_context(from, here);
}

}  // namespace

CUDART(cudaMemcpy)(void* to, const void* from, size_t bytes, int kind) {
  CUDART_READY();
  if (bytes == 0) return is_kind(kind) ? kSuccess : told(kInvalidMemcpyDirection);
  return copy_now(to, from, bytes, kind);
}

CUDART(cudaMemcpyAsync)(void* to, const void* from, size_t bytes, int kind, CUstream stream) {
  CUDART_READY();
  if (bytes == 0) return is_kind(kind) ? kSuccess : told(kInvalidMemcpyDirection);
  return copy_later(to, from, bytes, kind, stream);
}

CUDART(cudaMemcpyPeer)(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  CUDART_READY();
  CUcontext there = nullptr, here = nullptr;
  const Error known = peers(to_device, from_device, &there, &here);
  if (known != kSuccess || bytes == 0) return told(known);
  return told(driver().cuMemcpyPeer(address(to), there, address(from), here, bytes));
}

CUDART(cudaMemcpyPeerAsync)
(void* to, int to_device, const void* from, int from_device, size_t bytes, CUstream stream) {
  CUDART_READY();
  CUcontext there = nullptr, here = nullptr;
  const Error known = peers(to_device, from_device, &there, &here);
  if (known != kSuccess || bytes == 0) return told(known);
  return told(driver().cuMemcpyPeerAsync(address(to), there, address(from), here, bytes, stream));
}

CUDART(cudaMemcpy2D)
(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
 int kind) {
  CUDART_READY();
  const Error bad = check_rows(to_pitch, from_pitch, width, kind);
  if (bad != kSuccess || width * height == 0) return told(bad);
  const CUDA_MEMCPY2D copy = rows_of(to, to_pitch, from, from_pitch, width, height, kind);
  return told(driver().cuMemcpy2D(&copy));
}

CUDART(cudaMemcpy2DAsync)
(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
 int kind, CUstream stream) {
  CUDART_READY();
  const Error bad = check_rows(to_pitch, from_pitch, width, kind);
  if (bad != kSuccess || width * height == 0) return told(bad);
  const CUDA_MEMCPY2D copy = rows_of(to, to_pitch, from, from_pitch, width, height, kind);
  return told(driver().cuMemcpy2DAsync(&copy, stream));
}

CUDART(cudaMemset)(void* to, int value, size_t bytes) {
  CUDART_READY();
  if (bytes == 0) return kSuccess;
  return told(driver().cuMemsetD8(address(to), static_cast<unsigned char>(value), bytes));
}

CUDART(cudaMemsetAsync)(void* to, int value, size_t bytes, CUstream stream) {
  CUDART_READY();
  if (bytes == 0) return kSuccess;
  return told(
      driver().cuMemsetD8Async(address(to), static_cast<unsigned char>(value), bytes, stream));
}
