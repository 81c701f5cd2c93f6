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
/* Options, as tools/option_table.py writes them:
 *   preset: a name in the platforms file
 *       platform to simulate (default: hgx_h100_h200).
 *   platforms: a path
 *       platforms file to use (default: platforms.json beside the simulator's library).
 *   costs: a device in the cost file, or published
 *       modelled cost of driver calls (default: as the cost file says).
 *   cost_file: a path
 *       cost file to use (default: costs.json beside the simulator's library).
 *   devices: 1 to 16
 *       devices (default: the preset's).
 *   memory: bytes of 2MiB and more ("1GiB")
 *       memory of each device. The default is 1GiB; with phantom=1 it is 80GiB, and under PyTorch's
 *       CPU tensors, without a shared machine, what the host can spare.
 *   context_memory (default 0): 0, or bytes of 2MiB and more ("616MiB")
 *       memory that each CUDA context takes of its device. On a GPU a context and its loaded code
 *       take hundreds of MiB.
 *   phantom (default 0): 0 or 1
 *       1: keep the books only, no memory behind the mappings.
 *   host_node (default 0): a socket's number, local or interleave
 *       socket whose memory host buffers are in. local: the socket of the copy's device.
 *   seed (default 0): a whole number
 *       seed of the scheduler.
 *   schedule (default lazy): lazy or threaded
 *       lazy: stream work runs as late as is legal; threaded: a thread per stream. lazy takes an
 *       order by the seed; threaded is for race detectors.
 *   completion (default instant): instant or polled
 *       how a waiting thread learns that work is done: woken, or asking and sleeping as on a GPU.
 *       It concerns threads that wait with a deadline. With polled, which needs schedule=lazy, a
 *       query takes its modelled cost, and a sleep what simcuda_sleep says.
 *   driver_lock (default 0): 0 or 1
 *       1: calls that free or unpin wait for all work and keep others' copies out. As was seen with
 *       real drivers, calls that free or unpin memory, load code, open contexts or peers wait for
 *       all work under way, and block calls that enqueue work meanwhile. cuMemAlloc, and calls that
 *       pin memory or make streams and events, block them for their own time. cuModuleUnload only
 *       waits.
 *   sticky_errors (default 0): 0 or 1
 *       1: work that fails ends its GPU's contexts, as CUDA documents. What was enqueued on them
 *       does nothing, and every later call on them returns the error until the last release of the
 *       primary context. 0: the error is told once.
 *   call_time (default 0, any time): 0 or 1
 *       1: calls that enqueue work take their time on the clock. With driver_lock=1, calls that
 *       block such calls take their own time too. 0: the time is only added up.
 *   call_lock (default context): context or none
 *       which calls of other threads a call that takes time on the clock waits for. context: those
 *       into the same context, as nobody promises that they run side by side.
 *   pcie_peers (default socket): socket, switch or none
 *       which GPUs without NVLink may access each other's memory. socket: those under one socket.
 *       switch: those under one PCIe switch. none: no GPUs, as on boards and in virtual machines
 *       whose driver allows no peer access over PCIe.
 *   visible_devices (default 0): 0 or 1
 *       1: CUDA_VISIBLE_DEVICES hides GPUs of the simulated machine.
 *   pace (default 0): a whole number to 1000000
 *       real nanoseconds to one of the clock that all processes of a shared machine share (0: each
 *       has its own, which runs by itself). With a pace they share the machine's links, too.
 *   machine: a name of letters, digits, _, - and .
 *       machine that several processes share (default: private).
 *   machine_dir: a folder
 *       where a shared machine's memory is (default: /dev/shm). It is a sparse file of 64 TiB,
 *       which tmpfs and XFS hold and ext4 does not.
 *   complete_after (default auto, any time): auto, -1 (never) or a count of ticks
 *       when enqueued work is complete, in phantom mode. K: what is enqueued at tick t is complete
 *       at tick t + K. -1: only once the host waits for it. auto: by the schedule.
 *   call_us (any time): "cuMemMap=2+1" pairs
 *       modelled cost of driver calls in microseconds. first+further+mapping: of a 2 MiB page, of
 *       each further page (default: 0) and of each further mapping (default: as a further page).
 *       They win over the cost table.
 *   call_delay_us (any time): "cuMemMap=10000" pairs
 *       real delay of driver calls in microseconds.
 *   reuse_handles (default 0): 0 or 1
 *       1: a new stream may have a destroyed one's handle, as a driver does.
 *   batch_small_ns (default 2400): nanoseconds from 0
 *       what each copy of less than 28 KiB adds to a cuMemcpyBatchAsync. The default was published
 *       for an H100.
 *   batch_large_ns (default 100): nanoseconds from 0
 *       what each copy of 28 KiB and more adds to a cuMemcpyBatchAsync. The default was published
 *       for an H100.
 *   dead_link (default 0, any time): a CUresult, or 0
 *       error with which copies over a link at 0 GB/s end (0: they stand still until the link has a
 *       rate again).
 *   max_maps: at least 64
 *       kernel mappings to allow (default: vm.max_map_count). Beyond 7/8 of them calls return
 *       CUDA_ERROR_MAP_FAILED.
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
/* How many 2 MiB pages those calls had beyond the first page of each call. */
SIMCUDA_API int64_t simcuda_further_pages(const char* symbol);
/* How many mappings were in the ranges of those calls, beyond the first mapping of each call. Only
 * cuMemSetAccess and cuMemUnmap have such ranges. */
SIMCUDA_API int64_t simcuda_further_mappings(const char* symbol);
SIMCUDA_API void simcuda_reset_calls(void);
/* Modelled microseconds of one call of `symbol` over a 2 MiB page, and of each further page of the
 * same mapping. */
SIMCUDA_API int simcuda_price(const char* symbol, double* first_us, double* further_us);
/* The same prices from the named table of the cost file, or from "published", whatever table is in
 * force. */
SIMCUDA_API int simcuda_table_price(const char* table, const char* symbol, double* first_us,
                                    double* further_us);
/* Modelled microseconds of the first page of each further mapping, from the named table. NULL: from
 * the table in force. */
SIMCUDA_API int simcuda_mapping_price(const char* table, const char* symbol, double* mapping_us);

/* The first function returns the virtual clock in nanoseconds (with schedule=threaded: real time
 * since cuInit). The second one adds to the ticks that option complete_after counts. */
SIMCUDA_API uint64_t simcuda_now_ns(void);
SIMCUDA_API void simcuda_tick(uint64_t ticks);

/* join != 0: virtual time stands still unless this thread, too, waits or asks in the driver. (It
 * asks when it queries an event or a stream.) Undo it with 0 before the thread ends. Without joined
 * threads, time moves whenever any thread waits. Time also moves on if all joined threads sleep
 * elsewhere and nothing happens for 200 ms of real time; after 10 s it does not wait for running
 * and expected (below) threads either. */
SIMCUDA_API int simcuda_thread(int join);

/* `threads` more threads are about to join: time stands still until they have. A negative number
 * takes expectations back. A thread that joins takes one back. May be called in a host function. */
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
/* Waits in the same way until one of several events has happened or failed. A query of each event
 * tells which one it was. */
SIMCUDA_API int simcuda_wait_any(struct CUevent_st* const* events, size_t count,
                                 uint64_t timeout_ns);

/* Whether the option completion is "polled". */
SIMCUDA_API int simcuda_polled(void);
/* Sleeps on the virtual clock as long as Linux makes a sleep of `ns` last: 8 us and the thread's
 * timer slack (prctl) longer. Seen on a small server: 10 us take 68 us with the default slack of 50
 * us, and 16 us with a slack of 1 ns. */
SIMCUDA_API int simcuda_sleep(uint64_t ns);

/* Before the clock moves on, host functions run, and values that streams wait for are written. This
 * is done by a thread that waits or asks in the driver at that time. */

/* Sets the speed in GB/s of the platform's edge from > to ("s0", "u0", "g3", "N"), now or from
 * virtual time `ns` on. It may be called at any time after cuInit, even while copies flow. 0: the
 * link is dead (option dead_link). Limits over several edges stay as they are. */
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

/* The load of every link since cuInit or the last clear, as JSON: {"edges": {"s0>u0": {"rate",
 * "peak", "load", "bytes"}}, "joint": [{"edges", "limit", "load"}]}. "rate" (now), "peak" and
 * "limit" are in GB/s. "load" is the largest part of the rate or limit that was ever in use. Not in
 * the threaded mode, whose copies take no modelled time. */
SIMCUDA_API size_t simcuda_edges(char* json, size_t capacity, int clear);

/* The first function counts from now on how often copies write each byte of a range; bytes = 0 ends
 * this. The second one returns the counts, one for each byte, at most 255. A copy counts when its
 * effect is made, that is once somebody has waited for it. Phantom copies count. */
SIMCUDA_API int simcuda_watch_landings(uint64_t address, size_t bytes);
SIMCUDA_API int simcuda_landings(uint64_t address, size_t bytes, uint8_t* counts);
/* Bytes of the range written exactly `times` times; -1: more than once. UINT64_MAX: not watched. */
SIMCUDA_API uint64_t simcuda_landed(uint64_t address, size_t bytes, int times);

/* Places host addresses on a NUMA node, whatever option host_node says; -1: spread over all. Nodes
 * are those of the platform's `numa_nodes`; where it has none, socket S is node S. A copy over
 * several sockets uses each for the bytes that lie there. The second function returns the node of a
 * range. For a socket with several nodes it is the first one. -1: the range is on several sockets.
 * -2: the node is unknown, because option host_node is local. */
SIMCUDA_API int simcuda_place_host(const void* address, size_t bytes, int node);
SIMCUDA_API int simcuda_host_node(const void* address, size_t bytes, int* node);

/* The books, as one flat JSON object of numbers (as snprintf: returns the length; "{}" before
 * cuInit and if there is no such device). Of the device: device, handles, mapped_granules,
 * granted_granules, used_bytes, capacity_bytes, context_refs. Of the process: reservations,
 * reserved_bytes, kernel_mappings (Linux's), streams, events, graphs, modules, host_blocks,
 * host_bytes, pending_work, ticks. */
SIMCUDA_API size_t simcuda_ledger(int device, char* json, size_t capacity);

/* What a GPU leaves undefined, as a JSON array of objects {kind, detail, time_ns}; clear != 0
 * empties it. Kinds: "unmap under pending work", "access to unmapped memory" (then the call that
 * waits for the work returns CUDA_ERROR_ILLEGAL_ADDRESS), "access without grant" (likewise),
 * "handle of nothing" (the call fails; on a GPU it crashes). Reuse before completion is not a kind
 * of violation: work runs late, so such reuse corrupts what a test reads. */
SIMCUDA_API size_t simcuda_violations(char* json, size_t capacity, int clear);

/* Why the calling thread's last failed call failed, in words (as snprintf). */
SIMCUDA_API size_t simcuda_last_message(char* text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_SIMCUDA_H */
