/* Kernels that code outside simcuda computes, on the bytes of simulated device memory, or on the
 * known bytes of phantom memory (docs/dry-run.md). This header is private to the numbers adapter of
 * PyTorch (csrc/torch/numbers.cpp): nothing else may rely on it. */
#ifndef GLAKE_SIMCUDA_COMPUTE_H
#define GLAKE_SIMCUDA_COMPUTE_H

#include <stddef.h>
#include <stdint.h>

#include "simcuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* on != 0: from now on a kernel launched outside simcuda_cover (below) is refused by name with
 * CUDA_ERROR_NOT_SUPPORTED, because nothing computes it. CUDA_ERROR_INVALID_VALUE in phantom
 * memory, which has no bytes to compute with. */
SIMCUDA_API int simcuda_numbers(int on);

/* Memory that a computed kernel reads, or writes (write != 0). */
struct simcuda_touched {
  uint64_t address;
  size_t bytes;
  int write;
};

enum { SIMCUDA_KEEPS = 2 }; /* written if it is computed, else it stays as it is */

/* The same for phantom memory, of which simcuda follows which bytes are known. */
struct simcuda_followed {
  uint64_t address;
  size_t bytes;
  int read, write; /* read: not 0; write: 0, 1 or SIMCUDA_KEEPS */
};

/* Which of the bytes that an op writes are known afterwards. */
enum {
  SIMCUDA_MAKES_NOTHING = 0, /* none */
  SIMCUDA_MAKES_OF_ALL = 1,  /* all, if all bytes that it reads are known */
  SIMCUDA_MAKES_OF_ANY = 2   /* some, if some bytes that it reads are known */
};

struct simcuda_computed {
  /* Runs on a thread that waits or asks in the driver, outside the driver's mutex. It may call no
   * CUDA function. Returns 0, or the CUresult that waiting calls return. It runs again at each
   * launch of a graph that has captured it. */
  int (*compute)(void* data);
  void (*release)(void* data); /* under the driver's mutex: it may call no CUDA function */
  void* data;
  const struct simcuda_touched* pieces; /* must be mapped when it runs: else ILLEGAL_ADDRESS */
  size_t count;
  int makes; /* SIMCUDA_MAKES_...: in phantom memory, where there are no pieces */
  const struct simcuda_followed* followed;
  size_t followed_count;
};

/* Enqueues work on the stream, or on the graph it is being captured into, ordered as a kernel is.
 * The work stands for launches that are counted already, so it is not counted itself. The call owns
 * `data` from then on, whatever it returns. */
SIMCUDA_API int simcuda_compute(struct CUstream_st* stream, const struct simcuda_computed* work);

/* Between these two calls, this thread's launches, copies and memsets belong to a call that is
 * computed as a whole. They are ordered, counted and timed as usual, but write nothing, and copy
 * zeros to the host. Known bytes of phantom memory stay known: the computed call itself says what
 * it writes. Pairs nest. simcuda_uncover returns how many functions were called that no stand-in
 * has. */
SIMCUDA_API void simcuda_cover(void);
SIMCUDA_API int simcuda_uncover(void);

/* The known bytes of phantom memory (known.h), for work of simcuda_compute, at its place in the
 * stream. read: returns how many of the bytes are known; the others at `to` stay as they are.
 * write: `from` is NULL where the new bytes are not known. */
SIMCUDA_API size_t simcuda_known_read(uint64_t address, void* to, size_t bytes);
SIMCUDA_API void simcuda_known_write(int device, uint64_t address, const void* from, size_t bytes);
/* Which of the memory in `followed` may be known once all work enqueued so far is done, as a set of
 * the bits below. All bits for a stream that is being captured, because nobody knows when its graph
 * will be launched. */
enum {
  SIMCUDA_ALL_READ = 1,   /* all that is read, or nothing is read */
  SIMCUDA_ANY_READ = 2,   /* a part of what is read */
  SIMCUDA_ANY_WRITTEN = 4 /* a part of what is written */
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
