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

/* Memory that the work reads or writes, and the place on the host where its bytes are staged. In
 * phantom memory `*known` is the number of bytes that are known. For `in` it is set when they are
 * read to `host`. For `out` it is looked at when they are written: if not all of them are known,
 * none of the written bytes is. If `known` is NULL, phantom memory neither reads nor writes `host`.
 * */
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

/* The stream does this in order. It reads the pieces of `in`, and calls `reached`, which must not
 * block. It waits until `go` is not 0. After `latency_ns` the flows take their time on the
 * platform's links. Then it writes the pieces of `out`. */
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
  /* Called on any thread, once this work is over. It must not call simcuda. It is never called for
   * captured work, because a graph may run that again. */
  void (*release)(void* data);
};

enum { SIMCUDA_ENQUEUED = 0, SIMCUDA_CAPTURED = 1, SIMCUDA_COUNTED = 2 };

/* Work that is enqueued with the same order runs in the order of the calls, on any streams. */
struct simcuda_order;
SIMCUDA_API struct simcuda_order* simcuda_order_new(void);
SIMCUDA_API void simcuda_order_free(struct simcuda_order* order);

/* *how becomes SIMCUDA_ENQUEUED; SIMCUDA_CAPTURED if the work is part of a graph now; or
 * SIMCUDA_COUNTED if work is only counted (option complete_after): then `reached` is not called,
 * but `release` is. The books count one cuLaunchKernel, as NCCL would make one. */
SIMCUDA_API int simcuda_collective(struct CUstream_st* stream,
                                   const struct simcuda_collective_work* work,
                                   struct simcuda_order* order, int* how);

/* Sets the word that work waits for, and wakes the threads that wait in the driver. */
SIMCUDA_API void simcuda_collective_go(uint64_t* go);

/* Moves stream work on a little, as if somebody had asked for its end, because another process
 * waits. */
SIMCUDA_API void simcuda_collective_ask(void);

/* 1: memory has no bytes behind it, except the known ones. */
SIMCUDA_API int simcuda_collective_phantom(void);
/* The most bytes of one piece that are known. */
SIMCUDA_API size_t simcuda_collective_most_known(void);

/* A name of the machine that processes share; "" if it is this process's alone. */
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
