// cuMemcpyBatchAsync: many copies in one call, as CUDA 12.8 declares it. The form of CUDA 13.0 does
// not return the index of the failed copy.
#include "driver.h"
#include "prototypes.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

struct Batch {
  const CUdeviceptr *dsts, *srcs;
  const size_t* sizes;
  size_t count;
  const CUmemcpyAttributes* attributes;
  const size_t* firsts;  // the first copy for which each attribute holds
  size_t attribute_count;
};

bool well_formed(const Batch& batch) {
  if (batch.dsts == nullptr || batch.srcs == nullptr || batch.sizes == nullptr ||
      batch.count == 0 || batch.attributes == nullptr || batch.firsts == nullptr ||
      batch.attribute_count == 0 || batch.attribute_count > batch.count || batch.firsts[0] != 0 ||
      batch.firsts[batch.attribute_count - 1] >= batch.count) {
    return false;
  }
  for (size_t i = 0; i < batch.attribute_count; ++i) {
    const int order = static_cast<int>(batch.attributes[i].srcAccessOrder);
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
        (i > 0 && batch.firsts[i] <= batch.firsts[i - 1])) {
      return false;
    }
  }
  return true;
}

CUresult submit_batch(CUstream handle, const Batch& batch, size_t* failed) {
  if (failed != nullptr) *failed = SIZE_MAX;  // as the driver says "none in particular"
  return call(CALL(cuMemcpyBatchAsync), batch.count, [&](Driver& driver) -> CUresult {
    Lock lock(driver.mutex);
    const DriverLock::Turn turn(&driver.calls, &lock, CALL(cuMemcpyBatchAsync), {batch.count, {}});
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemcpyBatchAsync: not on the legacy stream");
    }
    const Context* current = driver.contexts.current();
    const Stream* stream = driver.streams.resolve(handle, current);
    if (stream == nullptr) return current == nullptr ? no_context() : bad_handle("stream");
    if (!well_formed(batch)) {
      return fail(CUDA_ERROR_INVALID_VALUE,
                  "cuMemcpyBatchAsync: an array is NULL, or a count or attribute is wrong");
    }
    std::vector<BatchCopy> copies(batch.count);
    size_t attribute = 0;
    for (size_t i = 0; i < batch.count; ++i) {
      if (attribute + 1 < batch.attribute_count && batch.firsts[attribute + 1] == i) ++attribute;
      copies[i] = {
          batch.dsts[i], batch.srcs[i], batch.sizes[i],
          batch.attributes[attribute].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL};
      if (batch.sizes[i] != 0 && batch.dsts[i] != 0 && batch.srcs[i] != 0) continue;
      if (failed != nullptr) *failed = i;
      return fail(CUDA_ERROR_INVALID_VALUE, "cuMemcpyBatchAsync: an empty copy");
    }
    return copy_batch(&driver, stream->id, copies);
  });
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attrs, size_t* attrs_idxs, size_t num_attrs,
                            size_t* fail_idx, CUstream stream) {
  return submit_batch(stream, {dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs}, fail_idx);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attrs, size_t* attrs_idxs, size_t num_attrs,
                               CUstream stream) {
  return submit_batch(stream, {dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs}, nullptr);
}
