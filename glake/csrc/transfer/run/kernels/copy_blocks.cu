// Copies many blocks in one launch. tools/kernels.py compiles it ahead of time to copy_blocks.ptx
// (by NVRTC, without nvcc). At run time the driver compiles the PTX for its GPU.
//
// Either end may be any memory that the running GPU reaches: its own, a peer's, or pinned host
// memory. No two blocks overlap.

#ifdef __CUDACC__
#define UNROLLED _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#else  // tests/core/copy_kernel_test.cpp
#define UNROLLED
#define ROLLED
#endif

struct Block {  // as CopyBlock in copy_blocks.h
  unsigned long long dst, src, bytes;
};

enum : unsigned {
  kWarp = 32,
  kAhead = 4,  // loads of a thread under way: 2 KiB of a warp
};

// A warp copies all words. Each word is read once, so it is kept out of the caches.
template <class Word>
__device__ void copy_words(char* dst, const char* src, unsigned long long words, unsigned lane) {
  Word* to = reinterpret_cast<Word*>(dst) + lane;
  const Word* from = reinterpret_cast<const Word*>(src) + lane;
  const Word* const end = from + words - lane;
  ROLLED for (; from + (kAhead - 1) * kWarp < end; from += kAhead * kWarp, to += kAhead * kWarp) {
    Word held[kAhead];
    UNROLLED for (unsigned k = 0; k < kAhead; ++k) held[k] = __ldcs(from + k * kWarp);
    UNROLLED for (unsigned k = 0; k < kAhead; ++k) __stcs(to + k * kWarp, held[k]);
  }
  ROLLED for (; from < end; from += kWarp, to += kWarp) __stcs(to, __ldcs(from));
}

// Copies single bytes up to where both ends are aligned, then words, then the bytes that are left.
template <class Word>
__device__ void copy_aligned(char* dst, const char* src, unsigned long long bytes, unsigned lane) {
  unsigned long long head = -reinterpret_cast<unsigned long long>(dst) % sizeof(Word);
  if (head > bytes) head = bytes;
  const unsigned long long words = (bytes - head) / sizeof(Word);
  const unsigned long long tail = head + words * sizeof(Word);
  if (lane < head) dst[lane] = src[lane];
  if (tail + lane < bytes) dst[tail + lane] = src[tail + lane];
  copy_words<Word>(dst + head, src + head, words, lane);
}

// A warp takes every n-th block of the table. It reads the table 32 blocks at a time, because the
// table may be host memory, far away.
extern "C" __global__ void __launch_bounds__(256)
    glake_copy_blocks(const Block* table, unsigned count) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warps = gridDim.x * (blockDim.x / kWarp);
  const unsigned warp = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  ROLLED for (unsigned long long base = warp; base < count; base += 1ull * kWarp * warps) {
    const unsigned long long mine = base + 1ull * lane * warps;
    Block block = {0, 0, 0};
    if (mine < count) block = table[mine];
    ROLLED for (unsigned k = 0; k < kWarp && base + 1ull * k * warps < count; ++k) {
      char* dst = reinterpret_cast<char*>(__shfl_sync(0xffffffffu, block.dst, k));
      const char* src = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, block.src, k));
      const unsigned long long bytes = __shfl_sync(0xffffffffu, block.bytes, k);
      const unsigned long long apart =
          reinterpret_cast<unsigned long long>(dst) ^ reinterpret_cast<unsigned long long>(src);
      if (apart % 16 == 0) {
        copy_aligned<uint4>(dst, src, bytes, lane);
      } else if (apart % 4 == 0) {
        copy_aligned<unsigned>(dst, src, bytes, lane);
      } else {
        copy_words<char>(dst, src, bytes, lane);
      }
    }
  }
}
