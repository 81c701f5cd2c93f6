/* What the stand-in for NCCL (runtime/nccl) needs of simcuda beyond the driver API: stream work
 * that reads and writes device memory, waits for other ranks, and takes a collective's time.
 * Private to the two: nobody else may rely on it. */
#ifndef GLAKE_SIMCUDA_COLLECTIVE_H
#define GLAKE_SIMCUDA_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "simcuda/simcuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Memory the work reads or writes, and where its bytes are staged on the host. In phantom memory
 * `*known` says whether bytes are staged: of `in` it is set when they are read, of `out` it is
 * asked when they are written; without it `host` is never touched. */
struct simcuda_piece {
  uint64_t address;
  void* host;
  size_t bytes;
  size_t* known;
};

/* Bytes that cross the links between two devices; from == to: that device's own memory. */
struct simcuda_flow {
  int from, to;
  uint64_t bytes;
};

/* On the stream, one after another: the pieces of `in` are read; `reached` is called, which must
 * not block; the work waits until `go` is other than 0; the flows take their time on the platform's
 * links after `latency_ns`, and the pieces of `out` are written. */
struct simcuda_collective_work {
  const struct simcuda_piece* in;
  size_t ins;
  const struct simcuda_piece* out;
  size_t outs;
  const struct simcuda_flow* flows;
  size_t flow_count;
  uint64_t latency_ns;
  void (*reached)(void* data);
  void* data;
  uint64_t* go;
  /* Called once nothing of this work is left, in whatever thread: it may call nothing of simcuda.
   * Never called for captured work, whose graph may run it again. */
  void (*release)(void* data);
};

enum { SIMCUDA_ENQUEUED = 0, SIMCUDA_CAPTURED = 1, SIMCUDA_COUNTED = 2 };

/* Work enqueued with one order runs in the order of the calls, on whatever streams. */
struct simcuda_order;
SIMCUDA_API struct simcuda_order* simcuda_order_new(void);
SIMCUDA_API void simcuda_order_free(struct simcuda_order* order);

/* *how: SIMCUDA_ENQUEUED; SIMCUDA_CAPTURED: part of a graph now; SIMCUDA_COUNTED: work is only
 * counted (option complete_after) and `reached` is not called, while `release` is. Counted in the
 * books as one cuLaunchKernel, which NCCL's is too. */
SIMCUDA_API int simcuda_collective(struct CUstream_st* stream,
                                   const struct simcuda_collective_work* work,
                                   struct simcuda_order* order, int* how);

/* Sets the word that work waits for, and tells whoever waits in the driver. */
SIMCUDA_API void simcuda_collective_go(uint64_t* go);

/* Stream work moves on a little, as if somebody had asked for its end: another process waits. */
SIMCUDA_API void simcuda_collective_ask(void);

/* 1: memory has no bytes behind it, but those that are known. */
SIMCUDA_API int simcuda_collective_phantom(void);
/* The most bytes of one piece that are known. */
SIMCUDA_API size_t simcuda_collective_most_known(void);

/* A name of the machine that processes share; "" for one of this process alone. */
SIMCUDA_API const char* simcuda_collective_machine(void);
/* The platform's number of a device of this process; GPUs of the platform, and whether NVLink joins
 * two of them. */
SIMCUDA_API int simcuda_collective_gpu(int device);
SIMCUDA_API int simcuda_collective_gpus(void);
SIMCUDA_API int simcuda_collective_linked(int a, int b);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_SIMCUDA_COLLECTIVE_H */
