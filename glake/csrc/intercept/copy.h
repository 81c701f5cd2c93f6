// A copy that a program asks the driver for, and the reason if it is left to the driver.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace glake::intercept {

struct Copy {
  CUdeviceptr dst = 0, src = 0;
  uint64_t bytes = 0;
  CUstream stream = nullptr;
  bool waits = false;  // the call returns when the copy is done

  // judge() sets the device of the context, and the device of each end. -1 is the host.
  int device = -1, dst_device = -1, src_device = -1;
  bool legacy() const { return stream == nullptr || stream == CU_STREAM_LEGACY; }
};

// Each reason has its words in the report.
#define INTERCEPT_REASONS(X)                                                    \
  X(kSmall, "smaller than GLAKE_INTERCEPT_MIN")                                 \
  X(kNotBetween, "not between host and GPU")                                    \
  X(kPageable, "pageable host memory")                                          \
  X(kCapturing, "a stream under capture")                                       \
  X(kThreadStream, "the per-thread default stream")                             \
  X(kContext, "no primary context, or a stream of another one")                 \
  X(kOtherGpu, "memory of another GPU than the stream's")                       \
  X(kManaged, "managed memory")                                                 \
  X(kPool, "memory of a stream-ordered pool")                                   \
  X(kIpc, "memory of another process")                                          \
  X(kUnknown, "memory that the driver does not tell the whole of")              \
  X(kFreeing, "a free, or another call that waits for all work, was under way") \
  X(kNoGain, "no second path pays")                                             \
  X(kRefused, "refused by glake's engine")                                      \
  X(kForked, "a forked child")                                                  \
  X(kReset, "a primary context was reset")                                      \
  X(kOff, "glake's engine is not open")

enum class Reason {
#define X(name, text) name,
  INTERCEPT_REASONS(X)
#undef X
      kCount
};
constexpr Reason kNone = Reason::kCount;  // it may be carried, or was

}  // namespace glake::intercept
