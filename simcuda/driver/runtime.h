/* What the stand-ins for the CUDA runtime libraries (runtime/) need of simcuda beyond the driver
 * API. It is private to the two, and nobody else may rely on it. */
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

/* The device of the calling thread's current context, or SIMCUDA_NO_CONTEXT, or SIMCUDA_NOT_RUNNING
 * if cuInit was not called or this is a forked child. It is no driver call, and not in the books.
 */
SIMCUDA_API int simcuda_current_device(void);

/* Launches a kernel that nobody can run. It is ordered work on the stream that takes a launch's
 * time and touches no byte. It is counted by its name, and in the books as cuLaunchKernel. In a
 * capturing stream it becomes part of the graph, and is counted when the graph is launched. Returns
 * CUDA_ERROR_INVALID_HANDLE if the stream is not of the current context. */
SIMCUDA_API int simcuda_launch(const char* name, struct CUstream_st* stream);

/* Kernels launched since the start or the last clear, as a JSON object {name: times}. */
SIMCUDA_API size_t simcuda_launches(char* json, size_t capacity, int clear);

/* A stand-in was asked for a function that nobody wrote. Prints its name to stderr once, and adds
 * it to the list that simcuda_missing() gives as a JSON array of {library, function, times}. */
SIMCUDA_API void simcuda_missed(const char* library, const char* function);
SIMCUDA_API size_t simcuda_missing(char* json, size_t capacity, int clear);

/* The machine that the options describe. NVML uses this because it must not start the driver: a
 * process may ask NVML and then fork, and after a cuInit its children could not use CUDA. */
struct simcuda_machine_facts {
  int devices;
  uint64_t memory_bytes; /* of each */
  uint32_t peers[16];    /* by GPU: a bit for each GPU with which peer access is possible */
  char machine[128];     /* option machine; "": it has no name */
  char preset[128];
  char platforms[1024]; /* path of the platforms file */
};
SIMCUDA_API int simcuda_machine(struct simcuda_machine_facts* facts);
/* Bytes in use on a GPU of the machine; 0 while the driver does not run in this process. */
SIMCUDA_API uint64_t simcuda_used_bytes(int gpu);
/* Sets whether CUDA_VISIBLE_DEVICES counts, as for a CUDA driver. Called before cuInit. By default
 * it does not count, because it hides real GPUs from programs that use simcuda beside them. */
SIMCUDA_API void simcuda_obey_visible_devices(int obey);

/* Sets whether modules with kernels that simcuda does not run may be loaded. Such kernels are
 * launched as by simcuda_launch. By default they are refused, so that glake's own tests launch
 * nothing unseen.
 */
SIMCUDA_API void simcuda_count_kernels(int on);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_SIMCUDA_RUNTIME_H */
