/* glake from plain C: no C++, no Python, no torch. Threads with and without a context, a forked
 * child, stamps in real memory from four threads. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glake/glake.h"
#include "simcuda/simcuda.h"

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      char why_[1024] = "";                                                                    \
      int code_ = glake_last_error(why_, sizeof why_);                                         \
      fprintf(stderr, "%s:%d: not true: %s (%d: %s)\n", __FILE__, __LINE__, #condition, code_, \
              why_);                                                                           \
      fflush(NULL);                                                                            \
      _exit(1);                                                                                \
    }                                                                                          \
  } while (0)

enum { kThreads = 4, kOperations = 20000, kSlots = 24 };

static long long stat_of(const char* key) {
  static char text[16384];
  size_t length = glake_stats(0, text, sizeof text);
  CHECK(length > 0 && length < sizeof text);
  char quoted[80];
  snprintf(quoted, sizeof quoted, "\"%s\": ", key);
  const char* at = strstr(text, quoted);
  CHECK(at != NULL);
  return atoll(at + strlen(quoted));
}

static long long ledger_of(const char* key) {
  char text[2048];
  CHECK(simcuda_ledger(0, text, sizeof text) < sizeof text);
  const char* at = strstr(text, key);
  CHECK(at != NULL);
  return atoll(strchr(at, ':') + 1);
}

/* Simulated device memory is host memory too. A stamp at both ends of each block tells whether
 * anybody else wrote there. */
static void stamp(unsigned char* block, size_t bytes, unsigned value) {
  size_t n = bytes < 256 ? bytes : 256;
  memset(block, (int)value, n);
  memset(block + bytes - n, (int)value, n);
}

static void check_stamp(const unsigned char* block, size_t bytes, unsigned value) {
  size_t n = bytes < 256 ? bytes : 256;
  for (size_t i = 0; i < n; ++i) {
    CHECK(block[i] == (unsigned char)value && block[bytes - 1 - i] == (unsigned char)value);
  }
}

struct Worker {
  pthread_t thread;
  unsigned seed;
  long refusals;
};

static void* work(void* argument) {
  struct Worker* me = argument;
  unsigned char* block[kSlots] = {0};
  size_t size[kSlots];
  unsigned state = me->seed;
  for (int i = 0; i < kOperations; ++i) {
    int s = (int)((unsigned)rand_r(&state) % kSlots);
    if (block[s] != NULL) {
      check_stamp(block[s], size[s], me->seed * 31 + (unsigned)s);
      CHECK(glake_free(block[s]) == GLAKE_OK);
      block[s] = NULL;
      continue;
    }
    unsigned kind = (unsigned)rand_r(&state) % 10;
    size_t most = kind < 6 ? 8192 : kind < 9 ? 900000 : 5000000;
    size[s] = (size_t)rand_r(&state) % most + 1;
    block[s] = glake_malloc(size[s], 0, NULL);
    if (block[s] == NULL) {
      CHECK(glake_last_error(NULL, 0) == GLAKE_OUT_OF_MEMORY);
      ++me->refusals;
      continue;
    }
    stamp(block[s], size[s], me->seed * 31 + (unsigned)s);
    /* Errors are a thread's own. */
    if (i % 512 == 0) {
      CHECK(glake_free(block[s] + 1) == GLAKE_INVALID_POINTER);
      CHECK(glake_last_error(NULL, 0) == GLAKE_INVALID_POINTER);
    }
  }
  for (int s = 0; s < kSlots; ++s) {
    if (block[s] == NULL) continue;
    check_stamp(block[s], size[s], me->seed * 31 + (unsigned)s);
    CHECK(glake_free(block[s]) == GLAKE_OK);
  }
  return NULL;
}

static void threads_share_a_device(void) {
  struct Worker workers[kThreads];
  long refusals = 0;
  for (unsigned i = 0; i < kThreads; ++i) {
    workers[i].seed = i + 1;
    workers[i].refusals = 0;
    CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < kThreads; ++i) {
    CHECK(pthread_join(workers[i].thread, NULL) == 0);
    refusals += workers[i].refusals;
  }
  CHECK(refusals < kThreads * kOperations / 4);
  /* The threads have gone, and their caches with them. */
  CHECK(glake_check(0) == GLAKE_OK);
  CHECK(stat_of("allocation.all.current") == 0 && stat_of("glake.live_blocks") == 0);
  CHECK(stat_of("glake.free_bytes") == stat_of("glake.physical_bytes"));
  CHECK(stat_of("allocation.all.allocated") == stat_of("allocation.all.freed"));
}

static void* leave_cached(void* unused) {
  void* block[6];
  for (int i = 0; i < 6; ++i) CHECK((block[i] = glake_malloc(1000, 0, NULL)) != NULL);
  for (int i = 0; i < 6; ++i) CHECK(glake_free(block[i]) == GLAKE_OK);
  CHECK(stat_of("glake.live_blocks") == 6); /* kept in this thread's cache */
  return unused;
}

static void a_thread_leaves_its_cache(void) {
  pthread_t thread;
  CHECK(stat_of("glake.live_blocks") == 0);
  CHECK(pthread_create(&thread, NULL, leave_cached, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(stat_of("glake.live_blocks") == 0);
}

static void* fresh_error(void* unused) {
  CHECK(glake_last_error(NULL, 0) == GLAKE_OK);
  CHECK(glake_malloc(1, 77, NULL) == NULL);
  CHECK(glake_last_error(NULL, 0) == GLAKE_INVALID_DEVICE);
  return unused;
}

static void errors_are_per_thread(void) {
  pthread_t thread;
  CHECK(glake_malloc(0, 0, NULL) == NULL);
  CHECK(pthread_create(&thread, NULL, fresh_error, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(glake_last_error(NULL, 0) == GLAKE_INVALID_ARGUMENT);
}

static void a_forked_child_is_told(void) {
  char text[1024];
  void* block = glake_malloc(3000000, 0, NULL);
  CHECK(block != NULL);
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(30);
    CHECK(glake_malloc(100, 0, NULL) == NULL &&
          glake_last_error(text, sizeof text) == GLAKE_FORKED);
    CHECK(strstr(text, "fork") != NULL);
    CHECK(glake_free(block) == GLAKE_FORKED);
    CHECK(glake_record_stream(block, NULL) == GLAKE_FORKED);
    CHECK(glake_empty_cache(0) == GLAKE_FORKED && glake_check(0) == GLAKE_FORKED);
    CHECK(glake_shutdown() == GLAKE_FORKED && glake_device_count() == -GLAKE_FORKED);
    CHECK(glake_configure("limit", "none") == GLAKE_FORKED && glake_stats(0, NULL, 0) == 0);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(glake_free(block) == GLAKE_OK && glake_check(0) == GLAKE_OK);
}

static void a_block_tells_of_itself(void) {
  size_t bytes = 0;
  int device = -1;
  void* stream = &bytes;
  void* block = glake_malloc(12345, 0, NULL);
  CHECK(glake_block_info(block, &bytes, &device, &stream) == GLAKE_OK);
  CHECK(bytes == 12345 && device == 0 && stream == NULL);
  CHECK(glake_block_info(block, NULL, NULL, NULL) == GLAKE_OK);
  CHECK(glake_free(block) == GLAKE_OK);
  char version[32] = "";
  snprintf(version, sizeof version, "%d.%d.%d", GLAKE_VERSION_MAJOR, GLAKE_VERSION_MINOR,
           GLAKE_VERSION_PATCH);
  CHECK(strcmp(glake_version(), version) == 0);
  CHECK(strstr(glake_driver_path(), "simcuda") != NULL);
}

static void an_option_tells_its_value(void) {
  char value[64] = "";
  CHECK(glake_option("LIMIT", value, sizeof value) == 8 && strcmp(value, "41943040") == 0);
  CHECK(glake_option("trace", value, sizeof value) == 0 && value[0] == '\0'); /* none is set */
  CHECK(glake_last_error(NULL, 0) == GLAKE_OK);
  CHECK(glake_option("policy", NULL, 0) == (int64_t)strlen("balanced"));
  CHECK(glake_option("policy", value, 4) == (int64_t)strlen("balanced"));
  CHECK(strcmp(value, "bal") == 0);
  CHECK(glake_option("no_such", value, sizeof value) == -GLAKE_UNKNOWN_OPTION);
  CHECK(glake_last_error(value, sizeof value) == GLAKE_UNKNOWN_OPTION);
  CHECK(strstr(value, "no_such") != NULL);
  CHECK(glake_option(NULL, value, sizeof value) == -GLAKE_INVALID_ARGUMENT);
}

static void pinned_memory_is_counted(void) {
  glake_host_stats_values held;
  void* block = glake_host_malloc(5000);
  CHECK(block != NULL && glake_get_host_stats(&held, sizeof held) == GLAKE_OK);
  CHECK(held.live_blocks == 1 && held.blocks == 1 && held.reserved_bytes.current == 8192);
  CHECK(glake_host_free(block) == GLAKE_OK);
  CHECK(glake_get_host_stats(&held, sizeof held) == GLAKE_OK);
  CHECK(held.live_blocks == 0 && held.blocks == 1);
  CHECK(glake_get_host_stats(NULL, sizeof held) == GLAKE_INVALID_ARGUMENT);
}

int main(void) {
  CHECK(simcuda_configure("memory", "128MiB") == 0 && simcuda_configure("devices", "1") == 0);
  CHECK(glake_configure("driver", "sim") == GLAKE_OK);
  CHECK(glake_configure("limit", "40MiB") == GLAKE_OK);
  a_thread_leaves_its_cache();
  a_block_tells_of_itself();
  an_option_tells_its_value();
  pinned_memory_is_counted();
  errors_are_per_thread();
  a_forked_child_is_told();
  threads_share_a_device();
  CHECK(glake_shutdown() == GLAKE_OK);
  CHECK(ledger_of("reservations") == 0 && ledger_of("handles") == 0);
  CHECK(ledger_of("mapped_granules") == 0 && ledger_of("events") == 0);
  CHECK(ledger_of("context_refs") == 0);
  return 0;
}
