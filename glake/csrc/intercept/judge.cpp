#include "intercept/judge.h"

#include <mutex>
#include <set>

#include "base/tuning.h"
#include "intercept/resolve.h"

namespace glake::intercept {
namespace {

// The bases of other processes' memory.
struct Opened {
  std::mutex mutex;
  std::set<CUdeviceptr> bases;
};

Opened& opened() {
  static auto* kept = new Opened;
  return *kept;
}

// The primary context of a device; nullptr: it has none. It is asked for each time, because a
// context of another kind may get the handle of a context that has ended.
CUcontext primary_of(const DriverCalls& driver, CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  CUcontext primary = nullptr;
  if (driver.primary_state(device, &flags, &active) != CUDA_SUCCESS || active == 0) return nullptr;
  if (driver.primary_retain(&primary, device) != CUDA_SUCCESS) return nullptr;
  driver.primary_release(device);
  return primary;
}

// While it lives, the judge's calls break no capture of the calling thread.
class Relaxed {
 public:
  explicit Relaxed(const DriverCalls& driver) : driver_(driver) {
    ok_ = driver.capture_mode(&mode_) == CUDA_SUCCESS;
  }
  ~Relaxed() {
    if (ok_) driver_.capture_mode(&mode_);
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;
  bool ok() const { return ok_; }

 private:
  const DriverCalls& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool ok_ = false;
};

Reason judge_stream(const DriverCalls& driver, Copy* copy) {
  CUcontext current = nullptr, owner = nullptr;
  CUdevice device = -1;
  if (driver.ctx_get_current(&current) != CUDA_SUCCESS || current == nullptr ||
      driver.ctx_get_device(&device) != CUDA_SUCCESS || primary_of(driver, device) != current) {
    return Reason::kContext;
  }
  if (!copy->legacy()) {
    void* green = nullptr;
    if (driver.stream_context(copy->stream, &owner) != CUDA_SUCCESS || owner != current ||
        (driver.stream_green != nullptr &&
         (driver.stream_green(copy->stream, &green) != CUDA_SUCCESS || green != nullptr))) {
      return Reason::kContext;
    }
  }
  copy->device = device;
  // An error counts as a capture. For the legacy stream it means that a blocking stream is under
  // capture.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const CUresult asked = driver.is_capturing(copy->stream, &status);
  const bool none = asked == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
  return none ? kNone : Reason::kCapturing;
}

struct Facts {
  unsigned type = 0, managed = 0;
  int device = -1;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  uint64_t pool = 0;
};

bool ask(const DriverCalls& driver, CUdeviceptr at, Facts* facts) {
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* data[] = {&facts->type, &facts->managed, &facts->device,
                  &facts->base, &facts->bytes,   &facts->pool};
  return driver.pointer_attributes(6, names, data, at) == CUDA_SUCCESS;
}

bool is_ipc(CUdeviceptr base) {
  std::lock_guard<std::mutex> guard(opened().mutex);
  return opened().bases.count(base) != 0;
}

// Sets `end` to where the range ends, or to 0 if the driver does not tell it.
Reason judge_range(const DriverCalls& driver, const Copy& copy, CUdeviceptr at, CUdeviceptr* end) {
  Facts facts;
  if (!ask(driver, at, &facts) || facts.type != CU_MEMORYTYPE_DEVICE) return Reason::kUnknown;
  if (facts.managed != 0) return Reason::kManaged;
  if (facts.pool != 0) return Reason::kPool;
  if (is_ipc(facts.base)) return Reason::kIpc;
  const bool known = facts.base <= at && at - facts.base < facts.bytes;
  *end = known ? facts.base + facts.bytes : 0;
  return facts.device == copy.device ? kNone : Reason::kOtherGpu;
}

// Mapped memory may be of several GPUs, and have holes. Of more ranges than are looked at, and
// where the driver does not tell their ends, the last byte stands for the rest.
Reason judge_device(const DriverCalls& driver, const Copy& copy, CUdeviceptr begin) {
  const CUdeviceptr last = begin + copy.bytes - 1;
  CUdeviceptr at = begin, end = 0;
  for (int i = 0; i < Tuning::kRangesJudged; ++i) {
    const Reason reason = judge_range(driver, copy, at, &end);
    if (reason != kNone || end > last) return reason;
    if (end == 0) break;
    at = end;
  }
  return judge_range(driver, copy, last, &end);
}

// For host memory it checks all bytes. The engine would also take memory that is not pinned, but it
// would read it later than the driver, which has read or staged pageable memory when the call
// returns.
Reason judge_host(const DriverCalls& driver, CUdeviceptr begin, uint64_t bytes) {
  CUdeviceptr at = begin;
  for (int i = 0; i < Tuning::kRangesJudged; ++i) {
    Facts facts;
    if (!ask(driver, at, &facts)) return Reason::kUnknown;
    if (facts.managed != 0) return Reason::kManaged;
    if (facts.type != CU_MEMORYTYPE_HOST) return Reason::kPageable;
    if (facts.bytes == 0 || facts.base > at || facts.base + facts.bytes <= at) {
      return Reason::kUnknown;
    }
    at = facts.base + facts.bytes;
    if (at - begin >= bytes) return kNone;
  }
  return Reason::kUnknown;
}

Reason judge_memory(const DriverCalls& driver, Copy* copy) {
  Facts dst, src;
  if (copy->bytes > UINT64_MAX / 4 || !ask(driver, copy->dst, &dst) ||
      !ask(driver, copy->src, &src)) {
    return Reason::kUnknown;
  }
  if (dst.managed != 0 || src.managed != 0) return Reason::kManaged;
  const bool to = dst.type == CU_MEMORYTYPE_DEVICE, from = src.type == CU_MEMORYTYPE_DEVICE;
  if (to == from) return Reason::kNotBetween;
  const CUdeviceptr on_gpu = to ? copy->dst : copy->src, on_host = to ? copy->src : copy->dst;
  const Reason reason = judge_device(driver, *copy, on_gpu);
  if (reason != kNone) return reason;
  (to ? copy->dst_device : copy->src_device) = copy->device;
  return judge_host(driver, on_host, copy->bytes);
}

}  // namespace

Reason judge(Copy* copy) {
  if (copy->stream == CU_STREAM_PER_THREAD) return Reason::kThreadStream;
  const DriverCalls& driver = driver_calls();
  if (!driver.complete) return Reason::kOff;
  Relaxed relaxed(driver);
  if (!relaxed.ok()) return Reason::kContext;
  const Reason reason = judge_stream(driver, copy);
  return reason != kNone ? reason : judge_memory(driver, copy);
}

void note_ipc(CUdeviceptr base, bool open) {
  std::lock_guard<std::mutex> guard(opened().mutex);
  if (open) {
    opened().bases.insert(base);
  } else {
    opened().bases.erase(base);
  }
}

}  // namespace glake::intercept
