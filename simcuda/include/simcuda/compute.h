/* Kernels that somebody outside of simcuda computes, on the bytes that simulated device memory has,
 * or on those that are known of phantom memory (docs/dry-run.md). Private to the numbers adapter of
 * PyTorch (csrc/torch/numbers.cpp): nobody else may rely on it. */
#ifndef GLAKE_SIMCUDA_COMPUTE_H
#define GLAKE_SIMCUDA_COMPUTE_H

#include <stddef.h>
#include <stdint.h>

#include "simcuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* on != 0: from now on a kernel launched outside of cover (below) is refused by name with
 * CUDA_ERROR_NOT_SUPPORTED, since nobody computes it. CUDA_ERROR_INVALID_VALUE in phantom memory,
 * which has no bytes to compute with. */
SIMCUDA_API int simcuda_numbers(int on);

struct simcuda_touched {
  uint64_t address;
  size_t bytes;
  int write;
};

enum { SIMCUDA_KEEPS = 2 }; /* written if it is computed, else it stays as it is */

struct simcuda_followed {
  uint64_t address;
  size_t bytes;
  int read, write; /* read: not 0; write: 0, 1 or SIMCUDA_KEEPS */
};

/* What an op that follows known bytes makes known of what it writes. */
enum {
  SIMCUDA_MAKES_NOTHING = 0, /* all of it is forgotten */
  SIMCUDA_MAKES_OF_ALL = 1,  /* it is computed if all that is read is known */
  SIMCUDA_MAKES_OF_ANY = 2   /* if any is */
};

struct simcuda_computed {
  /* On a thread that waits or asks in the driver, outside of its mutex; it may call nothing of
   * CUDA. 0, or the CUresult that waiting calls return. Again at each launch of a graph that took
   * it in. */
  int (*compute)(void* data);
  void (*release)(void* data); /* under the driver's mutex: it may call nothing of CUDA */
  void* data;
  const struct simcuda_touched* pieces; /* must be mapped when it runs: else ILLEGAL_ADDRESS */
  size_t count;
  int makes; /* SIMCUDA_MAKES_...: in phantom memory, where there are no pieces */
  const struct simcuda_followed* followed;
  size_t followed_count;
};

/* Ordered work on the stream, or on the graph it is being captured into, as a kernel is; it stands
 * for launches that are counted already. It takes `data` over, whatever it returns. */
SIMCUDA_API int simcuda_compute(struct CUstream_st* stream, const struct simcuda_computed* work);

/* Between the two, this thread's launches, copies and memsets are those of a call that is computed
 * as a whole: they are ordered, counted and timed as ever, and write nothing; what is copied to the
 * host is zero. What is known of phantom memory stays so: the call itself is to say what it writes.
 * Pairs nest. uncover: how many functions were asked for that no stand-in has. */
SIMCUDA_API void simcuda_cover(void);
SIMCUDA_API int simcuda_uncover(void);

/* What is known of phantom memory (known.h), for work of simcuda_compute: at its place in the
 * stream. read: how many bytes are; the others at `to` stay as they are. write: `from` NULL where
 * the bytes that are now there are not known. */
SIMCUDA_API size_t simcuda_known_read(uint64_t address, void* to, size_t bytes);
SIMCUDA_API void simcuda_known_write(int device, uint64_t address, const void* from, size_t bytes);
/* Where something may be known once all work enqueued so far is done; all of it for a stream that
 * is being captured, as nobody knows when its graph will be launched. `followed` as of the work
 * asked for. */
enum {
  SIMCUDA_ALL_READ = 1,   /* of all that is read; nothing is read */
  SIMCUDA_ANY_READ = 2,   /* of a part */
  SIMCUDA_ANY_WRITTEN = 4 /* of a part of what is written */
};
SIMCUDA_API int simcuda_known_ahead(struct CUstream_st* stream,
                                    const struct simcuda_followed* followed, size_t count);
/* 1: memory is phantom. */
SIMCUDA_API int simcuda_phantom(void);

/* Whether the stream is being captured. */
SIMCUDA_API int simcuda_capturing(struct CUstream_st* stream);

#ifdef __cplusplus
}  // extern "C"

namespace simcuda {
bool computed_by_somebody(const char* kernel);
bool missed_in_cover();  // a missing function is counted, not told, while covered
}  // namespace simcuda
#endif
#endif /* GLAKE_SIMCUDA_COMPUTE_H */
