/* glake's C interface: the stitching allocator without Python and without torch.
 *
 * Every function may be called from any thread, with or without a current CUDA context. None of
 * them throws, exits or prints. Configure first (GLAKE_* variables or glake_configure()), then
 * allocate: the driver is opened at the first use of a device, never at load.
 *
 * The return type of a function tells what it returns when it fails:
 *
 *   int              the glake_status; GLAKE_OK is success. A function whose result is a number
 *                    says so, and returns the negative glake_status when it fails.
 *   int64_t, double  the negative glake_status
 *   size_t           0: the length of a text
 *   uint64_t         0: the id of a copy
 *   a pointer        NULL; the text of glake_driver_path() is "" then
 *   void             nothing
 *
 * A call that fails stores the glake_status and a sentence for the calling thread, which
 * glake_last_error() returns. A call that succeeds clears both. So after a 0 or a NULL,
 * glake_last_error() tells a failure from a result. glake_last_error() itself, glake_version() and
 * glake_set_tag(NULL) change neither.
 *
 * As with malloc, no function may be called from a signal handler. A handler that interrupts glake
 * on its own thread would wait for ever for a lock that this thread holds. Let the handler set a
 * flag, and allocate or free later. With the option `debug`, every function that could wait there
 * fails with GLAKE_REENTERED instead.
 */
#ifndef GLAKE_GLAKE_H
#define GLAKE_GLAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLAKE_API __attribute__((visibility("default")))

/* The version of this header; glake_version() tells the library's. A program runs with a library of
 * the same major and minor version. Every symbol has the version GLAKE_<major>.<minor>, so the
 * loader refuses other libraries. A struct that callers fill and that may grow begins with its
 * size. A struct that glake shows to a caller's function may get more fields at its end. */
#define GLAKE_VERSION_MAJOR 0
#define GLAKE_VERSION_MINOR 1
#define GLAKE_VERSION_PATCH 0

typedef enum glake_status {
  GLAKE_OK = 0,
  GLAKE_INVALID_ARGUMENT = 1, /* a size, stream or buffer that no call accepts */
  GLAKE_INVALID_DEVICE = 2,   /* no such device */
  GLAKE_INVALID_POINTER = 3,  /* foreign, interior or already freed pointer */
  GLAKE_OUT_OF_MEMORY = 4,    /* the text says who holds what and what would help */
  GLAKE_UNKNOWN_OPTION = 5,   /* glake has no option of the name given */
  GLAKE_INVALID_OPTION = 6,   /* the option does not take this value, or was set too late */
  GLAKE_DRIVER_ABSENT = 7,    /* the driver library or one of its symbols is missing */
  GLAKE_DRIVER_ERROR = 8,     /* the driver refused a call; the books are as before it */
  GLAKE_FORKED = 9,           /* called in a forked child: CUDA does not survive fork */
  GLAKE_INTERNAL = 10,        /* a broken invariant: please report it */
  GLAKE_CORRUPTED = 11,   /* memory was written beside a block, after its free, or in saved bytes */
  GLAKE_COPY_FAILED = 12, /* the text says which bytes of the destination are written */
  GLAKE_COPY_CANCELLED = 13,  /* the same, for a copy that was cancelled */
  GLAKE_COPY_REFUSED = 14,    /* the copy cannot be made in the way asked for */
  GLAKE_BUSY_TIMEOUT = 15,    /* not done in time; what was asked for goes on */
  GLAKE_TRANSFER_CLOSED = 16, /* call glake_transfer_open() first */
  GLAKE_MEMORY_OWED = 17,     /* the driver refused to take memory back; call again */
  GLAKE_REENTERED = 18,       /* called in a signal handler that interrupted glake (option debug) */
  GLAKE_REGION_PAUSED = 19,   /* call glake_region_resume() first */
  GLAKE_REGION_REFUSED = 20,  /* the region cannot be paused, resumed or kept there; see the text */
  GLAKE_FILE_FAILED = 21      /* a file could not be written whole; the text says which and why */
} glake_status;

/* Device memory, at least `bytes` long, 512-byte aligned. Work on `stream` (a CUstream; NULL is the
 * default stream) may use it at once. NULL on failure, and for bytes = 0. Until
 * glake_forget_stream(), glake may ask the driver about the stream. Drivers crash when they are
 * asked about a destroyed stream: see glake_stream_may_end(). */
GLAKE_API void* glake_malloc(size_t bytes, int device, void* stream);

/* Gives a block back, in the order of the stream it was allocated on. Work that is already enqueued
 * there, or on a recorded stream, may still use it. NULL is accepted and does nothing. */
GLAKE_API int glake_free(void* ptr);

/* Says that work on `stream` uses the block, so that a later free waits for that work too. It may
 * be a stream of another GPU, but not that GPU's default one: the handles 0, 1 and 2 name those of
 * the memory's own GPU. Such work counts as done once both GPUs have been synchronised. */
GLAKE_API int glake_record_stream(void* ptr, void* stream);

/* 1 if a stream that glake was given on the device is being captured, or was when glake last could
 * ask about it; else 0. A negative glake_status on failure. */
GLAKE_API int glake_capturing(int device);

/* Makes later work on `stream` wait for the work that `for_stream` has now. Call it before memory
 * that was allocated on one stream is used on the other. */
GLAKE_API int glake_stream_wait(int device, void* stream, void* for_stream);

/* Call it before a stream that glake was given is destroyed. Memory that was freed on the stream
 * serves other streams once the stream's work is done. In a few cases it does so only after the
 * device was synchronised. Copies in a later stream with the same handle do not wait for this
 * stream's copies. */
GLAKE_API int glake_forget_stream(int device, void* stream);

/* Says that the stream may be destroyed at any time, without glake_forget_stream(). Call it before
 * glake is first given the stream. glake then asks the driver about the stream only in calls that
 * name it. So memory that is freed on the stream serves other streams later than usual: after the
 * next allocation on the stream, or after the device was synchronised. `device` may be any device.
 * For a default stream the call does nothing, because these never end. Call it again after a
 * capture on the stream, because glake does not ask later whether the capture is over. A later
 * stream with the same handle needs a call of its own. */
GLAKE_API int glake_stream_may_end(int device, void* stream);

/* Returns every granule that no block holds to the driver, after the work that used it. If the
 * driver refuses some of them, the others have gone back and the call fails with GLAKE_MEMORY_OWED.
 * Nothing is lost. Later requests use the refused memory before new memory, and another call tries
 * again to return it. */
GLAKE_API int glake_empty_cache(int device);
/* Returns about `bytes` of idle memory to the driver, in whole granules, and writes to `given` how
 * much the driver took: less if less is idle. It waits for work that may use that memory, but not
 * for the whole device. */
GLAKE_API int glake_trim(int device, size_t bytes, size_t* given);

/* Bytes of a device's memory that are in no segment but that the driver still counts as held,
 * because it refused to release them or to undo a growth. They are not among the reserved bytes.
 * (Memory that the driver refused to unmap stays in its segment, serves later requests and is among
 * the reserved bytes.) The figure is of this process. It includes other processes' blocks that
 * could not be given back after glake_ipc_close(). It is 0 for a device that is not in use; the
 * call does not open it. A negative glake_status on failure. */
GLAKE_API int64_t glake_owed_bytes(int device);

/* Writes the statistics as one flat JSON object, as much of the text as fits. Returns the length of
 * the whole text without the final NUL; 0 on failure. */
GLAKE_API size_t glake_stats(int device, char* json, size_t capacity);

/* Clears the peaks, as torch.cuda.reset_peak_memory_stats does. */
GLAKE_API int glake_reset_peak_stats(int device);

/* Writes the text of the calling thread's last error, as much as fits. Returns the error's
 * glake_status; 0 if the last call succeeded. */
GLAKE_API int glake_last_error(char* text, size_t capacity);

/* Sets an option, such as "policy" to "compact". `key` is its name without GLAKE_, in upper or
 * lower case. An option that is read at the first use of a device must be set before that use. */
GLAKE_API int glake_configure(const char* key, const char* value);

/* Writes a JSON array, as glake_stats() does: each option with its default, its present value and
 * its meaning. */
GLAKE_API size_t glake_options(char* json, size_t capacity);
/* Writes one option's present value, as much of the text as fits. glake_configure() takes such a
 * text. Returns the length of the whole text without the final NUL, or a negative glake_status on
 * failure: GLAKE_UNKNOWN_OPTION if there is no option of that name. */
GLAKE_API int64_t glake_option(const char* key, char* value, size_t capacity);

/* Stores the size in bytes that the caller asked for, the device and the stream of the block at
 * `ptr`. `bytes`, `device` and `stream` may each be NULL. */
GLAKE_API int glake_block_info(const void* ptr, size_t* bytes, int* device, void** stream);

/* How many devices the driver has; negative glake_status on failure. Opens the driver. */
GLAKE_API int glake_device_count(void);

/* Lets work on `peer` reach all of `device`'s glake memory, present and future. */
GLAKE_API int glake_enable_peer_access(int device, int peer);

/* Starts the next step in the recorded trace (option `trace`) and in the statistics. */
GLAKE_API int glake_mark_step(int device);

/* Starts to write a trace of every later allocation and free (docs/trace-format.md), as text
 * without gzip. A NULL path flushes and ends the trace, and so does a new one, which does not begin
 * if the call fails. GLAKE_FILE_FAILED: the file is not whole, because a write failed, and nothing
 * was written after that. The option `trace` also starts a trace. At exit it is flushed without a
 * check. */
GLAKE_API int glake_trace(const char* path);

/* Checks every invariant of the device's books. GLAKE_INTERNAL: one is broken, and the text names
 * it. With the option `debug` it also checks every guard and poisoned byte. GLAKE_CORRUPTED: one
 * was changed, and the text names the block. The call is slow. */
GLAKE_API int glake_check(int device);

/* Gives every granule, mapping, reservation and event back, and forgets the driver. It is refused
 * with GLAKE_INVALID_ARGUMENT while blocks are live, or while a capture may use a freed block. It
 * is for tests and an orderly shutdown. A process that merely exits need not call it. */
GLAKE_API int glake_shutdown(void);

/* Path of the driver library in use, or "" before first use. Valid until glake_shutdown. */
GLAKE_API const char* glake_driver_path(void);

GLAKE_API const char* glake_version(void);

/* ---- Limits and statistics as values ----------------------------------------------------------
 */

typedef struct glake_stat {
  int64_t current, peak, allocated, freed;
} glake_stat;

/* PyTorch's DeviceStats: each count or sum for all memory, the small and the large pool. */
typedef struct glake_device_stats {
  glake_stat allocation[3], segment[3], active[3], inactive_split[3];
  glake_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3];
  glake_stat requested_bytes[3];
  int64_t alloc_retries, ooms, device_syncs, device_allocs, device_frees;
} glake_device_stats;

/* `size` is sizeof(glake_device_stats) as the caller was compiled. */
GLAKE_API int glake_get_stats(int device, glake_device_stats* stats, size_t size);

/* Clears the accumulated counts: `allocated`, `freed`, `alloc_retries`, `ooms` and the like. */
GLAKE_API int glake_reset_accumulated_stats(int device);

/* Sets the limit: the most physical memory that glake may hold on the device from now on, as a
 * fraction in (0, 1] of the device's memory. If more is held already, it is not given back, but
 * nothing grows. */
GLAKE_API int glake_set_limit_fraction(int device, double fraction);
GLAKE_API double glake_limit_fraction(int device); /* negative glake_status on failure */

/* Sets the headroom: `bytes` of the device's memory stay free for others (NCCL, cuBLAS, graphs).
 * From now on glake takes no memory from the driver if less would be left. The call gives idle
 * memory back until that much is free or nothing idle is left. Call it again once others have taken
 * memory. `free_bytes`, if not NULL, receives what the driver then reports free. `device` -1 means
 * all devices, also those used later; `free_bytes` is then the least of those in use.
 * GLAKE_INVALID_ARGUMENT: the device has no more memory than `bytes`. */
GLAKE_API int glake_set_headroom(int device, size_t bytes, size_t* free_bytes);
/* The headroom of a device, which need not be in use yet. -1: that of devices used later. */
GLAKE_API int glake_headroom(int device, size_t* bytes);

/* Counts `bytes` against the limit. They are memory that another allocator, such as a pool with an
 * allocator of its own, takes from the driver for the caller. If there is no room, idle memory is
 * given back first. GLAKE_OUT_OF_MEMORY: that is not enough. Negative bytes reduce the claim. */
GLAKE_API int glake_claim_outside(int device, int64_t bytes);

/* The device's memory as its driver reports it, and the largest block that fits without growth. */
GLAKE_API int glake_memory_info(int device, size_t* free_bytes, size_t* total_bytes);
GLAKE_API int glake_largest_free(int device, size_t* bytes);

/* ---- Private pools ----------------------------------------------------------------------------
 * Memory of CUDA graphs and of torch.cuda.MemPool. A pool's memory stays with it and is never
 * stitched into another pool's blocks. Once a graph has captured it, it is never unmapped or moved
 * while the pool is in use. A pool is named as PyTorch names it, by two numbers; {0, 0} is the
 * device's own memory. */

typedef struct glake_pool {
  uint64_t first, second;
} glake_pool;

enum { GLAKE_POOL_USE_ON_OOM = 1, GLAKE_POOL_NO_SPLIT = 2 };

/* Makes the pool if there is none, and counts one more user. */
GLAKE_API int glake_pool_retain(int device, glake_pool pool);
/* Counts one user less. When the last user has gone, free memory of the pool goes back at
 * empty_cache or when memory runs out, and the pool ends with its last block. */
GLAKE_API int glake_pool_release(int device, glake_pool pool);
/* The number of the pool's users. 0: there is no such pool. A negative glake_status on failure. */
GLAKE_API int glake_pool_uses(int device, glake_pool pool);
/* GLAKE_POOL_USE_ON_OOM: other pools may use the pool's free memory before they run out, unless a
 * graph has captured it. GLAKE_POOL_NO_SPLIT: blocks are whole granules, and a freed block is given
 * out whole. The flags end with the pool. GLAKE_INVALID_ARGUMENT: there is no such pool, and the
 * flags are not 0. */
GLAKE_API int glake_pool_set_flags(int device, glake_pool pool, unsigned flags);

/* Allocates as glake_malloc() does, but from a pool. If there is no such pool, it is made without a
 * user. The call notices a stream under capture. Then no event is recorded on the stream, and freed
 * blocks return to that stream alone. */
GLAKE_API void* glake_pool_malloc(size_t bytes, int device, void* stream, glake_pool pool);
/* The same at exactly `ptr`. NULL if the memory there is not free memory of the pool. */
GLAKE_API void* glake_pool_malloc_at(void* ptr, size_t bytes, int device, void* stream,
                                     glake_pool pool);
GLAKE_API int glake_pool_empty_cache(int device, glake_pool pool);

/* A checkpoint keeps which blocks of a pool are live now. glake_pool_restore() returns to it, as
 * torch's cudagraph trees need. */
typedef struct glake_checkpoint glake_checkpoint;
GLAKE_API glake_checkpoint* glake_pool_checkpoint(int device, glake_pool pool);
GLAKE_API void glake_checkpoint_free(glake_checkpoint* checkpoint);
/* Returns the pool to the blocks that were live at the checkpoint, at their addresses. `freed` is
 * called for every block that is live now, then `allocated` for every block that was live then; a
 * block that was live both times gets both calls. After a failure no call was made and nothing has
 * changed. Blocks lent by GLAKE_POOL_USE_ON_OOM do not belong to the pool. */
GLAKE_API int glake_pool_restore(glake_checkpoint* checkpoint, void* self,
                                 void (*freed)(void* self, void* ptr),
                                 void (*allocated)(void* self, void* ptr, size_t bytes,
                                                   void* stream));

/* ---- Regions ----------------------------------------------------------------------------------
 * A region is a private pool with a name, and perhaps a budget, that can be paused
 * (docs/regions.md). A pause gives its granules back to the driver, while its blocks stay live at
 * their addresses. Resuming brings the bytes back. Any private pool can be paused. Until it is
 * resumed, no thread may enqueue work on its memory or replay a graph that uses it. Nothing
 * enforces this. */

enum { GLAKE_REGION_HOST = 1, GLAKE_REGION_DISK = 2, GLAKE_REGION_DISCARD = 3 };

/* Stores the pool of the region of that name, which is the same on every device. The first call
 * with a name makes the region. A name has 1 to 200 bytes, and no control characters, quotes or
 * backslashes. */
GLAKE_API int glake_region_pool(const char* name, glake_pool* pool);
/* Sets the most memory that the region may hold on each device from now on, in bytes (rounded down
 * to 2 MiB). 0: no bound. An allocation beyond it fails with GLAKE_OUT_OF_MEMORY. */
GLAKE_API int glake_region_budget(glake_pool region, uint64_t bytes);
/* Sets the pool from which glake_malloc() on the calling thread takes memory from now on: a private
 * pool, or {0, 0}. Stores the former pool in `before`, unless `before` is NULL. */
GLAKE_API int glake_set_pool(glake_pool pool, glake_pool* before);

/* Waits for the device, saves the bytes of live blocks, and gives the granules back. `to` says
 * where the bytes go. GLAKE_REGION_HOST: to pinned host memory, over all paths if the transfer
 * engine is open. GLAKE_REGION_DISK: to a file without a name in `folder`. GLAKE_REGION_DISCARD:
 * nowhere, and they are undefined afterwards. Blocks may be freed while the region is paused.
 * GLAKE_REGION_REFUSED: a stream is captured, or memory is pinned, shared, lent or being copied.
 * After an error everything is as before. The exception is GLAKE_MEMORY_OWED: the region is paused,
 * but the driver refuses to take all of its memory back. */
GLAKE_API int glake_region_pause(int device, glake_pool region, int to, const char* folder);
/* Maps granules at the same addresses and in the same views again, and brings the bytes back. With
 * `verify` they are read back and compared. Saved bytes are compared with their checksum in any
 * case. After an error, such as GLAKE_OUT_OF_MEMORY or GLAKE_CORRUPTED, the region is paused as
 * before. */
GLAKE_API int glake_region_resume(int device, glake_pool region, int verify);
/* Writes a JSON array, as glake_stats() does: for each device in use its regions, and its other
 * pools that are paused. `state`: 0 in use, 1 paused, 2 just being paused or resumed. */
GLAKE_API size_t glake_regions(char* json, size_t capacity);

/* ---- Virtual ranges ---------------------------------------------------------------------------
 *
 * A virtual range is addresses without memory. Pages of it, 2 MiB each, are backed by memory one by
 * one, and unbacked again, at addresses that never change. So an array can grow in place, and the
 * key-value cache of a language model takes what its sequences have, not what they may get. The
 * memory is the same that glake_malloc() takes: what one of them frees serves the other, without a
 * driver call or a copy. Work may touch backed pages only.
 */

/* Reserves at least `bytes` of addresses on a device, in whole pages, 1 GiB aligned. Costs no
 * device memory. NULL on failure. */
GLAKE_API void* glake_virtual_reserve(size_t bytes, int device);

/* Backs all pages that have a byte in [offset, offset + bytes), and does all or nothing. Those that
 * are backed stay as they are. The contents of the others are undefined. Work on `stream` may use
 * them at once. GLAKE_OUT_OF_MEMORY: nothing was backed. A page that was unbacked and whose memory
 * nobody has taken meanwhile costs no driver call. One that must be mapped anew may make the caller
 * wait for the work that used the page before it was unbacked. During a capture that is refused
 * (GLAKE_INVALID_ARGUMENT). */
GLAKE_API int glake_virtual_back(void* range, size_t offset, size_t bytes, void* stream);

/* Gives the memory of all pages that lie in [offset, offset + bytes) as a whole to later requests,
 * in the order of `stream`: work that is enqueued there may still use it. Work of other streams on
 * these pages must be ordered before (glake_stream_wait()). Makes no driver call. Pages that are
 * not backed are left out. */
GLAKE_API int glake_virtual_unback(void* range, size_t offset, size_t bytes, void* stream);

/* Backs pages by the memory of as many pages from `from_offset` on of the range `from`, which may
 * be the same range. What is written through one of them is seen through the other by work that
 * comes later in stream order. The memory is free once all pages that share it are unbacked. What
 * backed the pages before is given back in the order of `stream`, as by glake_virtual_unback(), but
 * only if the call succeeds. GLAKE_INVALID_ARGUMENT: a number is no multiple of 2 MiB, or a page of
 * `from` is not backed. */
GLAKE_API int glake_virtual_alias(void* range, size_t offset, void* from, size_t from_offset,
                                  size_t bytes, void* stream);

/* Unbacks all pages and gives the addresses back, once all work of the device is done, which it
 * waits for. Refused while a stream is being captured (GLAKE_INVALID_ARGUMENT). If the driver
 * refuses, the range stays: call again. NULL does nothing. */
GLAKE_API int glake_virtual_free(void* range);

typedef struct glake_virtual {
  uint64_t bytes;  /* of the pages */
  uint64_t backed; /* of those that are backed */
  uint64_t shared; /* of these, in pages that share their memory with others */
  uint64_t mapped; /* of the pages with a mapping, backed or not */
} glake_virtual;

/* Figures of the pages that have a byte in [offset, offset + bytes). `size` is
 * sizeof(glake_virtual) as the caller was compiled. */
GLAKE_API int glake_virtual_info(void* range, size_t offset, size_t bytes, glake_virtual* info,
                                 size_t size);

/* ---- Memory that others must see whole --------------------------------------------------------
 */

/* Each contiguous block is one driver allocation. It is contiguous in physical memory as far as the
 * driver makes it so. Such blocks are kept apart from the granules, cached, and reused by size.
 * glake_free() takes them too. */
enum {
  GLAKE_STITCHED = 0,         /* glake's usual memory */
  GLAKE_CONTIGUOUS_VMM = 1,   /* one VMM handle: NCCL registration, GPUDirect RDMA, fd export */
  GLAKE_CONTIGUOUS_LEGACY = 2 /* cuMemAlloc: cudaIpcGetMemHandle too */
};
GLAKE_API void* glake_malloc_contiguous(size_t bytes, int device, void* stream, int kind);
/* Sets which kind of memory glake_malloc on the calling thread returns from now on. Returns the
 * former kind, or a negative glake_status. The option `contiguous` does the same for blocks of a
 * given size or more. */
GLAKE_API int glake_set_kind(int kind);

/* Keeps the granules under a live block where they are until glake_unpin(): no view takes them, and
 * nothing unmaps them. Pin memory that is registered with NCCL or a network card, or shared with
 * another process. Pins nest. They outlast the block: glake_unpin() also takes a block that was
 * freed meanwhile. */
GLAKE_API int glake_pin(void* ptr);
GLAKE_API int glake_unpin(void* ptr);

/* Shares a block with other processes of the same user. Writes a text that glake_ipc_open() takes
 * in these processes. Returns the text's length, or 0 on failure. The block's granules stay pinned
 * until every process that opened the block has closed it or ended. The bytes are safe only while
 * the block is live, so free it when the other processes are done. */
GLAKE_API size_t glake_ipc_share(void* ptr, char* handle, size_t capacity);
/* Maps the other process's block and returns its address here; `bytes` is its size. Opening the
 * same handle twice gives the same address; close it twice. */
GLAKE_API void* glake_ipc_open(const char* handle, int device, size_t* bytes);
/* Closes the block, after the device's work. GLAKE_DRIVER_ERROR: it stays open, as it does during a
 * stream's capture (GLAKE_INVALID_ARGUMENT). GLAKE_MEMORY_OWED: it is closed, but the driver
 * refused to take some of it back. glake tries that again later. */
GLAKE_API int glake_ipc_close(void* ptr);

/* Shards: memory that processes of one user have in common, and that none of them can write. A
 * shard is one driver allocation. It is in no heap, and does not count against the limit.
 * glake_shard_create() makes one of at least `bytes`, which its process may write until it calls
 * glake_shard_seal(). That waits for the device's work, and makes the shard read-only for good. If
 * the driver refuses, or a stream is being captured, the shard stays writable. */
GLAKE_API void* glake_shard_create(size_t bytes, int device);
GLAKE_API int glake_shard_seal(void* ptr);
/* Writes the text by which other processes open a sealed shard, and returns its length; 0 on
 * failure. A process that has opened a shard may share it, too. */
GLAKE_API size_t glake_shard_share(void* ptr, char* handle, size_t capacity);
/* Maps another process's shard, read-only. The same handle gives the same address. Close it as
 * often as it was opened. */
GLAKE_API void* glake_shard_open(const char* handle, int device, size_t* bytes);
/* Closes a shard that was made or opened here, after the device's work. Others keep what they have
 * open, also where this process made it. Errors are those of glake_ipc_close(). */
GLAKE_API int glake_shard_close(void* ptr);
/* Writes the 16 bytes by which the driver tells the GPU from all others; zeros if it cannot. */
GLAKE_API int glake_device_uuid(int device, unsigned char uuid[16]);

/* Pinned host memory, which every device can reach. It is cached, and reused once the recorded work
 * on it is complete. */
GLAKE_API void* glake_host_malloc(size_t bytes);
GLAKE_API int glake_host_free(void* ptr);
/* How many bytes the block holds: at least as many as its caller asked for. 0 on failure. */
GLAKE_API size_t glake_host_block_bytes(void* ptr);
GLAKE_API int glake_host_record_stream(void* ptr, int device, void* stream);
GLAKE_API int glake_host_empty_cache(void);

typedef struct glake_host_stats_values {
  glake_stat allocated_bytes, reserved_bytes; /* of live blocks; of live and cached blocks */
  int64_t live_blocks, blocks;                /* blocks: live and cached */
  int64_t waiting_blocks;                     /* freed, with recorded work that is not complete */
  int64_t hits;                               /* requests that the cache served */
  int64_t driver_allocs, driver_frees;
} glake_host_stats_values;
/* `size` is sizeof(glake_host_stats_values) as the caller was compiled. */
GLAKE_API int glake_get_host_stats(glake_host_stats_values* stats, size_t size);
/* Writes the same as JSON, as glake_stats() does. */
GLAKE_API size_t glake_host_stats(char* json, size_t capacity);

/* ---- Watching: tags, contexts, history, snapshots, debug modes ---------------------------------
 */

/* Gives the calling thread's later blocks a name, until the next call. NULL: no name. The text is
 * not copied, so it must live as long as the process. */
GLAKE_API void glake_set_tag(const char* tag);

/* A context says where a block or an event came from, such as a stack. capture() makes it on the
 * calling thread, with no lock held. drop() is called when nothing refers to it any more.
 * describe() writes it as text, as much as fits, and returns the length of the whole text. drop and
 * describe may be NULL.
 * One set of hooks is in force: the last one set. Contexts that others made stay with their blocks
 * and events. So every context is shown with its owner, which is the `self` of the hooks that made
 * it: give hooks a `self` of their own, and read only contexts whose owner it is. */
typedef struct glake_context_hooks {
  size_t size; /* sizeof(glake_context_hooks), as the caller was compiled */
  void* self;
  void* (*capture)(void* self);
  void (*drop)(void* self, void* context);
  size_t (*describe)(void* self, void* context, char* text, size_t capacity);
} glake_context_hooks;
GLAKE_API int glake_set_context_hooks(const glake_context_hooks* hooks); /* NULL: none */

typedef enum glake_action { /* in the order of torch's TraceEntry::Action */
                            GLAKE_ALLOC = 0,
                            GLAKE_FREE_REQUESTED = 1,
                            GLAKE_FREE_COMPLETED = 2,
                            GLAKE_SEGMENT_ALLOC = 3,
                            GLAKE_SEGMENT_FREE = 4,
                            GLAKE_SEGMENT_MAP = 5,
                            GLAKE_SEGMENT_UNMAP = 6,
                            GLAKE_SNAPSHOT = 7,
                            GLAKE_OOM = 8
} glake_action;

typedef struct glake_event {
  int action, device;
  uint64_t address, bytes; /* GLAKE_OOM: `address` is the bytes that the driver has free */
  void* stream;
  glake_pool pool;
  uint64_t time_ns;          /* since the Unix epoch */
  const char* tag;           /* or NULL */
  void* context;             /* or NULL; valid during the call that shows the event */
  const void* context_owner; /* `self` of the hooks that made it */
} glake_event;

enum { GLAKE_CONTEXT_NEVER = 0, GLAKE_CONTEXT_STATE, GLAKE_CONTEXT_ALLOC, GLAKE_CONTEXT_ALL };

/* Keeps the last `entries` events of each device. `when` says which of them carry a context, as
 * torch's RecordContext does. `clear` != 0 first forgets the events so far. entries = 0 ends the
 * history and forgets all events. */
GLAKE_API int glake_history(size_t entries, int when, int clear);
GLAKE_API int glake_visit_history(int device, void* self,
                                  void (*visit)(void* self, const glake_event* event));
/* Calls `observe` for every event from now on, on the event's thread, with glake's locks held: it
 * must not call glake. There is one observer; NULL removes it. */
GLAKE_API int glake_observe(void* self, void (*observe)(void* self, const glake_event* event));

/* A snapshot. Every physical byte that is held is in exactly one segment that is not paused, and
 * every byte of a segment is in one of its blocks. A stitched block is a segment of its own, at the
 * address that its caller has. */
typedef struct glake_segment_info {
  uint64_t address, bytes;
  void* stream;
  glake_pool pool;
  int device, large, kind; /* kind: GLAKE_STITCHED, ... */
  int paused;              /* 1: it holds no memory now, and its blocks are those of a region */
} glake_segment_info;

enum { GLAKE_INACTIVE = 0, GLAKE_ACTIVE = 1, GLAKE_AWAITING_FREE = 2 };

typedef struct glake_block_record {
  uint64_t address, bytes, requested;
  int state;
  void* stream;
  const char* tag;
  void* context;
  const void* context_owner;
} glake_block_record;

GLAKE_API int glake_visit_memory(int device, void* self,
                                 void (*segment)(void* self, const glake_segment_info* segment),
                                 void (*block)(void* self, const glake_block_record* block));

/* The same for other purposes: it adds no GLAKE_SNAPSHOT event to the history. */
GLAKE_API int glake_visit_blocks(int device, void* self,
                                 void (*segment)(void* self, const glake_segment_info* segment),
                                 void (*block)(void* self, const glake_block_record* block));

/* The context a live block was allocated with, if the hooks with this `self` made it; else NULL.
 * The caller must not drop it. */
GLAKE_API void* glake_block_context(const void* ptr, const void* owner);

/* Writes the findings of the option `debug` (guard, poison, trace) that nobody has read yet, as
 * glake_stats() does: one paragraph for each. Returns 0 if there is none. It waits for no stream.
 * glake_check() waits, and fails with GLAKE_CORRUPTED and the same text. */
GLAKE_API size_t glake_findings(char* text, size_t capacity);

/* Copies over every useful path of the node at once.
 * ------------------------------------------------------------------------------------------- */

enum { GLAKE_HOST = -1, GLAKE_ASK = -2 }; /* in place of a device: ask the driver */

enum {
  GLAKE_COPY_DIRECT = 1,  /* one plain copy */
  GLAKE_COPY_RELAYED = 2, /* for tests: never one plain copy; refused if only that can be made */
  GLAKE_COPY_TRACKED = 4, /* a plain copy, too, has an id of its own, which must be released */
  /* Both ends of each chunk are read again and compared. A chunk that changed on its way is sent
   * again. Each end on a GPU takes two more copies. Such a transfer is never one plain copy. */
  GLAKE_COPY_CHECKSUM = 8,
  /* For addresses that nobody vouches for: every part is checked, however small the copy is.
   * Without this flag a copy below 1 MiB has only its GLAKE_ASK ends checked. */
  GLAKE_COPY_CHECKED = 16,
  GLAKE_COPY_CHECKED_DST = 32, /* the same, of the destination alone */
  GLAKE_COPY_CHECKED_SRC = 64, /* the same, of the source alone */
};

typedef struct glake_copy_part {
  uint64_t dst, src, bytes;
} glake_copy_part;

/* A batch is one transfer; its parts are all between the same two places. */
typedef struct glake_copy_request {
  size_t size; /* sizeof(glake_copy_request), as the caller was compiled */
  const glake_copy_part* parts;
  size_t count;
  int dst_device, src_device; /* a GPU, GLAKE_HOST or GLAKE_ASK */
  void* stream;
  int stream_device, ordered; /* ordered = 0: it is ordered by no stream and begins at once */
  unsigned flags;
  /* A second stream that orders the copy in the same way, such as a stream of the other GPU. */
  void* also_stream;
  int also_device, also_ordered;
} glake_copy_request;

/* Opens the process's transfer engine. `topology` is the text of one platform. It may also be the
 * text of a platforms file; then `name` says which of its platforms to take. With NULL or "" as
 * `topology` the links are unknown, and all copies are plain. */
GLAKE_API int glake_transfer_open(const char* topology, const char* name);
/* Cancels transfers, waits for their copies under way and ends the engine's threads.
 * GLAKE_BUSY_TIMEOUT: a stream has not come to its transfer in time. Call again later. */
GLAKE_API int glake_transfer_close(void);

/* Starts a copy and returns its id at once, or 0 on failure. On a stream it begins after the work
 * enqueued there, and later work there waits for it. Memory must stay valid until the copy is done.
 * The stream must stay valid until the copy has been waited for.
 * A small copy, or one that more paths would not speed up, is one plain copy on the stream. */
GLAKE_API uint64_t glake_copy_start(const glake_copy_request* request);
/* Starts several copies, as glake_copy_start() does, one after the other, and stores their ids. If
 * streams order all of them, and none is of pageable memory or has a checksum, they are planned
 * together, so that none takes links that another one needs more. Those in different streams are
 * then enqueued side by side. If a request is refused by its check, none starts. If one cannot
 * start later, those before it go on. The ids of all that did not start are 0. */
GLAKE_API int glake_copy_start_all(const glake_copy_request* requests, size_t count, uint64_t* ids);
/* GLAKE_OK: it is done. GLAKE_BUSY_TIMEOUT: not yet. GLAKE_COPY_FAILED and GLAKE_COPY_CANCELLED say
 * what state the destination is in. A plain copy that is not tracked is waited for with its stream.
 */
GLAKE_API int glake_copy_wait(uint64_t id, uint64_t timeout_ns);
/* 1 if the copy is done, else 0, or a negative glake_status. GLAKE_INVALID_ARGUMENT: no copy has
 * this id, or it was released. Every function that takes an id can fail so. glake keeps nothing of
 * a plain copy that is not tracked: its id itself holds the device and the stream. So an invented
 * id that names a stream is taken for the id of such a copy. Such a copy that no stream orders is
 * done once its engine is closed, for the next engine too. */
GLAKE_API int glake_copy_done(uint64_t id);
/* 1: the copy is over, and none of its driver copies may still read the source or write the
 * destination. After a failure, driver copies that were given up may still do so for a while. An id
 * that was released gives 1 too. */
GLAKE_API int glake_copy_settled(uint64_t id); /* 1, 0, or a negative glake_status */
/* Makes later work on `stream` wait for the copy, however the copy ends. */
GLAKE_API int glake_copy_stream_wait(uint64_t id, int device, void* stream);
/* Cancels the copy: it starts no more chunks. Chunks under way still arrive, and a plain copy goes
 * on. */
GLAKE_API int glake_copy_cancel(uint64_t id);
/* Forgets the id; the copy goes on. Every id must be released, except that of an untracked plain
 * copy. */
GLAKE_API int glake_copy_release(uint64_t id);
/* Stores how many bytes have arrived, and the bytes of the whole copy. Both are 0 for a plain copy.
 */
GLAKE_API int glake_copy_progress(uint64_t id, uint64_t* done, uint64_t* total);
/* Writes JSON, as glake_stats() does: bytes and time of the copy, bytes and chunks of each path,
 * refusals, and chunks that were sent again. */
GLAKE_API size_t glake_copy_result(uint64_t id, char* json, size_t capacity);

/* A path of a copy, and the bytes that have arrived over it. */
typedef struct glake_copy_path {
  const char* name; /* "cpu>cuda:1>cuda:0"; valid during the call that shows the path */
  uint64_t bytes;
  int relayed; /* 1: over a relay */
} glake_copy_path;
/* Calls `visit` for each path of the copy. A plain copy has none. */
GLAKE_API int glake_copy_visit_paths(uint64_t id, void* self,
                                     void (*visit)(void* self, const glake_copy_path* path));
/* Writes the engine's statistics as JSON, as glake_stats() does: the copies and bytes so far, the
 * paths and their states. */
GLAKE_API size_t glake_transfer_stats(char* json, size_t capacity);
/* Writes JSON, as glake_stats() does, on how a copy of `bytes` would go: its paths with their rates
 * (GB/s), and the paths that are refused. `node` is the socket of the host end, or -1 for memory
 * spread over all sockets. */
GLAKE_API size_t glake_transfer_explain(int dst_device, int src_device, int node, uint64_t bytes,
                                        char* json, size_t capacity);

/* A plain copy between two places: a GPU (>= 0), or GLAKE_HOST and the socket. */
typedef struct glake_timed_copy {
  int dst_device, dst_node, src_device, src_node;
} glake_timed_copy;
/* Times copies, for the probe of a topology. `count` copies of `bytes` run at once, between buffers
 * of the engine. Each copy has a stream of its own, and is made `repeats` times. There may be at
 * most 64 copies and 64 repeats, of at most 32 MiB. ns[i * repeats + r] is the time from the start
 * of copy i to the end of its repeat r. GLAKE_COPY_REFUSED: there is no host memory on that socket.
 * The buffers are 32 MiB of a GPU and 32 MiB of pinned host memory for each copy. They are kept for
 * the next call. count = 0, or the engine's end, gives them back. */
GLAKE_API int glake_time_copies(const glake_timed_copy* copies, size_t count, uint64_t bytes,
                                int repeats, uint64_t* ns);
/* Sets what other processes of the node lend to this one (docs/relayd.md). `relays` has a bit for
 * each GPU that may relay; GPUs that this process copies to or from always may. At first all
 * GPUs may relay. `factors` holds a number from 0 to 1 for each limit of the topology: the part of
 * it that this process has. The edges come first, in their order. Without factors the process has
 * all of every limit. Transfers under way are planned again. */
GLAKE_API int glake_transfer_lend(uint32_t relays, const double* factors, size_t count);
/* Writes the demands as JSON, as glake_stats() does: the GPUs in use, and the ends (GPU, socket,
 * GPU, socket) of all transfers under way. */
GLAKE_API size_t glake_transfer_demands(char* json, size_t capacity);
/* An eventfd that becomes readable when the demands change. The engine owns it. A negative
 * glake_status on failure. */
GLAKE_API int glake_transfer_demands_event(void);

/* Lets copies relay over GPUs of the node that this process's driver does not show. The relay
 * service that listens at `path` copies on these GPUs (docs/relayd.md). `gpus` holds the numbers of
 * the GPUs in this process's topology, where they come after those that the driver shows. `there`
 * holds the numbers of the same GPUs at the service. They relay only if glake_transfer_lend() lends
 * them too. */
GLAKE_API int glake_transfer_open_relays(const char* path, const int* gpus, const int* there,
                                         size_t count);
/* Pinned host memory that such relays read and write in place. It stays until glake_shared_free()
 * or the engine's end. NULL on failure. No copy of it may be under way when it is freed. */
GLAKE_API void* glake_shared_alloc(size_t bytes);
GLAKE_API int glake_shared_free(void* ptr);
/* Makes this process the relay service, which must see all GPUs. It listens at `path` for this
 * user's processes until glake_relay_close(). `driver` is as in GLAKE_DRIVER. A process can serve
 * only once at a time. */
GLAKE_API int glake_relay_open(const char* driver, const char* path);
GLAKE_API int glake_relay_close(void);
/* Waits until the service is closed. GLAKE_DRIVER_ERROR: an error has destroyed a GPU's context.
 * Then the service has ended, and a new process must serve instead. */
GLAKE_API int glake_relay_wait(void);

/* Pins host memory in pieces. With `background` != 0 a thread pins it. Until a part is pinned, it
 * is copied like pageable memory. The engine's end unpins the memory. */
GLAKE_API int glake_register_host(void* base, size_t bytes, int background);
/* GLAKE_OK: all is pinned. GLAKE_BUSY_TIMEOUT: not yet. Any other status: why pinning failed. */
GLAKE_API int glake_register_host_wait(void* base, uint64_t timeout_ns);
GLAKE_API int glake_register_host_progress(void* base, uint64_t* pinned, uint64_t* total);
/* Unpins the memory. No copy of it may be under way. */
GLAKE_API int glake_unregister_host(void* base);

/* Tells whose memory is at `ptr`: `device` is a GPU or GLAKE_HOST, and `pinned` whether the driver
 * knows the memory. GLAKE_REGION_PAUSED for memory of a paused region. */
GLAKE_API int glake_place_of(const void* ptr, int* device, int* pinned);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_GLAKE_H */
