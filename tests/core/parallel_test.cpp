// Threads work on one device at once and at random: allocation, frees by other threads, recorded
// streams, streams made and ended, caches emptied, steps marked, statistics read, threads that end.
// The test is mainly for race detectors. In the middle the threads stop at a barrier, and the
// statistics must match the blocks that the threads hold. At the end they must show no block.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "harness.h"

namespace {

constexpr int kThreads = 4, kRounds = 3;
constexpr size_t kLimit = 64 * test::kMiB;

// Lets all threads run, then the main thread alone, then all again.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t mine = phase_;
    if (++waiting_ == count_) {
      waiting_ = 0;
      ++phase_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return phase_ != mine; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_, waiting_ = 0;
  uint64_t phase_ = 0;
};

// Where threads leave blocks for each other.
struct Shelf {
  std::mutex mutex;
  std::vector<test::Held> blocks;
};

class Actor {
 public:
  Actor(uint64_t seed, Shelf& shelf) : dice_(seed), shelf_(shelf) {}
  void act(int operations) {
    test::CurrentContext context;
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < operations; ++i) step();
    CU(cuStreamSynchronize(stream_));
  }
  void end() {
    test::CurrentContext context;
    for (const test::Held& h : held_) OK(glake_free(h.ptr));
    held_.clear();
    test::end_stream(stream_);
  }
  const std::vector<test::Held>& held() const { return held_; }

 private:
  size_t size() { return dice_.chance(60) ? dice_(1, 64 * test::kKiB) : dice_(1, 5 * test::kMiB); }
  void step() {
    const uint64_t what = dice_(0, 99);
    if (what < 50) {
      allocate();
    } else if (what < 85) {
      free_one();
    } else if (what < 93) {
      exchange();
    } else if (what < 96 && !held_.empty()) {
      OK(glake_record_stream(held_[dice_(0, held_.size() - 1)].ptr, nullptr));
    } else if (what == 97) {
      CHECK(glake_stats(0, nullptr, 0) != 0);
    } else if (what == 98) {
      OK(glake_mark_step(0));
    } else if (what == 99 && dice_.chance(20)) {
      OK(glake_empty_cache(0));
    } else {
      CU(cuStreamSynchronize(stream_));
    }
  }
  void allocate() {
    const size_t bytes = size();
    void* ptr = glake_malloc(bytes, 0, dice_.chance(80) ? stream_ : nullptr);
    if (ptr == nullptr) {
      CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
      for (int i = 0; i < 8; ++i) free_one();
      return;
    }
    // The block must be this thread's alone. If another thread holds the same bytes, a race
    // detector sees this write.
    *static_cast<volatile char*>(ptr) = static_cast<char>(bytes);
    held_.push_back({ptr, bytes, 0});
  }
  void free_one() {
    if (held_.empty()) return;
    std::swap(held_[dice_(0, held_.size() - 1)], held_.back());
    CHECK(*static_cast<volatile char*>(held_.back().ptr) == static_cast<char>(held_.back().bytes));
    OK(glake_free(held_.back().ptr));
    held_.pop_back();
  }
  void exchange() {
    std::lock_guard<std::mutex> guard(shelf_.mutex);
    if (!held_.empty()) {
      shelf_.blocks.push_back(held_.back());
      held_.pop_back();
    }
    if (shelf_.blocks.size() > 8) {
      held_.push_back(shelf_.blocks.front());
      shelf_.blocks.erase(shelf_.blocks.begin());
    }
  }

  test::Dice dice_;
  Shelf& shelf_;
  CUstream stream_ = nullptr;
  std::vector<test::Held> held_;
};

void round(const char* policy, uint64_t seed, int operations) {
  test::running() = std::string(policy) + ", seed " + std::to_string(seed);
  test::fresh_simulator({{"memory", "128MiB"}, {"devices", "1"}, {"schedule", "threaded"}});
  test::configure({{"driver", "sim"}, {"policy", policy}, {"limit", std::to_string(kLimit)}});
  {
    test::CurrentContext keep;
    Shelf shelf;
    Barrier barrier(kThreads + 1);
    std::vector<std::unique_ptr<Actor>> actors;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      actors.push_back(std::make_unique<Actor>(seed * 97 + static_cast<uint64_t>(t), shelf));
      Actor* actor = actors.back().get();
      threads.emplace_back([=, &barrier] {
        actor->act(operations);
        barrier.wait();
        barrier.wait();
        actor->end();
      });
    }
    barrier.wait();
    std::vector<test::Held> held = shelf.blocks;
    for (const auto& a : actors) held.insert(held.end(), a->held().begin(), a->held().end());
    OK(glake_check(0));
    test::check_books(held);
    barrier.wait();
    for (std::thread& thread : threads) thread.join();
    for (const test::Held& h : shelf.blocks) OK(glake_free(h.ptr));
    test::check_books({});
    OK(glake_shutdown());
  }
  test::check_nothing_left();
}

int operations = 4000 / test::kSlowdown;

TEST(balanced) {
  for (uint64_t seed = 1; seed <= kRounds; seed += 2) round("balanced", seed, operations);
}

TEST(compact) {
  for (uint64_t seed = 2; seed <= kRounds; seed += 2) round("compact", seed, operations);
}

}  // namespace

// An argument gives the number of operations of each thread in a round.
int main(int argc, char** argv) {
  operations = test::number_argument(argc, argv, operations);
  return test::run_cases(argc, argv);
}
