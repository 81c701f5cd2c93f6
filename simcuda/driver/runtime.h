/* What the stand-ins for the CUDA runtime libraries (runtime/) need of simcuda beyond the driver
 * API. Private to the two: nobody else may rely on it. */
#ifndef GLAKE_SIMCUDA_RUNTIME_H
#define GLAKE_SIMCUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "simcuda/simcuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum { SIMCUDA_NO_CONTEXT = -1, SIMCUDA_NOT_RUNNING = -2 };

/* The device of the calling thread's current context; SIMCUDA_NO_CONTEXT; SIMCUDA_NOT_RUNNING:
 * cuInit was not called, or this is a forked child. No driver call: the books do not see it. */
SIMCUDA_API int simcuda_current_device(void);

/* A kernel nobody can run: ordered work on the stream that takes a launch's time and touches no
 * byte. Counted by its name, and in the books as cuLaunchKernel; in a capturing stream it becomes
 * part of the graph, and counts when that is launched. CUDA_ERROR_INVALID_HANDLE where the stream
 * is not of the current context. */
SIMCUDA_API int simcuda_launch(const char* name, struct CUstream_st* stream);

/* Kernels launched since the start or the last clear, as a JSON object {name: times}. */
SIMCUDA_API size_t simcuda_launches(char* json, size_t capacity, int clear);

/* A stand-in was asked for a function nobody wrote: its name goes to stderr, once, and into the
 * list that simcuda_missing() gives as a JSON array of {library, function, times}. */
SIMCUDA_API void simcuda_missed(const char* library, const char* function);
SIMCUDA_API size_t simcuda_missing(char* json, size_t capacity, int clear);

/* The machine as the options say it, for those who ask without starting the driver (NVML): cuInit
 * in a process that forks later would be the end of CUDA in its children. */
struct simcuda_machine_facts {
  int devices;
  uint64_t memory_bytes; /* of each */
  char preset[128];
  char platforms[1024]; /* path of the platforms file */
};
SIMCUDA_API int simcuda_machine(struct simcuda_machine_facts* facts);
/* Bytes in use on a GPU of the machine; 0 while the driver does not run in this process. */
SIMCUDA_API uint64_t simcuda_used_bytes(int gpu);
/* Whether CUDA_VISIBLE_DEVICES counts, as it does for a CUDA driver; before cuInit. By default it
 * does not: it hides real GPUs from programs that use simcuda beside them. */
SIMCUDA_API void simcuda_obey_visible_devices(int obey);

/* Whether modules of kernels that simcuda does not run may be loaded: they are launched as by
 * simcuda_launch. By default they are refused: glake's own tests are to launch nothing unseen. */
SIMCUDA_API void simcuda_count_kernels(int on);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_SIMCUDA_RUNTIME_H */
