/* A CUDA program without a kernel: it copies, and checks every byte. One argument: what it tries.
 * It knows nothing of glake, and must print the same with and without it. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)
#define BYTES (32 * MIB)
#define PIECE MIB /* so small that glake never carries it */

#define CHECK(what)                                                        \
  do {                                                                     \
    if (!(what)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what); \
      _exit(1);                                                            \
    }                                                                      \
  } while (0)
#define CU(call)                                                                   \
  do {                                                                             \
    CUresult got = (call);                                                         \
    if (got != CUDA_SUCCESS) {                                                     \
      fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, (int)got); \
      _exit(1);                                                                    \
    }                                                                              \
  } while (0)

static void fill(unsigned char* at, unsigned seed) {
  uint64_t* words = (uint64_t*)at;
  for (size_t i = 0; i < BYTES / 8; ++i) words[i] = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
}
static int holds(const unsigned char* at, unsigned seed) {
  const uint64_t* words = (const uint64_t*)at;
  for (size_t i = 0; i < BYTES / 8; ++i) {
    if (words[i] != (i + 1) * 0x9e3779b97f4a7c15ull + seed) return 0;
  }
  return 1;
}

static unsigned char* pinned(void) {
  void* memory = NULL;
  CU(cu.cuMemHostAlloc(&memory, BYTES, 0));
  return memory;
}
static CUdeviceptr device(void) {
  CUdeviceptr memory = 0;
  CU(cu.cuMemAlloc(&memory, BYTES));
  return memory;
}
static CUstream stream(unsigned flags) {
  CUstream made = NULL;
  CU(cu.cuStreamCreate(&made, flags));
  return made;
}
/* Whether device memory has the bytes that `seed` stands for. They are read by the driver's own
   copies. */
static int device_holds(CUdeviceptr at, unsigned seed) {
  unsigned char* back = malloc(BYTES);
  for (size_t i = 0; i < BYTES; i += PIECE) CU(cu.cuMemcpyDtoH(back + i, at + i, PIECE));
  const int same = holds(back, seed);
  free(back);
  return same;
}

static void use(int number) {
  CUdevice gpu;
  CUcontext context;
  CU(cu.cuDeviceGet(&gpu, number));
  CU(cu.cuDevicePrimaryCtxRetain(&context, gpu));
  CU(cu.cuCtxSetCurrent(context));
}

/* Each of memset, copy, memset and copy back sees the result of the one before it. */
static void chain(CUstream s, unsigned seed) {
  unsigned char *from = pinned(), *to = pinned(), *again = pinned();
  CUdeviceptr a = device();
  fill(from, seed);
  CU(cu.cuMemsetD8Async(a, 0x11, BYTES, s));
  CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
  CU(cu.cuMemsetD8Async(a, 0x22, BYTES, s));
  CU(cu.cuMemcpyAsync((CUdeviceptr)again, a, BYTES, s));
  CU(cu.cuMemcpyAsync(a, (CUdeviceptr)from, BYTES, s));
  CU(cu.cuStreamSynchronize(s));
  CHECK(holds(to, seed));
  for (size_t i = 0; i < BYTES; ++i) CHECK(again[i] == 0x22);
  CHECK(device_holds(a, seed));
  CU(cu.cuMemFree(a));
  CU(cu.cuMemFreeHost(from));
  CU(cu.cuMemFreeHost(to));
  CU(cu.cuMemFreeHost(again));
}

static void chains(void) {
  chain(stream(CU_STREAM_NON_BLOCKING), 1);
  chain(stream(CU_STREAM_DEFAULT), 2);
}

/* Another stream, the host and a query see an event that was recorded behind a carried copy. */
static void events(void) {
  CUstream s = stream(CU_STREAM_NON_BLOCKING), other = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned();
  CUdeviceptr a = device();
  CUevent copied, done;
  CU(cu.cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
  CU(cu.cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  fill(from, 3);
  CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
  CU(cu.cuEventRecord(copied, s));
  CU(cu.cuStreamWaitEvent(other, copied, 0));
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, other));
  CU(cu.cuEventRecord(done, other));
  CU(cu.cuEventSynchronize(done));
  CHECK(holds(to, 3));
  memset(to, 0, BYTES);
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
  CUresult state;
  while ((state = cu.cuStreamQuery(s)) == CUDA_ERROR_NOT_READY) usleep(100);
  CU(state);
  CHECK(holds(to, 3));
  memset(to, 0, BYTES);
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
  CU(cu.cuEventRecord(done, s));
  while ((state = cu.cuEventQuery(done)) == CUDA_ERROR_NOT_READY) usleep(100);
  CU(state);
  CHECK(holds(to, 3));
  memset(to, 0, BYTES);
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, other));
  CU(cu.cuCtxSynchronize());
  CHECK(holds(to, 3));
}

/* The legacy stream waits for blocking streams, and these wait for it. */
static void legacy(void) {
  CUstream s = stream(CU_STREAM_DEFAULT), other = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned(), *held = pinned();
  CUdeviceptr a = device(), b = device(), flag = 0;
  CU(cu.cuMemAlloc(&flag, 4));
  CU(cu.cuMemsetD8Async(flag, 0, 4, other));
  CU(cu.cuStreamSynchronize(other));
  for (unsigned round = 0; round < 3; ++round) {
    CUstream null = round == 0 ? NULL : CU_STREAM_LEGACY;
    memset(held, 0x55, BYTES);
    fill(from, 4 + round);
    /* A blocking stream that does not go on until told so: the legacy stream's copy must not
     * either, though nothing of its own is before it. */
    CU(cu.cuStreamWaitValue32(s, flag, round + 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU(cu.cuMemcpyDtoHAsync(held, b, BYTES, s));
    CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, null));
    CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
    usleep(20000);
    for (size_t i = 0; i < BYTES; ++i) CHECK(held[i] == 0x55);
    CU(cu.cuStreamWriteValue32(other, flag, round + 1, 0));
    CU(cu.cuStreamSynchronize(s));
    CHECK(holds(to, 4 + round));
    CU(cu.cuMemsetD8Async(b, 0x66, BYTES, s));
    CU(cu.cuMemcpyDtoHAsync(to, b, BYTES, null));
    CU(cu.cuStreamSynchronize(null));
    for (size_t i = 0; i < BYTES; ++i) CHECK(to[i] == 0x66);
  }
  fill(from, 9);
  CU(cu.cuMemcpyHtoD(a, from, BYTES));
  CU(cu.cuMemcpyDtoH(to, a, BYTES));
  CHECK(holds(to, 9));
}

/* Memory is freed and streams are destroyed right after the copy was begun. */
static void frees(void) {
  unsigned char *from = pinned(), *to = pinned();
  for (int round = 0; round < 4; ++round) {
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a = device();
    fill(from, 20 + round);
    CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
    CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
    CU(cu.cuStreamDestroy(s)); /* its work goes on */
    CU(cu.cuMemFree(a));       /* and is done with the memory when this returns */
    CHECK(holds(to, 20 + round));
    unsigned char* mine =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU(cu.cuMemHostRegister(mine, BYTES, 0));
    a = device();
    s = stream(CU_STREAM_NON_BLOCKING);
    CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
    CU(cu.cuMemcpyDtoHAsync(mine, a, BYTES, s));
    CU(cu.cuMemHostUnregister(mine));
    CHECK(holds(mine, 20 + round));
    munmap(mine, BYTES);
    unsigned char* lost = pinned();
    fill(lost, 40 + round);
    CU(cu.cuMemcpyHtoDAsync(a, lost, BYTES, s));
    CU(cu.cuMemFreeHost(lost));
    CHECK(device_holds(a, 40 + round));
    CU(cu.cuMemFree(a));
  }
}

/* Copies that glake must leave to the driver. */
static void left(void) {
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned(), *pageable = malloc(BYTES);
  CUdeviceptr a = device(), pool = 0, managed = 0;
  fill(pageable, 60);
  CU(cu.cuMemcpyHtoDAsync(a, pageable, BYTES, s));
  memset(pageable, 0, BYTES); /* the driver read it before the call returned */
  CU(cu.cuStreamSynchronize(s));
  CHECK(device_holds(a, 60));
  fill(from, 61);
  CU(cu.cuMemAllocAsync(&pool, BYTES, s));
  CU(cu.cuMemcpyHtoDAsync(pool, from, BYTES, s));
  CU(cu.cuMemcpyDtoHAsync(to, pool, BYTES, s));
  CU(cu.cuMemFreeAsync(pool, s));
  CU(cu.cuStreamSynchronize(s));
  CHECK(holds(to, 61));
  CU(cu.cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
  CU(cu.cuMemcpyHtoDAsync(managed, from, BYTES, s));
  CU(cu.cuStreamSynchronize(s));
  CHECK(device_holds(managed, 61));
  CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, CU_STREAM_PER_THREAD));
  CU(cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
  CHECK(device_holds(a, 61));
  for (size_t i = 0; i < BYTES; i += PIECE) CU(cu.cuMemcpyHtoDAsync(a + i, from + i, PIECE, s));
  CU(cu.cuStreamSynchronize(s));
  /* Half of it is pinned: the driver refuses such a copy, or reads all of it before it returns. */
  unsigned char* half =
      mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CU(cu.cuMemHostRegister(half, BYTES / 2, 0));
  printf("half pinned: %d\n", (int)cu.cuMemcpyHtoDAsync(a, half, BYTES, s));
  CU(cu.cuStreamSynchronize(s));
  use(1);
  CUdeviceptr b = device();
  use(0);
  fill(from, 62);
  CU(cu.cuMemcpyHtoDAsync(b, from, BYTES, s));
  CU(cu.cuStreamSynchronize(s));
  CHECK(device_holds(b, 62));
}

/* A copy is captured in a graph, which is then launched with other contents. */
static void graphs(void) {
  CUstream s = stream(CU_STREAM_NON_BLOCKING), other = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned();
  CUdeviceptr a = device(), b = device();
  CUgraph graph;
  CUgraphExec ready;
  fill(from, 70);
  CU(cu.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
  CU(cu.cuMemcpyHtoDAsync(b, from, BYTES, other)); /* it must not break the capture beside it */
  CU(cu.cuStreamEndCapture(s, &graph));
  CU(cu.cuGraphInstantiate(&ready, graph, 0));
  for (unsigned round = 0; round < 3; ++round) {
    CU(cu.cuStreamSynchronize(other));
    fill(from, 71 + round);
    memset(to, 0, BYTES);
    CU(cu.cuGraphLaunch(ready, s));
    CU(cu.cuStreamSynchronize(s));
    CHECK(holds(to, 71 + round));
  }
  CHECK(device_holds(b, 70));
}

static void* one_thread(void* number) {
  use((int)(intptr_t)number % 2);
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  for (unsigned round = 0; round < 2; ++round)
    chain(s, 80 + 10 * (unsigned)(intptr_t)number + round);
  return NULL;
}

/* Threads copy in streams of their own, while others free memory and allocate host memory. */
static void threads(void) {
  pthread_t all[4];
  for (intptr_t i = 0; i < 4; ++i) CHECK(pthread_create(&all[i], NULL, one_thread, (void*)i) == 0);
  for (int i = 0; i < 4; ++i) pthread_join(all[i], NULL);
}

/* CUDA does not survive fork: the child is told so by the driver, and by nobody else. */
static void forks(void) {
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  chain(s, 90);
  unsigned char* from = pinned();
  CUdeviceptr a = device();
  CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
  pid_t child = fork();
  if (child == 0) {
    const CUresult got = cu.cuMemcpyHtoDAsync(a, from, BYTES, s);
    _exit(got == CUDA_SUCCESS ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CU(cu.cuStreamSynchronize(s));
}

/* The program makes a context of its own. */
static void contexts(void) {
  CUcontext own;
  CUdevice gpu;
  CU(cu.cuDeviceGet(&gpu, 0));
  CU(cu.cuCtxCreateOld(&own, 0, gpu));
  CU(cu.cuCtxSetCurrent(own));
  chain(stream(CU_STREAM_NON_BLOCKING), 95);
}

static int active(CUdevice gpu) {
  unsigned flags = 0;
  int is = -1;
  CU(cu.cuDevicePrimaryCtxGetState(gpu, &flags, &is));
  return is;
}

/* A primary context ends with the program's last reference, or by a reset, also while a copy runs.
   The program then takes it anew. */
static void primary(void) {
  for (unsigned round = 0; round < 4; ++round) {
    use(0);
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    unsigned char *from = pinned(), *to = pinned();
    CUdeviceptr a = device();
    fill(from, 110 + round);
    CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
    CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, NULL));
    CU(cu.cuStreamSynchronize(s));
    CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
    if (round % 2 == 0) CU(cu.cuStreamSynchronize(s));
    if (round % 2 == 0) CHECK(holds(to, 110 + round));
    if (round >= 2) CU(cu.cuDevicePrimaryCtxReset(0));
    printf("active %d", active(0));
    /* The main function has taken one reference, too. */
    for (int i = 0; i < (round == 0 ? 3 : 2); ++i) {
      printf(" released %d", (int)cu.cuDevicePrimaryCtxRelease(0));
    }
    printf(" active %d copied %d\n", active(0), (int)cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
  }
}

/* Each GPU has a legacy stream. Waiting for one of them does not wait for the other. */
static void two_gpus(void) {
  CUstream s = stream(CU_STREAM_DEFAULT), other = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned();
  CUdeviceptr a = device(), flag = 0;
  CU(cu.cuMemAlloc(&flag, 4));
  CU(cu.cuMemsetD8Async(flag, 0, 4, other));
  CU(cu.cuStreamSynchronize(other));
  fill(from, 120);
  CU(cu.cuStreamWaitValue32(s, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, NULL));
  use(1);
  CUdeviceptr b = device();
  CU(cu.cuMemcpyHtoDAsync(b, from, BYTES, NULL));
  CU(cu.cuStreamSynchronize(NULL));
  CU(cu.cuStreamQuery(CU_STREAM_LEGACY));
  CHECK(device_holds(b, 120));
  use(0);
  CHECK(cu.cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
  CU(cu.cuStreamWriteValue32(other, flag, 1, 0));
  CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, NULL));
  CU(cu.cuStreamSynchronize(NULL));
  CHECK(holds(to, 120));
}

/* Memory that is mapped in pieces. A middle one comes to be of another GPU. */
static void mapped(void) {
  enum { kPieces = 4 };
  const size_t size = BYTES / kPieces;
  CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  const CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned();
  CUdeviceptr a = 0;
  CU(cu.cuMemAddressReserve(&a, BYTES, 0, 0, 0));
  for (int i = 0; i < kPieces; ++i) {
    CUmemGenericAllocationHandle piece;
    CU(cu.cuMemCreate(&piece, size, &kind, 0));
    CU(cu.cuMemMap(a + i * size, size, 0, piece, 0));
  }
  CU(cu.cuMemSetAccess(a, BYTES, &access, 1));
  for (unsigned round = 0; round < 2; ++round) {
    fill(from, 140 + round);
    memset(to, 0, BYTES);
    CU(cu.cuMemcpyHtoDAsync(a, from, BYTES, s));
    CU(cu.cuMemcpyDtoHAsync(to, a, BYTES, s));
    CU(cu.cuStreamSynchronize(s));
    CHECK(holds(to, 140 + round));
    if (round == 1) return;
    CUmemGenericAllocationHandle piece;
    kind.location.id = 1;
    CU(cu.cuMemUnmap(a + size, size));
    CU(cu.cuMemCreate(&piece, size, &kind, 0));
    CU(cu.cuMemMap(a + size, size, 0, piece, 0));
    CU(cu.cuMemSetAccess(a, BYTES, &access, 1));
  }
}

/* Code is loaded behind copies that are carried. */
static void libraries(void) {
  static const char kCode[] = ".version 7.0\n.target sm_70\n.visible .entry nothing() { ret; }\n";
  char path[] = "/tmp/glake-code-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0 && write(file, kCode, sizeof kCode - 1) == (ssize_t)(sizeof kCode - 1));
  close(file);
  unsigned char* host = pinned();
  const CUdeviceptr at = device();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUlibrary library = NULL;
  CUkernel kernel = NULL;
  CUfunction function = NULL;
  CUmodule module = NULL;
  for (unsigned use = 0; use < 3; ++use) {
    fill(host, use);
    CU(cu.cuMemcpyHtoDAsync(at, host, BYTES, s));
    if (use == 0) CU(cu.cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    if (use == 1) CU(cu.cuLibraryGetModule(&module, library));
    if (use == 2) CU(cu.cuLibraryGetKernel(&kernel, library, "nothing"));
    if (use == 2) CU(cu.cuKernelGetFunction(&function, kernel));
    CU(cu.cuStreamSynchronize(s));
    CHECK(device_holds(at, use));
  }
  CHECK(module != NULL && function != NULL);
  CU(cu.cuLibraryUnload(library));
  unlink(path);
}

static CUdeviceptr left_device;
static unsigned char* left_host;
static CUstream left_stream;
static void clean_up(void) {
  const CUresult waited = cu.cuStreamSynchronize(left_stream);
  printf("waited %d\n", (int)waited);
  if (waited != CUDA_SUCCESS) return;
  CHECK(holds(left_host, 130));
  CU(cu.cuMemFree(left_device));
  CU(cu.cuMemFreeHost(left_host));
  CU(cu.cuStreamDestroy(left_stream));
}

/* A handler that was set before all others waits for copies and frees memory at the exit. */
static void exits(void) {
  unsigned char* from = pinned();
  left_host = pinned();
  left_device = device();
  left_stream = stream(CU_STREAM_NON_BLOCKING);
  fill(from, 130);
  for (int i = 0; i < 4; ++i) {
    CU(cu.cuMemcpyHtoDAsync(left_device, from, BYTES, left_stream));
    CU(cu.cuMemcpyDtoHAsync(left_host, left_device, BYTES, left_stream));
  }
}

static void* copy_for_ever(void* memory) {
  use(0);
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr a = device();
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS) {
    result = cu.cuMemcpyHtoDAsync(a, memory, BYTES, s);
    if (result == CUDA_SUCCESS) result = cu.cuMemcpyDtoH(memory, a, BYTES);
    if (result == CUDA_SUCCESS) result = cu.cuStreamSynchronize(s);
  }
  if (result != CUDA_ERROR_DEINITIALIZED) _exit(1); /* before the process has ended */
  pause();
  return NULL;
}

/* The main thread ends the process while others copy. */
static void exits_beside(void) {
  pthread_t one;
  for (int i = 0; i < 3; ++i) CHECK(pthread_create(&one, NULL, copy_for_ever, pinned()) == 0);
  usleep(500000);
}

/* The memory is another process's, which keeps it until this process has ended. */
static void other_process(void) {
  int ends[2];
  CUipcMemHandle handle;
  CHECK(pipe(ends) == 0);
  pid_t child = fork(); /* before either process has opened CUDA */
  CU(cu.cuInit(0));
  use(0);
  if (child != 0) {
    CUdeviceptr a = device();
    CU(cu.cuIpcGetMemHandle(&handle, a));
    CHECK(write(ends[1], &handle, sizeof handle) == sizeof handle);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(device_holds(a, 97));
    return;
  }
  CHECK(read(ends[0], &handle, sizeof handle) == sizeof handle);
  unsigned char* from = pinned();
  CUdeviceptr theirs = 0;
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CU(cu.cuIpcOpenMemHandle(&theirs, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  fill(from, 97);
  CU(cu.cuMemcpyHtoDAsync(theirs, from, BYTES, s));
  CU(cu.cuIpcCloseMemHandle(theirs));
  exit(0);
}

typedef int (*fail_copy)(const char*, const char*, int64_t, int, int64_t);

/* The simulator makes copies fail (docs/real.md). `times` says whether once or for good. */
static void faults(int64_t times) {
  fail_copy fail = (fail_copy)dlsym(RTLD_DEFAULT, "simcuda_fail_copy");
  CHECK(fail != NULL);
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  unsigned char *from = pinned(), *to = pinned();
  CUdeviceptr a = device();
  fill(from, 100);
  CHECK(fail(times < 0 ? "*" : "host", times < 0 ? "*" : "g0", 1, CUDA_ERROR_UNKNOWN, times) == 0);
  CUresult copied = cu.cuMemcpyHtoDAsync(a, from, BYTES, s);
  CUresult waited = cu.cuStreamSynchronize(s);
  fail(NULL, NULL, 0, 0, 0);
  printf("copied %d waited %d", (int)copied, (int)waited);
  if (waited == CUDA_SUCCESS) CHECK(device_holds(a, 100));
  copied = cu.cuMemcpyDtoHAsync(to, a, BYTES, s);
  waited = cu.cuCtxSynchronize();
  printf(" then %d %d %d\n", (int)copied, (int)waited, (int)cu.cuMemFree(a));
}

int main(int count, char** arguments) {
  const char* what = count > 1 ? arguments[1] : "";
  find_driver();
  if (strcmp(what, "exits") == 0) CHECK(atexit(clean_up) == 0);
  if (strcmp(what, "other_process") == 0) {
    other_process();
    puts("all right");
    return 0;
  }
  CU(cu.cuInit(0));
  use(0);
  if (strcmp(what, "chains") == 0)
    chains();
  else if (strcmp(what, "events") == 0)
    events();
  else if (strcmp(what, "legacy") == 0)
    legacy();
  else if (strcmp(what, "frees") == 0)
    frees();
  else if (strcmp(what, "left") == 0)
    left();
  else if (strcmp(what, "graphs") == 0)
    graphs();
  else if (strcmp(what, "threads") == 0)
    threads();
  else if (strcmp(what, "forks") == 0)
    forks();
  else if (strcmp(what, "contexts") == 0)
    contexts();
  else if (strcmp(what, "primary") == 0)
    primary();
  else if (strcmp(what, "two_gpus") == 0)
    two_gpus();
  else if (strcmp(what, "mapped") == 0)
    mapped();
  else if (strcmp(what, "libraries") == 0)
    libraries();
  else if (strcmp(what, "exits_beside") == 0)
    exits_beside();
  else if (strcmp(what, "exits") == 0)
    exits();
  else if (strcmp(what, "one_fault") == 0)
    faults(3);
  else if (strcmp(what, "all_fail") == 0)
    faults(-1);
  else
    return 3;
  puts("all right");
  return 0;
}
