// Copies and memsets.
#include <cstring>

#include "driver.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

// The kind of memory that a call declares for one end of a copy.
enum class Place { kHost, kDevice, kUnified };

CopyEnd end(uint64_t address, Place place, size_t pitch = 0) {
  return {address, pitch, place == Place::kHost, place == Place::kUnified};
}

CUresult run(Symbol symbol, CUstream stream, const CopyRequest& request) {
  return on_stream_blocking(
      symbol, stream, [&](Driver& driver, uint64_t id, Lock* lock) -> CUresult {
        if (request.peer && (driver.contexts.live(as_context(request.to)) == nullptr ||
                             driver.contexts.live(as_context(request.from)) == nullptr)) {
          return bad_context();
        }
        return copy(&driver, id, lock, request);
      });
}

CUresult plain(Symbol symbol, CUstream stream, CopyEnd dst, CopyEnd src, size_t bytes, bool wait) {
  CopyRequest request;
  request.dst = dst;
  request.src = src;
  request.bytes = bytes;
  request.wait = wait;
  return run(symbol, stream, request);
}

uint64_t id_of(CUcontext context) { return reinterpret_cast<uint64_t>(context); }

// A copy between contexts, which may be of two devices.
CUresult between(Symbol symbol, CUstream stream, CUdeviceptr dst, CUcontext dst_context,
                 CUdeviceptr src, CUcontext src_context, size_t bytes) {
  CopyRequest request;
  request.dst = end(dst, Place::kDevice);
  request.src = end(src, Place::kDevice);
  request.bytes = bytes;
  request.peer = true;
  request.to = id_of(dst_context);
  request.from = id_of(src_context);
  return run(symbol, stream, request);
}

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult set(Symbol symbol, CUstream stream, const FillRequest& request) {
  return on_stream_blocking(symbol, stream, [&](Driver& driver, uint64_t id, Lock* lock) {
    return fill(&driver, id, lock, request);
  });
}

// One end of a 2D copy. False: it is an array, and simcuda has none.
bool end_of(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y,
            size_t pitch, CopyEnd* result) {
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) {
    return false;
  }
  const Place place = type == CU_MEMORYTYPE_HOST     ? Place::kHost
                      : type == CU_MEMORYTYPE_DEVICE ? Place::kDevice
                                                     : Place::kUnified;
  const uint64_t base = type == CU_MEMORYTYPE_HOST ? number(host) : device;
  *result = end(base + y * pitch + x, place, pitch);
  return true;
}

// Rows at equal distances. `Given`: the parameters of a 2D copy, or of a 3D copy with one layer.
template <class Given>
CUresult copy_rows(Symbol symbol, CUstream stream, const Given& given, CopyRequest request) {
  const size_t dst_pitch = given.dstPitch != 0 ? given.dstPitch : given.WidthInBytes;
  const size_t src_pitch = given.srcPitch != 0 ? given.srcPitch : given.WidthInBytes;
  request.bytes = given.WidthInBytes;
  request.rows = given.Height;
  if (!end_of(given.dstMemoryType, given.dstHost, given.dstDevice, given.dstXInBytes, given.dstY,
              dst_pitch, &request.dst) ||
      !end_of(given.srcMemoryType, given.srcHost, given.srcDevice, given.srcXInBytes, given.srcY,
              src_pitch, &request.src)) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "a copy of rows: simcuda has no arrays");
  }
  if (dst_pitch < given.dstXInBytes + given.WidthInBytes ||
      src_pitch < given.srcXInBytes + given.WidthInBytes) {
    return fail(CUDA_ERROR_INVALID_VALUE, "a copy of rows: a row is wider than its pitch");
  }
  // CU_DEVICE_ATTRIBUTE_MAX_PITCH
  if (dst_pitch > INT32_MAX || src_pitch > INT32_MAX) {
    return fail(CUDA_ERROR_INVALID_VALUE, "a copy of rows: a pitch is above 2 GiB");
  }
  return run(symbol, stream, request);
}

CUresult copy_2d(Symbol symbol, CUstream stream, const CUDA_MEMCPY2D* given, bool wait) {
  if (given == nullptr) return fail(CUDA_ERROR_INVALID_VALUE, "cuMemcpy2D: no parameters");
  CopyRequest request;
  request.wait = wait;
  return copy_rows(symbol, stream, *given, request);
}

}  // namespace

CUresult cuMemcpyHtoD(CUdeviceptr dst, const void* src, size_t bytes) {
  return plain(CALL(cuMemcpyHtoD), nullptr, end(dst, Place::kDevice),
               end(number(src), Place::kHost), bytes, true);
}

CUresult cuMemcpyDtoH(void* dst, CUdeviceptr src, size_t bytes) {
  return plain(CALL(cuMemcpyDtoH), nullptr, end(number(dst), Place::kHost),
               end(src, Place::kDevice), bytes, true);
}

// Between devices, or within one device, the synchronous call does not wait for the copy either.
CUresult cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return plain(CALL(cuMemcpyDtoD), nullptr, end(dst, Place::kDevice), end(src, Place::kDevice),
               bytes, false);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return plain(CALL(cuMemcpy), nullptr, end(dst, Place::kUnified), end(src, Place::kUnified), bytes,
               true);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                      CUcontext src_context, size_t bytes) {
  return between(CALL(cuMemcpyPeer), nullptr, dst, dst_context, src, src_context, bytes);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream) {
  return plain(CALL(cuMemcpyHtoDAsync), stream, end(dst, Place::kDevice),
               end(number(src), Place::kHost), bytes, false);
}

CUresult cuMemcpyDtoHAsync(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return plain(CALL(cuMemcpyDtoHAsync), stream, end(number(dst), Place::kHost),
               end(src, Place::kDevice), bytes, false);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return plain(CALL(cuMemcpyDtoDAsync), stream, end(dst, Place::kDevice), end(src, Place::kDevice),
               bytes, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return plain(CALL(cuMemcpyAsync), stream, end(dst, Place::kUnified), end(src, Place::kUnified),
               bytes, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                           CUcontext src_context, size_t bytes, CUstream stream) {
  return between(CALL(cuMemcpyPeerAsync), stream, dst, dst_context, src, src_context, bytes);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D* given) {
  return copy_2d(CALL(cuMemcpy2D), nullptr, given, true);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream stream) {
  return copy_2d(CALL(cuMemcpy2DAsync), stream, given, false);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* given, CUstream stream) {
  if (given == nullptr) return fail(CUDA_ERROR_INVALID_VALUE, "cuMemcpy3DPeer: no parameters");
  if (given->Depth != 1 || given->dstZ != 0 || given->srcZ != 0) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "cuMemcpy3DPeer: simcuda copies one layer");
  }
  CopyRequest request;
  request.peer = true;
  request.to = id_of(given->dstContext);
  request.from = id_of(given->srcContext);
  return copy_rows(CALL(cuMemcpy3DPeerAsync), stream, *given, request);
}

CUresult cuMemsetD8(CUdeviceptr dst, unsigned char value, size_t count) {
  return set(CALL(cuMemsetD8), nullptr, {dst, value, 1, count, true});
}
CUresult cuMemsetD16(CUdeviceptr dst, unsigned short value, size_t count) {
  return set(CALL(cuMemsetD16), nullptr, {dst, value, 2, count, true});
}
CUresult cuMemsetD32(CUdeviceptr dst, unsigned int value, size_t count) {
  return set(CALL(cuMemsetD32), nullptr, {dst, value, 4, count, true});
}
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
  return set(CALL(cuMemsetD8Async), stream, {dst, value, 1, count, false});
}
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream) {
  return set(CALL(cuMemsetD16Async), stream, {dst, value, 2, count, false});
}
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream) {
  return set(CALL(cuMemsetD32Async), stream, {dst, value, 4, count, false});
}
