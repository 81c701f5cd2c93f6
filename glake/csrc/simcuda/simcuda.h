/* Control interface of simcuda, the simulated CUDA driver (libsimcuda.so). The library exports the
 * cu* driver symbols, so whatever runs on it runs on a GPU unchanged; what a test or a benchmark
 * needs beyond the driver API (topology, clock, faults, books) is here.
 *
 * All functions return 0 or a CUresult, except where they say otherwise. Options must be set
 * before cuInit unless marked "any time". Environment: GLAKE_SIM_<KEY> sets the option <key>.
 */
#ifndef GLAKE_SIMCUDA_H
#define GLAKE_SIMCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMCUDA_API __attribute__((visibility("default")))

/* Options:
 *   preset      name in the platforms file (default "hgx_h100_h200")
 *   platforms   path of the platforms file (default: platforms.json beside the library)
 *   costs       of calls: a device in the cost file, or "published" (default: as the file says)
 *   cost_file   path of the cost file (default: costs.json beside the library)
 *   devices     number of devices (default: the preset's)
 *   memory      bytes of each device, with suffix KiB/MiB/GiB (default 1GiB; phantom 80GiB)
 *   phantom     1: keep the books only, no memory behind the mappings (default 0)
 *   seed        of the scheduler (default 0)
 *   schedule    "lazy" (default: stream work runs as late as is legal, seeded order) |
 *               "threaded" (a thread per stream, for race detectors)
 *   complete_after  any time. Phantom replays: work enqueued at tick t is complete at tick t + K;
 *               -1: never until waited for on the host; "auto" (default): by the schedule.
 *   reuse_handles  1: a new stream may have a destroyed one's handle, as a driver does (default 0)
 *   host_node   socket whose memory host buffers are in: a number (default 0), "local" to the
 *               copy's device, or "interleave"
 *   max_maps    kernel mappings to allow instead of vm.max_map_count; beyond it, less an eighth,
 *               calls return CUDA_ERROR_MAP_FAILED
 *   machine_dir where shared machines keep their files (default /dev/shm)
 *   machine     name of a machine several processes share (default: private to the process)
 *   call_us     any time. "name=first+further" pairs overriding the cost table
 *   call_delay_us  any time. "cuMemMap=10000": really sleeps so long in each such call
 */
SIMCUDA_API int simcuda_configure(const char* key, const char* value);

/* Forgets everything of this process (devices, streams, books, options given by configure), as if
 * the library had just been loaded. The caller guarantees that nothing uses it. */
SIMCUDA_API int simcuda_reset(void);

/* Fails the k-th (1-based) later call of `symbol` ("cuMemMap"; "*" counts every call that returns
 * a CUresult and may fail) with `code`, `times` times in a row from there (-1: for good).
 * symbol = NULL disarms all. */
SIMCUDA_API int simcuda_fail(const char* symbol, int64_t k, int code, int64_t times);

/* Calls made so far: of one symbol, or of all with "*". Cost is modelled time in microseconds. */
SIMCUDA_API int64_t simcuda_calls(const char* symbol);
SIMCUDA_API double simcuda_cost_us(const char* symbol);
SIMCUDA_API void simcuda_reset_calls(void);
/* Modelled microseconds of one call of `symbol` over a 2 MiB page, and of each further page. */
SIMCUDA_API int simcuda_price(const char* symbol, double* first_us, double* further_us);

/* Virtual clock in nanoseconds, and host events for complete_after. */
SIMCUDA_API uint64_t simcuda_now_ns(void);
SIMCUDA_API void simcuda_tick(uint64_t ticks);

/* join != 0: virtual time stands still unless this thread, too, waits or asks in the driver. Undo
 * with 0 before the thread ends. Without any such thread, time moves whenever one waits. A joined
 * thread that is blocked elsewhere while nothing happens for 200 ms of real time is not waited for.
 */
SIMCUDA_API int simcuda_thread(int join);

/* The books, as one flat JSON object of numbers (as snprintf: returns the length; "{}" before
 * cuInit and for no such device). Of the device: handles, mapped_granules, granted_granules,
 * used_bytes, capacity_bytes, context_refs. Of the process: reservations, reserved_bytes,
 * kernel_mappings, streams, events, graphs, host_blocks, host_bytes, pending_work, ticks. */
SIMCUDA_API size_t simcuda_ledger(int device, char* json, size_t capacity);

/* What a GPU leaves undefined, as a JSON array of objects {kind, detail, time_ns}; clear != 0
 * empties it. Kinds: "unmap under pending work", "access to unmapped memory" (then the call that
 * waits for the work returns CUDA_ERROR_ILLEGAL_ADDRESS), "access without grant" (likewise). Reuse
 * before completion is no violation of its own: work runs late, so it corrupts what a test reads.
 */
SIMCUDA_API size_t simcuda_violations(char* json, size_t capacity, int clear);

/* Why the calling thread's last failed call failed, in words (as snprintf). */
SIMCUDA_API size_t simcuda_last_message(char* text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_SIMCUDA_H */
