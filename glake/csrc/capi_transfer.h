/* glake's C interface of copies over every useful path of the node at once. As capi.h: any thread,
 * nothing thrown or printed; a failed call leaves its code and a sentence for glake_last_error().
 */
#ifndef GLAKE_CAPI_TRANSFER_H
#define GLAKE_CAPI_TRANSFER_H

#include "capi.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GLAKE_HOST = -1, GLAKE_ASK = -2 }; /* in place of a device: ask the driver */

enum {
  GLAKE_COPY_DIRECT = 1,  /* one plain copy */
  GLAKE_COPY_RELAYED = 2, /* never one plain copy: for tests, and refused where it must be */
  GLAKE_COPY_TRACKED = 4, /* a plain copy, too, has an id of its own, which must be released */
  /* Each chunk's ends are read again and compared, and a chunk that changed on its way is sent
   * again: two copies more of every GPU's end. Never one plain copy. */
  GLAKE_COPY_CHECKSUM = 8,
  /* Addresses that nothing vouches for: every part is looked into, however small the copy is.
   * Without it, of a copy below 1 MiB only ends that are GLAKE_ASK are. */
  GLAKE_COPY_CHECKED = 16,
};

typedef struct glake_copy_part {
  uint64_t dst, src, bytes;
} glake_copy_part;

/* A batch is one transfer; its parts are all between the same two places. */
typedef struct glake_copy_request {
  size_t size; /* sizeof(glake_copy_request), as compiled */
  const glake_copy_part* parts;
  size_t count;
  int dst_device, src_device; /* a GPU, GLAKE_HOST or GLAKE_ASK */
  void* stream;
  int stream_device, ordered; /* ordered = 0: of no stream, it begins at once */
  unsigned flags;
  /* A second stream that is ordered likewise, such as that of the other GPU. */
  void* also_stream;
  int also_device, also_ordered;
} glake_copy_request;

/* Opens the process's transfer engine. `topology` is the text of one platform, or, with `name`, of
 * a platforms file; NULL or "": nothing is known of the links, and copies are plain. */
GLAKE_API int glake_transfer_open(const char* topology, const char* name);
/* Cancels transfers, waits for their copies under way and ends the engine's threads. May be
 * tried again after GLAKE_BUSY_TIMEOUT (a stream that never comes to its transfer). */
GLAKE_API int glake_transfer_close(void);

/* Starts a copy and returns its id at once; 0: failed. With a stream it begins after the work
 * enqueued there, and later work there waits for it. Memory must stay valid until it is done. Small
 * copies, and those that more paths would not speed up, are one plain copy on the stream. */
GLAKE_API uint64_t glake_copy_start(const glake_copy_request* request);
/* GLAKE_OK: it is done. GLAKE_BUSY_TIMEOUT: not yet. GLAKE_COPY_FAILED and GLAKE_COPY_CANCELLED say
 * what state the destination is in. A plain copy that is not tracked is waited for with its stream.
 */
GLAKE_API int glake_copy_wait(uint64_t id, uint64_t timeout_ns);
GLAKE_API int glake_copy_done(uint64_t id); /* 1, 0, or a negative glake_status */
/* 1: it is over, and nothing of it may still read its source or write its destination; the latter
 * may be after a failure, by copies that were given up. Of a released id: 1 too. */
GLAKE_API int glake_copy_settled(uint64_t id); /* 1, 0, or a negative glake_status */
/* Later work on `stream` waits for the copy, however it ends. */
GLAKE_API int glake_copy_stream_wait(uint64_t id, int device, void* stream);
/* Takes no more chunks; those under way arrive. A plain copy goes on. */
GLAKE_API int glake_copy_cancel(uint64_t id);
/* Forgets the id; the copy goes on. Every id but an untracked plain copy's must be released. */
GLAKE_API int glake_copy_release(uint64_t id);
/* Bytes that have arrived, of all; 0 of 0 for a plain copy. */
GLAKE_API int glake_copy_progress(uint64_t id, uint64_t* done, uint64_t* total);
/* Bytes, time, bytes and chunks by path, refusals, what was sent again: JSON, as glake_stats. */
GLAKE_API size_t glake_copy_result(uint64_t id, char* json, size_t capacity);
/* Of the engine: copies and bytes so far, paths and their states. */
GLAKE_API size_t glake_transfer_stats(char* json, size_t capacity);
/* What a copy of `bytes` would be: its paths with their rates (GB/s), and those refused. `node`:
 * the socket of the host end, or -1 for memory spread over all. */
GLAKE_API size_t glake_transfer_plan(int dst_device, int src_device, int node, uint64_t bytes,
                                     char* json, size_t capacity);

/* A plain copy between two places: a GPU (>= 0), or GLAKE_HOST and the socket. */
typedef struct glake_timed_copy {
  int dst_device, dst_node, src_device, src_node;
} glake_timed_copy;
/* What the probe of a topology measures by. Makes `count` copies at once, between buffers of the
 * engine's, each `repeats` times `bytes` (at most 32 MiB; 64 copies, 64 repeats) on a stream of its
 * own; ns[i * repeats + r]: from the start of copy i to the end of its r-th. GLAKE_COPY_REFUSED:
 * host memory cannot be had on that socket. Buffers (32 MiB of a GPU, 32 MiB of pinned host memory
 * a copy) are kept for the next call; count = 0 gives them back, as the engine's end does. */
GLAKE_API int glake_time_copies(const glake_timed_copy* copies, size_t count, uint64_t bytes,
                                int repeats, uint64_t* ns);
/* Sharing with other processes of the node (docs/relayd.md). `relays`: the GPUs that may relay, as
 * bits, besides those this process copies to or from; at first all. `factors`: the part of each
 * limit of the topology that is this process's, 0 to 1, edges first, in their order; none: all of
 * all. Transfers under way are planned anew. */
GLAKE_API int glake_transfer_lend(uint32_t relays, const double* factors, size_t count);
/* The GPUs used, and the ends (GPU, socket, GPU, socket) of all transfers under way: JSON. */
GLAKE_API size_t glake_transfer_demands(char* json, size_t capacity);
/* An eventfd, readable after these have changed. The engine's own, until its end. -1: failed. */
GLAKE_API int glake_transfer_demands_event(void);

/* Pins host memory in pieces; `background` != 0: on a thread of its own, while copies of what is
 * not pinned yet go as copies of pageable memory do. The engine's end unpins it. */
GLAKE_API int glake_register_host(void* base, size_t bytes, int background);
/* GLAKE_OK: all is pinned. GLAKE_BUSY_TIMEOUT: not yet. Else what ended it. */
GLAKE_API int glake_register_host_wait(void* base, uint64_t timeout_ns);
GLAKE_API int glake_register_host_progress(void* base, uint64_t* pinned, uint64_t* total);
/* No copy of it may be under way. */
GLAKE_API int glake_unregister_host(void* base);

/* Whose memory is at `ptr`: a GPU's or GLAKE_HOST; *pinned: whether the driver knows it at all. */
GLAKE_API int glake_place_of(const void* ptr, int* device, int* pinned);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_CAPI_TRANSFER_H */
