// Runs the source of the kernel that copies blocks on the CPU: one warp at a time, one thread for
// each lane. The kernel copies every byte at every alignment, writes no byte beside them, and makes
// no access that a GPU would refuse.
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "harness.h"
#include "transfer/run/kernels/copy_blocks.h"

namespace gpu {

struct Index {
  unsigned x = 0;
};
thread_local Index threadIdx;
Index blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// All lanes of the warp meet here.
class Meeting {
 public:
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const unsigned turn = turn_;
    if (++here_ == 32) {
      here_ = 0;
      ++turn_;
      all_.notify_all();
    } else {
      all_.wait(lock, [&] { return turn_ != turn; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  unsigned here_ = 0, turn_ = 0;
} meeting;

unsigned long long told[32];

unsigned long long __shfl_sync(unsigned mask, unsigned long long value, unsigned from) {
  CHECK(mask == 0xffffffffu && from < 32);
  told[threadIdx.x % 32] = value;
  meeting.wait();
  const unsigned long long answer = told[from];
  meeting.wait();
  return answer;
}

template <class T>
void aligned(const T* at) {
  CHECK(reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0);
}
template <class T>
T __ldcs(const T* from) {
  aligned(from);
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  aligned(to);
  *to = value;
}

#define __global__
#define __device__
#define __launch_bounds__(threads)
#include "transfer/run/kernels/copy_blocks.cu"

}  // namespace gpu

namespace {

using glake::transfer::CopyBlock;
static_assert(sizeof(CopyBlock) == sizeof(gpu::Block), "one table");

void launch(const std::vector<CopyBlock>& table, unsigned groups, unsigned threads) {
  gpu::gridDim.x = groups;
  gpu::blockDim.x = threads;
  const auto* blocks = reinterpret_cast<const gpu::Block*>(table.data());
  for (unsigned group = 0; group < groups; ++group) {
    gpu::blockIdx.x = group;
    for (unsigned warp = 0; warp < threads / 32; ++warp) {
      std::vector<std::thread> lanes;
      for (unsigned lane = 0; lane < 32; ++lane) {
        lanes.emplace_back([&, lane] {
          gpu::threadIdx.x = warp * 32 + lane;
          gpu::glake_copy_blocks(blocks, static_cast<unsigned>(table.size()));
        });
      }
      for (std::thread& lane : lanes) lane.join();
    }
  }
}

struct Case {
  size_t to, from, bytes;
};

// Blocks one after another, each with a margin around it.
void check(const std::vector<Case>& cases, unsigned groups, unsigned threads) {
  constexpr size_t kMargin = 64;
  size_t size = 0;
  for (const Case& one : cases) size += one.bytes + 2 * kMargin + 32;
  std::vector<unsigned char> src(size + 64), dst(size + 64, 0xee), wanted;
  for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<unsigned char>((i * 167 >> 3) % 233);
  wanted = dst;
  auto even = [](std::vector<unsigned char>& buffer) {
    return (reinterpret_cast<uintptr_t>(buffer.data()) + 63) / 64 * 64;
  };
  std::vector<CopyBlock> table;
  size_t at = 0;
  for (const Case& one : cases) {
    const uint64_t to = even(dst) + at + kMargin + one.to, from = even(src) + at + one.from;
    table.push_back({to, from, one.bytes});
    std::memcpy(wanted.data() + (to - reinterpret_cast<uintptr_t>(dst.data())),
                reinterpret_cast<void*>(from), one.bytes);
    at += (one.bytes + 2 * kMargin + 15) / 16 * 16;
  }
  launch(table, groups, threads);
  CHECK(dst == wanted);
}

TEST(alignments) {
  std::vector<Case> cases;
  for (size_t to = 0; to < 16; ++to) {
    for (size_t from : {to, (to + 1) % 16, (to + 4) % 16, (to + 8) % 16}) {
      cases.push_back({to, from, 1 + (to * 37 + from * 11) % 700});
    }
  }
  check(cases, 1, 64);
}

TEST(sizes) {
  std::vector<Case> cases;
  for (size_t bytes : {0, 1, 15, 16, 17, 31, 511, 512, 2047, 2048, 2049, 4096 + 16, 16384}) {
    cases.push_back({0, 0, bytes});
    cases.push_back({5, 5, bytes});
  }
  check(cases, 2, 32);
}

TEST(more_blocks_than_a_warp_reads_at_once) {
  const std::vector<Case> cases(150, {1, 1, 40});
  check(cases, 1, 64);
  check({}, 1, 32);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
