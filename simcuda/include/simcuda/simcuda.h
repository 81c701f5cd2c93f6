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

struct CUevent_st;

#define SIMCUDA_API __attribute__((visibility("default")))

// clang-format off: the list keeps its lines
/* Options:
 *   preset      name in the platforms file (default "hgx_h100_h200")
 *   platforms   path of the platforms file (default: platforms.json beside the library)
 *   costs       cost table of calls: a device in the cost file, or "published" (default: as the
 *               file says)
 *   cost_file   path of the cost file (default: costs.json beside the library)
 *   devices     number of devices (default: the preset's)
 *   memory      bytes of each device, with suffix KiB/MiB/GiB (default 1GiB; phantom 80GiB)
 *   context_memory  bytes that each context takes of its device, with suffix KiB/MiB/GiB (default
 *               0; on a GPU a context and its loaded code take hundreds of MiB)
 *   phantom     1: keep the books only, no memory behind the mappings (default 0)
 *   seed        of the scheduler (default 0)
 *   schedule    "lazy" (default: stream work runs as late as is legal, seeded order) |
 *               "threaded" (a thread per stream, for race detectors)
 *   completion  how a thread that waits with a deadline learns that work is done: "instant"
 *               (default: it is woken) | "polled" (it asks and sleeps, as it must on a GPU: a
 *               query takes its modelled cost, a sleep what simcuda_sleep says; lazy schedule)
 *   driver_lock 1: as was seen with real drivers, calls that free or unpin memory, load code, open
 *               contexts or peers wait for all work under way, and block calls that enqueue work
 *               meanwhile; cuMemAlloc, and calls that pin memory or make streams and events, block
 *               them for their own time; cuModuleUnload only waits (default 0)
 *   sticky_errors  1: work that ends with an error (a fault below, an illegal address) takes its
 *               GPU's contexts with it, as CUDA documents of such errors: what was enqueued there
 *               does nothing, and every later call on them returns the error until the last release
 *               of the primary context (default 0: the error is told once)
 *   complete_after  any time. For phantom replays. K: work enqueued at tick t is complete at tick
 *               t + K; -1: only once the host waits for it; "auto" (default): by the schedule.
 *   reuse_handles  1: a new stream may have a destroyed one's handle, as a driver does (default 0)
 *   host_node   socket that holds host buffers: a number (default 0), "local" to the copy's
 *               device, or "interleave"
 *   batch_small_ns, batch_large_ns  what each copy of a cuMemcpyBatchAsync adds to the batch: of
 *               less than 28 KiB (default 2400) or more (default 100). Published for an H100
 *   dead_link   any time. CUresult with which copies over a link at 0 GB/s end; 0 (default): they
 *               stand still until the link has a rate again
 *   max_maps    kernel mappings to allow, instead of vm.max_map_count; beyond 7/8 of it calls
 *               return CUDA_ERROR_MAP_FAILED
 *   visible_devices  1: CUDA_VISIBLE_DEVICES hides GPUs of the machine (default 0)
 *   pace        with `machine`: real nanoseconds to one of the clock that all of its processes have,
 *               as they have its links (default 0: each its own clock and links)
 *   machine     name of a machine several processes share (default: private to the process)
 *   machine_dir where shared machines keep their files (default /dev/shm)
 *   call_us     any time. "name=first+further+mapping" pairs overriding the cost table: of a 2 MiB
 *               page, of each further page (default 0) and of each further mapping (default: as a
 *               further page)
 *   call_time   any time. 1: calls that enqueue work take their modelled time on the clock, and
 *               with driver_lock those that block them for their own time (default 0: the books
 *               alone know it)
 *   call_delay_us  any time. "cuMemMap=10000": each such call really sleeps that long
 */
// clang-format on
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
/* 2 MiB pages of those calls, beyond the first of each. */
SIMCUDA_API int64_t simcuda_further_pages(const char* symbol);
/* Mappings in the ranges of those calls, beyond the first of each: of cuMemSetAccess and
 * cuMemUnmap.
 */
SIMCUDA_API int64_t simcuda_further_mappings(const char* symbol);
SIMCUDA_API void simcuda_reset_calls(void);
/* Modelled microseconds of one call of `symbol` over a 2 MiB page, and of each further page of the
 * same mapping. */
SIMCUDA_API int simcuda_price(const char* symbol, double* first_us, double* further_us);
/* The same by a table of the cost file, or by "published", whatever table is in force. */
SIMCUDA_API int simcuda_table_price(const char* table, const char* symbol, double* first_us,
                                    double* further_us);
/* Of each further mapping's first page, by a table or (NULL) by that in force. */
SIMCUDA_API int simcuda_mapping_price(const char* table, const char* symbol, double* mapping_us);

/* Virtual clock in nanoseconds (threaded: of real time since cuInit), and host events for
 * complete_after. */
SIMCUDA_API uint64_t simcuda_now_ns(void);
SIMCUDA_API void simcuda_tick(uint64_t ticks);

/* join != 0: virtual time stands still unless this thread, too, waits or asks in the driver. Undo
 * it with 0 before the thread ends. Without joined threads, time moves whenever any thread waits.
 * Time also moves on if all joined threads sleep elsewhere and nothing happens for 200 ms of real
 * time; after 10 s it does not wait for running and expected (below) threads either. */
SIMCUDA_API int simcuda_thread(int join);

/* `threads` more threads are about to join: time stands still until they have. A negative number
 * takes expectations back; each joining takes back one. May be called in a host function. */
SIMCUDA_API int simcuda_expect(int threads);

/* away != 0: from here on the calling thread waits for another thread outside the driver, and time
 * moves without it. away == 0 ends this. */
SIMCUDA_API int simcuda_aside(int away);

/* As simcuda_thread, for runs that must repeat exactly. The call returns once all expected threads
 * have joined and no other joined thread is at work; threads of lower rank return first. Joined
 * threads whose waits end at the same moment go on one by one, in the order in which their work was
 * enqueued. So at most one of them is at work at any time. Hold no lock that another joined thread
 * may want. join == 0 leaves. */
SIMCUDA_API int simcuda_work(int join, int rank);

/* cuEventSynchronize with a deadline on the virtual clock: CUDA_ERROR_NOT_READY if `timeout_ns`
 * pass first. With nothing else in flight the clock jumps to the deadline. */
SIMCUDA_API int simcuda_wait_event(struct CUevent_st* event, uint64_t timeout_ns);
/* The same until any of several has happened, or has failed: ask each which it was. */
SIMCUDA_API int simcuda_wait_any(struct CUevent_st* const* events, size_t count,
                                 uint64_t timeout_ns);

/* Whether the option completion is "polled". */
SIMCUDA_API int simcuda_polled(void);
/* Sleeps on the virtual clock as long as Linux makes a sleep of `ns` last: 8 us and the thread's
 * timer slack (prctl) longer. Seen on a small server: 10 us take 68 us with the default slack of 50
 * us, and 16 us with a slack of 1 ns. */
SIMCUDA_API int simcuda_sleep(uint64_t ns);

/* Host functions run, and values that streams wait for are written, before the clock moves on;
 * on a thread that waits or asks in the driver meanwhile. */

/* Links, at any time after cuInit, while copies flow as well: the speed in GB/s of the platform's
 * edge from > to ("s0", "u0", "g3", "N"), now or from virtual time `ns` on. 0: dead, see dead_link.
 * Limits over several edges stay as they are. */
SIMCUDA_API int simcuda_set_link(const char* from, const char* to, double rate);
SIMCUDA_API int simcuda_set_link_at(uint64_t ns, const char* from, const char* to, double rate);

/* Makes copies fail in a way of this simulator's own. The k-th (1-based) later copy between two
 * places ("g3", "m0", "host": any host memory, "*"), and `times` in a row from there (-1: for
 * good), end with `code` after their latency and write no byte. A wait for, or a query of, the next
 * event recorded behind it in its stream returns the code every time. A wait for the stream, or a
 * query of it, returns the code once, unless it was returned before. The context and later copies
 * are not affected. A batch is one copy, between its first copy's places. from = NULL disarms
 * everything, stalls too. */
SIMCUDA_API int simcuda_fail_copy(const char* from, const char* to, int64_t k, int code,
                                  int64_t times);
/* The k-th later copy takes `ns` longer to start. */
SIMCUDA_API int simcuda_stall_copy(const char* from, const char* to, int64_t k, uint64_t ns);
/* The k-th later copy, and `times` in a row from there, arrive with their first bit flipped. */
SIMCUDA_API int simcuda_corrupt_copy(const char* from, const char* to, int64_t k, int64_t times);

/* The load of every link since cuInit or the last clear, as JSON: {"edges": {"s0>u0": {"rate": now,
 * "peak": GB/s, "load": most of the rate of then that was in use, "bytes"}}, "joint": [{"edges",
 * "limit", "load"}]}. Not in the threaded mode, whose copies take no modelled time. */
SIMCUDA_API size_t simcuda_edges(char* json, size_t capacity, int clear);

/* Counts from now on how often copies write each byte of a range (bytes = 0 ends it); and returns
 * the counts, one for each byte, at most 255. A copy counts when its effect is made, that is once
 * somebody has waited for it. Phantom copies count. */
SIMCUDA_API int simcuda_watch_landings(uint64_t address, size_t bytes);
SIMCUDA_API int simcuda_landings(uint64_t address, size_t bytes, uint8_t* counts);
/* Bytes of the range written exactly `times` times; -1: more than once. UINT64_MAX: not watched. */
SIMCUDA_API uint64_t simcuda_landed(uint64_t address, size_t bytes, int times);

/* Places host addresses on a NUMA node, whatever option host_node says; -1: spread over all. Nodes
 * are those of the platform's `numa_nodes`; where it has none, socket S is node S. A copy belongs
 * to the socket that has three quarters of its placed bytes, else to all sockets. The second
 * function returns the node of a range (of a socket with several nodes, the first): -1: spread; -2:
 * unknown, as option host_node is local. */
SIMCUDA_API int simcuda_place_host(const void* address, size_t bytes, int node);
SIMCUDA_API int simcuda_host_node(const void* address, size_t bytes, int* node);

/* The books, as one flat JSON object of numbers (as snprintf: returns the length; "{}" before
 * cuInit and for no such device). Of the device: handles, mapped_granules, granted_granules,
 * used_bytes, capacity_bytes, context_refs. Of the process: reservations, reserved_bytes,
 * kernel_mappings, streams, events, graphs, host_blocks, host_bytes, pending_work, ticks. */
SIMCUDA_API size_t simcuda_ledger(int device, char* json, size_t capacity);

/* What a GPU leaves undefined, as a JSON array of objects {kind, detail, time_ns}; clear != 0
 * empties it. Kinds: "unmap under pending work", "access to unmapped memory" (then the call that
 * waits for the work returns CUDA_ERROR_ILLEGAL_ADDRESS), "access without grant" (likewise). Reuse
 * before completion is not a kind of violation: work runs late, so such reuse corrupts what a test
 * reads. */
SIMCUDA_API size_t simcuda_violations(char* json, size_t capacity, int clear);

/* Why the calling thread's last failed call failed, in words (as snprintf). */
SIMCUDA_API size_t simcuda_last_message(char* text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_SIMCUDA_H */
