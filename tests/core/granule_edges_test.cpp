// Before it grows, the policy `compact` uses the parts of granules that blocks leave free (edges).
// Two edges and the whole granules between them make a block. Small blocks go to edges that no
// stitched block can use.
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "harness.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;
using test::stat;

constexpr size_t kPart = 3 * kMiB / 2;

// Eight blocks side by side in six granules. Two are freed by stream 0, so that four granules have
// an edge of 0.5 or 1 MiB free, and no granule is wholly free.
class Job {
 public:
  explicit Job(const char* policy, bool recorded = false) {
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"}, {"policy", policy}});
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 8; ++i) get(kPart, s[0]);
    CHECK(reserved() == 6 * kGranule);
    for (size_t i : {5, 1}) {
      if (recorded) use(i);
      drop(i);
    }
  }
  ~Job() {
    for (const auto& [ptr, bytes] : blocks_) {
      CHECK(holds(ptr, bytes));
      OK(glake_free(ptr));
    }
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context_.reset();
    test::check_nothing_left();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Every block keeps a byte of its own, whatever is mapped beside it.
  void get(size_t bytes, CUstream stream) {
    void* ptr = glake_malloc(bytes, 0, stream);
    CHECK_TEXT(ptr != nullptr, test::last_error());
    std::memset(ptr, ++last_, bytes);
    blocks_.emplace_back(ptr, bytes);
    seeds_[ptr] = last_;
  }
  void drop(size_t i) {
    OK(glake_free(blocks_[i].first));
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  size_t reserved() const { return static_cast<size_t>(stat("reserved_bytes.all.current")); }

  CUstream s[2];

 private:
  // Records work of the other stream on the block. It is not done when the block is freed.
  void use(size_t i) {
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(blocks_[i].first), 7, kPart, s[1]));
    OK(glake_record_stream(blocks_[i].first, s[1]));
  }
  bool holds(void* ptr, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(ptr);
    return at[0] == seeds_[ptr] && std::memcmp(at, at + 1, bytes - 1) == 0;
  }

  std::unique_ptr<test::CurrentContext> context_;
  std::vector<std::pair<void*, size_t>> blocks_;
  std::map<void*, unsigned char> seeds_;
  unsigned char last_ = 0;
};

TEST(two_edges_save_a_granule) {
  test::running() = "two edges";
  Job job("compact");
  job.get(7 * kMiB / 2, job.s[0]);
  CHECK(stat("glake.edge_stitches") == 1 && job.reserved() == 7 * kGranule);
  job.get(7 * kMiB / 2, job.s[0]);  // uses the other two edges
  CHECK(stat("glake.edge_stitches") == 2 && job.reserved() == 8 * kGranule);
  job.get(7 * kMiB / 2, job.s[0]);
  CHECK(stat("glake.edge_stitches") == 2 && job.reserved() == 10 * kGranule);
}

TEST(one_edge_is_enough) {
  test::running() = "one edge";
  Job job("compact");
  job.get(3 * kMiB, job.s[0]);  // a whole granule, and the free 1 MiB of another
  CHECK(stat("glake.edge_stitches") == 1 && job.reserved() == 7 * kGranule);
}

// Growth in the arena needs as few new granules as a stitch with edges would, and needs no mapping.
TEST(not_where_growth_takes_as_few) {
  test::running() = "growth";
  Job job("compact");
  job.get(7 * kMiB / 2, job.s[1]);  // leaves half a MiB at the arena's end
  job.get(5 * kMiB / 2, job.s[0]);
  CHECK(stat("glake.edge_stitches") == 0 && job.reserved() == 9 * kGranule);
}

TEST(balanced_grows) {
  test::running() = "balanced";
  Job job("balanced");
  job.get(7 * kMiB / 2, job.s[0]);
  CHECK(stat("glake.edge_stitches") == 0 && job.reserved() == 8 * kGranule);
}

// An edge that its stream may still use becomes no part of another stream's block.
TEST(not_while_other_work_may_use_them) {
  test::running() = "other work";
  Job job("compact");
  job.get(7 * kMiB / 2, job.s[1]);
  CHECK(stat("glake.edge_stitches") == 0 && job.reserved() == 8 * kGranule);
}

TEST(not_while_recorded_work_may_use_them) {
  test::running() = "recorded work";
  Job job("compact", true);
  job.get(7 * kMiB / 2, job.s[0]);
  CHECK(stat("glake.edge_stitches") == 0 && job.reserved() == 8 * kGranule);
}

TEST(small_blocks_go_there_too) {
  test::running() = "small blocks";
  for (const char* policy : {"compact", "balanced"}) {
    Job job(policy);
    job.get(600 * kKiB, job.s[0]);
    const bool compact = policy == std::string("compact");
    CHECK(job.reserved() == (compact ? 6u : 7u) * kGranule);
  }
}

// Threads stitch, join and grow at the same time. A thread releases the device's lock to grow. When
// it has the lock again, other threads may have taken granules that it counted on.
TEST(threads_take_them_from_each_other) {
  test::running() = "threads";
  test::fresh_simulator({{"phantom", "1"},
                         {"memory", "1GiB"},
                         {"devices", "1"},
                         {"call_delay_us", "cuMemCreate=100"}});
  test::configure({{"driver", "sim"}, {"policy", "compact"}});
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([seed] {
      test::Dice dice(seed);
      std::vector<void*> held;
      for (int i = 0; i < 4000; ++i) {
        if (held.size() == 16 || (!held.empty() && dice.chance(45))) {
          std::swap(held[dice(0, held.size() - 1)], held.back());
          OK(glake_free(held.back()));
          held.pop_back();
        } else {
          held.push_back(glake_malloc(kMiB + 512 * dice(1, 12000), 0, nullptr));
          CHECK_TEXT(held.back() != nullptr, test::last_error());
        }
        if (i % 50 == 0) OK(glake_empty_cache(0));
      }
      for (void* ptr : held) OK(glake_free(ptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(stat("glake.edge_stitches") > 0);
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
