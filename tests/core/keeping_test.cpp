// Threads keep large blocks that they free, if that costs no memory (heap/large_keeping.h). The
// tests show when keeping begins and ends. They also show that other threads get kept blocks when
// they need them, even while the first threads take and give blocks.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/tuning.h"
#include "harness.h"

namespace {

using test::kMiB;

constexpr int kEnough = static_cast<int>(glake::Tuning::kMostStep);

// Bytes that are neither in a caller's block nor free in an arena, because threads keep them. (No
// test here has small blocks.)
int64_t kept_bytes() {
  const std::string text = test::stats();
  return test::number_in(text, "glake.physical_bytes") -
         test::number_in(text, "allocated_bytes.all.current") -
         test::number_in(text, "glake.free_bytes");
}

void* take(size_t bytes, void* stream = nullptr) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK_TEXT(ptr != nullptr, test::last_error());
  return ptr;
}

// Makes large requests of six sizes in random order, so that no sequence repeats. 16 MiB are enough
// for them.
class Wandering {
 public:
  explicit Wandering(const test::Options& options) {
    test::fresh_simulator({{"phantom", "1"}, {"memory", "1GiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"}});
    test::configure(options);
    OK(glake_free(take(16 * kMiB)));
  }
  ~Wandering() {
    OK(glake_check(0));
    test::check_books({});
    OK(glake_shutdown());
    test::check_nothing_left();
  }
  void wander(int requests) {
    for (int i = 0; i < requests; ++i) OK(glake_free(take(size())));
  }
  size_t size() { return kMiB + 512 + dice_(0, 5) * 512 * test::kKiB; }

 private:
  test::Dice dice_{5};
};

TEST(sizes_that_never_repeat_are_kept) {
  Wandering job({});
  job.wander(kEnough / 2);
  CHECK(kept_bytes() == 0);
  job.wander(kEnough);
  CHECK(kept_bytes() > 0);
  // A request gets the block that was freed last. Best fit would take the lower one.
  void* low = take(3 * kMiB);
  void* high = take(3 * kMiB);
  OK(glake_free(low));
  OK(glake_free(high));
  CHECK(take(3 * kMiB) == high);
  OK(glake_free(high));
  OK(glake_check(0));
  OK(glake_empty_cache(0));
  CHECK(kept_bytes() == 0);
}

TEST(not_where_memory_is_scarce) {
  Wandering job(test::Options{{"limit", "300MiB"}});  // a thread may keep an eighth of it
  for (size_t live : {200, 100}) {
    void* rest = take(live * kMiB);
    OK(glake_empty_cache(0));
    OK(glake_free(take(16 * kMiB)));
    job.wander(2 * kEnough);
    CHECK((kept_bytes() > 0) == (live == 100));
    OK(glake_free(rest));
  }
}

TEST(not_by_the_policy_compact) {
  Wandering job(test::Options{{"policy", "compact"}});
  job.wander(2 * kEnough);
  CHECK(kept_bytes() == 0);
}

TEST(memory_that_runs_short_ends_it) {
  Wandering job({});
  job.wander(2 * kEnough);
  CHECK(kept_bytes() > 0);
  // A request of all 16 MiB is served after the thread gives up what it keeps. Keeping goes on.
  OK(glake_free(take(16 * kMiB)));
  CHECK(test::stat("glake.physical_bytes") == static_cast<int64_t>(16 * kMiB));
  CHECK(kept_bytes() > 0);
  OK(glake_free(take(18 * kMiB)));  // more than there is
  CHECK(kept_bytes() == 0);
  job.wander(kEnough / 2);
  CHECK(kept_bytes() == 0);
  job.wander(kEnough);
  CHECK(kept_bytes() > 0);
}

// Where most sizes never return, kept blocks serve nobody.
TEST(not_for_sizes_that_never_return) {
  Wandering job({});
  test::Dice dice{9};
  for (int i = 0; i < 3 * kEnough; ++i) OK(glake_free(take(dice(kMiB + 512, 4 * kMiB))));
  CHECK(kept_bytes() == 0);
}

TEST(a_limit_that_falls_ends_it) {
  Wandering job({});
  job.wander(2 * kEnough);
  CHECK(kept_bytes() > 0);
  OK(glake_set_limit_fraction(0, 30.0 / 1024));
  for (int i = 0; i < 2; ++i) OK(glake_free(take(kMiB + 100 * test::kKiB)));  // not kept yet
  CHECK(kept_bytes() == 0);
}

// Threads keep no blocks that another stream uses. So these blocks reach the placement history,
// which finds that the step repeats.
TEST(a_step_that_repeats_ends_it) {
  Wandering job({});
  void* other = reinterpret_cast<void*>(2);  // the per-thread default stream
  job.wander(2 * kEnough);
  CHECK(kept_bytes() > 0);
  std::vector<size_t> sizes(glake::Tuning::kLeastStep);
  for (size_t& each : sizes) each = job.size();
  const int64_t repeats = test::stat("glake.repeats");
  for (int step = 0; step < 3; ++step) {
    for (size_t each : sizes) {
      void* ptr = take(each + 4 * kMiB);  // no block of this size is kept
      OK(glake_record_stream(ptr, other));
      OK(glake_free(ptr));
    }
  }
  CHECK(test::stat("glake.repeats") > repeats);
  CHECK(kept_bytes() == 0);
}

// Which bytes are in use, as their holders say.
class Claims {
 public:
  void add(void* ptr, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(ptr);
    std::lock_guard<std::mutex> guard(mutex_);
    auto next = claims_.lower_bound(begin);
    CHECK(next == claims_.end() || next->first >= begin + bytes);
    CHECK(next == claims_.begin() || std::prev(next)->second <= begin);
    claims_.emplace(begin, begin + bytes);
  }
  void remove(void* ptr) {
    std::lock_guard<std::mutex> guard(mutex_);
    CHECK(claims_.erase(reinterpret_cast<uintptr_t>(ptr)) == 1);
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> claims_;
};

// Threads take and free large blocks, many of them hits in their own caches. Meanwhile another
// thread needs what they keep: for stitched blocks, for the driver and for the books.
TEST(what_threads_keep_is_there_for_others) {
  constexpr int kThreads = 2, kDisturbances = 3;
  test::fresh_simulator({{"memory", "1GiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "512MiB"}});
  Claims claims;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> requests{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      test::CurrentContext context;
      test::Dice dice(static_cast<uint64_t>(t) + 1);
      std::vector<test::Held> held;
      auto give = [&](size_t at) {
        std::swap(held[at], held.back());
        volatile char* mark = static_cast<volatile char*>(held.back().ptr);
        CHECK(*mark == static_cast<char>(t + 1));
        claims.remove(held.back().ptr);
        OK(glake_free(held.back().ptr));
        held.pop_back();
      };
      while (!stop.load(std::memory_order_relaxed)) {
        for (int i = 0; i < 64; ++i) {
          if (held.size() == 6) give(dice(0, 5));
          const size_t bytes = kMiB + 512 * dice(1, dice.chance(50) ? 8 : 4096);
          void* ptr = glake_malloc(bytes, 0, nullptr);
          if (ptr == nullptr) {
            CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
            while (!held.empty()) give(held.size() - 1);
            continue;
          }
          claims.add(ptr, bytes);
          *static_cast<volatile char*>(ptr) = static_cast<char>(t + 1);
          held.push_back({ptr, bytes, 0});
        }
        requests.fetch_add(64, std::memory_order_relaxed);
      }
      while (!held.empty()) give(held.size() - 1);
    });
  }
  auto context = std::make_unique<test::CurrentContext>();
  int64_t most_kept = 0;
  for (int round = 0; round < kDisturbances; ++round) {
    OK(glake_free(take(64 * kMiB)));  // makes room for the next requests
    const int64_t begun = requests.load();
    int64_t kept = 0;
    while (kept <= 0 && requests.load() < begun + 8 * kEnough) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      kept = kept_bytes();
    }
    most_kept = std::max(most_kept, kept);
    const int64_t kept_on = requests.load();
    while (requests.load() < kept_on + kEnough / 4) std::this_thread::yield();
    OK(glake_check(0));
    const int64_t held = test::stat("glake.physical_bytes");
    const auto spare = static_cast<size_t>(test::stat("glake.limit_bytes") - held);
    // Takes all other memory under the limit. Then only the blocks that the threads keep are left.
    // The threads may have taken all of it: a heap grows up to what was live once before it
    // stitches.
    const size_t most = spare < 3 * kMiB ? 0 : spare / kMiB * kMiB - 2 * kMiB;
    void* rest = most == 0 ? nullptr : take(most);
    if (rest != nullptr) claims.add(rest, most);
    for (size_t bytes : {2 * kMiB + 512, 3 * kMiB, 5 * kMiB}) {
      void* ptr = glake_malloc(bytes, 0, nullptr);
      if (ptr == nullptr) continue;
      claims.add(ptr, bytes);
      claims.remove(ptr);
      OK(glake_free(ptr));
    }
    if (rest != nullptr) claims.remove(rest);
    OK(glake_free(rest));
    OK(glake_empty_cache(0));
    OK(glake_check(0));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  context.reset();
  CHECK(most_kept > 0);
  OK(glake_check(0));
  test::check_books({});
  OK(glake_shutdown());
  test::check_nothing_left();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
