/* glake's C interface: the stitching allocator with no Python and no torch.
 *
 * Every function may be called from any thread, with or without a current CUDA context. None of
 * them throws, exits or prints. A call that fails returns NULL or a non-zero glake_status and
 * leaves the code and a sentence for glake_last_error() on the calling thread; a call that
 * succeeds clears them. Configure first (GLAKE_* variables or glake_configure()), then allocate:
 * the driver is opened at the first use of a device, never at load.
 */
#ifndef GLAKE_CAPI_H
#define GLAKE_CAPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLAKE_API __attribute__((visibility("default")))

typedef enum glake_status {
  GLAKE_OK = 0,
  GLAKE_INVALID_ARGUMENT = 1, /* a size, stream or buffer no call accepts */
  GLAKE_INVALID_DEVICE = 2,   /* no such device */
  GLAKE_INVALID_POINTER = 3,  /* foreign, interior or already freed pointer */
  GLAKE_OUT_OF_MEMORY = 4,    /* the text says who holds what and what would help */
  GLAKE_UNKNOWN_OPTION = 5,   /* glake_configure() or a GLAKE_* variable glake does not know */
  GLAKE_INVALID_OPTION = 6,   /* a known option with a value it does not take, or set too late */
  GLAKE_DRIVER_ABSENT = 7,    /* the driver library or one of its symbols is missing */
  GLAKE_DRIVER_ERROR = 8,     /* the driver refused a call; the books are as before it */
  GLAKE_FORKED = 9,           /* called in a forked child: CUDA does not survive fork */
  GLAKE_INTERNAL = 10         /* a broken invariant: please report it */
} glake_status;

/* Device memory, at least `bytes` long, 512-byte aligned, usable at once by work on `stream` (a
 * CUstream; NULL is the default stream). NULL on failure, and for bytes = 0. */
GLAKE_API void* glake_malloc(size_t bytes, int device, void* stream);

/* Gives a block back, in the order of the stream it was allocated on: work already enqueued there
 * (and on every recorded stream) may still use it. NULL is accepted and does nothing. */
GLAKE_API int glake_free(void* ptr);

/* Says that work on `stream` uses the block, so that a later free waits for that work too. */
GLAKE_API int glake_record_stream(void* ptr, void* stream);

/* Returns to the driver every granule no block holds, after the work that used it. */
GLAKE_API int glake_empty_cache(int device);

/* Statistics as one flat JSON object. Returns the text's length without the final NUL, whatever
 * the capacity; writes as much as fits. 0 on failure. */
GLAKE_API size_t glake_stats(int device, char* json, size_t capacity);

/* Clears the peaks, as torch.cuda.reset_peak_memory_stats does. */
GLAKE_API int glake_reset_peak_stats(int device);

/* The calling thread's last error: its glake_status, 0 if the last call succeeded. */
GLAKE_API int glake_last_error(char* text, size_t capacity);

/* Sets an option by its name without GLAKE_, in any case ("policy", "compact"). Options read at
 * first use of a device must be set before it. */
GLAKE_API int glake_configure(const char* key, const char* value);

/* The options, their defaults, present values and meanings as a JSON array; as glake_stats. */
GLAKE_API size_t glake_options(char* json, size_t capacity);

/* Size in bytes the caller asked for and the device of the block at `ptr`. Either may be NULL. */
GLAKE_API int glake_block_info(void* ptr, size_t* bytes, int* device, void** stream);

/* How many devices the driver has; negative glake_status on failure. Opens the driver. */
GLAKE_API int glake_device_count(void);

/* Lets work on `peer` reach all of `device`'s glake memory, present and future. */
GLAKE_API int glake_enable_peer_access(int device, int peer);

/* Starts the next step in the recorded trace (option `trace`) and in the statistics. */
GLAKE_API int glake_mark_step(int device);

/* Starts writing a trace of every later allocation and free (docs/trace-format.md), gzip-less
 * text; a NULL path ends and flushes it. Also set by the option `trace`. */
GLAKE_API int glake_trace(const char* path);

/* Checks every invariant of the device's books: GLAKE_OK, or GLAKE_INTERNAL with what is broken.
 * Slow; for tests. */
GLAKE_API int glake_check(int device);

/* Gives every granule, mapping, reservation and event back and forgets the driver. Refused
 * (GLAKE_INVALID_ARGUMENT) while blocks are live. For tests and orderly shutdown: a process that
 * merely exits needs no call and makes none. */
GLAKE_API int glake_shutdown(void);

/* Path of the driver library in use, or "" before first use. Valid until glake_shutdown. */
GLAKE_API const char* glake_driver_path(void);

GLAKE_API const char* glake_version(void);

#ifdef __cplusplus
}
#endif
#endif /* GLAKE_CAPI_H */
