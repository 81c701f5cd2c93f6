// Times the allocation hot path through the C interface: hits only, nothing maps memory while the
// clock runs. Prints one JSON object; hot_path.py makes the table.
//
//   hot_path [--seconds S]
//
// single: one thread, every call timed by itself with the processor's time stamp counter where it
// has one (reading a clock costs as much as a hit), the reading's own cost subtracted. threads:
// operations per second of one thread and of two, on one device, each on its own stream. stalled:
// one thread's hits while another thread's every cuMemMap sleeps 10 ms.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "capi.h"
#include "simcuda/simcuda.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMiB = 1 << 20;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

#if defined(__x86_64__)
int64_t ticks() { return static_cast<int64_t>(__rdtsc()); }
#else
int64_t ticks() { return now_ns(); }
#endif

double ns_per_tick() {
  int64_t a = now_ns(), ta = ticks();
  while (now_ns() - a < 50000000) continue;
  return static_cast<double>(now_ns() - a) / static_cast<double>(ticks() - ta);
}

void* allocate(size_t bytes, void* stream = nullptr) {
  void* p = glake_malloc(bytes, 0, stream);
  if (p != nullptr) return p;
  char text[1024];
  glake_last_error(text, sizeof text);
  std::fprintf(stderr, "hot_path: %s\n", text);
  std::exit(1);
}

// The median cost of reading the counter twice, in ticks.
int64_t timer_cost() {
  std::vector<int64_t> v(100000);
  for (int64_t& x : v) {
    int64_t a = ticks();
    x = ticks() - a;
  }
  std::nth_element(v.begin(), v.begin() + 50000, v.end());
  return v[50000];
}

struct Times {
  std::vector<int64_t> allocate, free;  // ticks
};

// In nanoseconds.
double quantile(std::vector<int64_t>& v, double q) {
  static const double unit = ns_per_tick();
  size_t i = std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())));
  std::nth_element(v.begin(), v.begin() + static_cast<long>(i), v.end());
  return unit * static_cast<double>(v[i]);
}

struct Mix {
  const char* name;
  size_t least, most;
  int live;
};

// A live set of `live` blocks; each operation frees a random one and allocates another of the sizes
// in use, as a training step does.
class Workload {
 public:
  Workload(const Mix& mix, unsigned seed, void* stream) : random_(seed), stream_(stream) {
    std::uniform_real_distribution<double> exponent(std::log2(static_cast<double>(mix.least)),
                                                    std::log2(static_cast<double>(mix.most)));
    for (int i = 0; i < 32; ++i)
      sizes_.push_back(static_cast<size_t>(std::exp2(exponent(random_))));
    for (int i = 0; i < mix.live; ++i) live_.push_back(allocate(pick(), stream_));
  }
  ~Workload() {
    for (void* p : live_) glake_free(p);
  }
  void operation() {
    void*& p = live_[random_() % live_.size()];
    glake_free(p);
    p = allocate(pick(), stream_);
  }
  void timed(Times& times, int64_t cost) {
    void*& p = live_[random_() % live_.size()];
    size_t bytes = pick();
    int64_t a = ticks();
    glake_free(p);
    int64_t b = ticks();
    p = glake_malloc(bytes, 0, stream_);
    int64_t c = ticks();
    if (p == nullptr) allocate(bytes, stream_);
    times.free.push_back(std::max<int64_t>(b - a - cost, 0));
    times.allocate.push_back(std::max<int64_t>(c - b - cost, 0));
  }

 private:
  size_t pick() { return sizes_[random_() % sizes_.size()]; }
  std::minstd_rand random_;
  void* stream_;
  std::vector<size_t> sizes_;
  std::vector<void*> live_;
};

void warm(Workload& w, int operations) {
  for (int i = 0; i < operations; ++i) w.operation();
}

std::string single(const Mix& mix, double seconds, int64_t cost) {
  Workload w(mix, 1, nullptr);
  warm(w, 200000);
  int64_t calls = simcuda_calls("cuMemMap") + simcuda_calls("cuMemCreate");
  Times t;
  int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (now_ns() < end) w.timed(t, cost);
  calls = simcuda_calls("cuMemMap") + simcuda_calls("cuMemCreate") - calls;
  char text[400];
  std::snprintf(text, sizeof text,
                "{\"mix\": \"%s\", \"operations\": %zu, \"mapping_calls\": %lld, "
                "\"alloc_ns\": {\"p50\": %.0f, \"p99\": %.0f}, "
                "\"free_ns\": {\"p50\": %.0f, \"p99\": %.0f}}",
                mix.name, t.allocate.size(), static_cast<long long>(calls),
                quantile(t.allocate, 0.5), quantile(t.allocate, 0.99), quantile(t.free, 0.5),
                quantile(t.free, 0.99));
  return text;
}

// Pairs of free and allocate per second, all threads together.
double rate(const Mix& mix, int threads, double seconds) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, stop{false};
  std::vector<uint64_t> done(static_cast<size_t>(threads) * 16);
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      Workload w(mix, static_cast<unsigned>(i + 1), nullptr);
      warm(w, 100000);
      ++ready;
      while (!go.load()) std::this_thread::yield();
      uint64_t n = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        for (int k = 0; k < 64; ++k) w.operation();
        n += 64;
      }
      done[static_cast<size_t>(i) * 16] = n;
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  int64_t begin = now_ns();
  go = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& t : pool) t.join();
  uint64_t total = 0;
  for (uint64_t n : done) total += n;
  return static_cast<double>(total) / (static_cast<double>(now_ns() - begin) * 1e-9);
}

// One and two threads in turn, so that both see the same noise; the medians.
std::string threads(const Mix& mix, double seconds) {
  std::vector<double> one, two;
  for (int round = 0; round < 5; ++round) {
    one.push_back(rate(mix, 1, seconds / 10));
    two.push_back(rate(mix, 2, seconds / 10));
  }
  std::sort(one.begin(), one.end());
  std::sort(two.begin(), two.end());
  char text[300];
  std::snprintf(text, sizeof text,
                "{\"mix\": \"%s\", \"one_thread_per_s\": %.0f, \"two_threads_per_s\": %.0f, "
                "\"ratio\": %.3f}",
                mix.name, one[2], two[2], two[2] / one[2]);
  return text;
}

std::string stalled(const Mix& mix, double seconds, int64_t cost) {
  glake_empty_cache(0);  // or the other thread would find memory mapped before
  Workload w(mix, 3, nullptr);
  warm(w, 200000);
  simcuda_configure("call_delay_us", "cuMemMap=10000");
  std::atomic<bool> stop{false};
  std::atomic<int> grown{0};
  // Blocks larger than any hole of the workload: every one must map memory.
  std::thread mapper([&] {
    std::vector<void*> held;
    while (!stop.load()) {
      held.push_back(allocate(256 * kMiB));
      ++grown;
    }
    simcuda_configure("call_delay_us", "cuMemMap=0");
    for (void* p : held) glake_free(p);
  });
  Times t;
  int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (now_ns() < end) w.timed(t, cost);
  stop = true;
  mapper.join();
  char text[300];
  std::snprintf(text, sizeof text,
                "{\"mix\": \"%s\", \"operations\": %zu, \"stalled_requests\": %d, "
                "\"alloc_ns\": {\"p99\": %.0f}, \"free_ns\": {\"p99\": %.0f}}",
                mix.name, t.allocate.size(), grown.load(), quantile(t.allocate, 0.99),
                quantile(t.free, 0.99));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 1.0;
  if (argc == 3 && std::strcmp(argv[1], "--seconds") == 0) seconds = std::atof(argv[2]);
  simcuda_configure("phantom", "1");
  simcuda_configure("memory", "80GiB");
  if (glake_configure("driver", "sim") != GLAKE_OK) return 1;
  allocate(1);
  const Mix small{"small: 512 B - 1 MiB", 512, kMiB, 200};
  const Mix large{"large: 1 - 64 MiB", kMiB + 512, 64 * kMiB, 200};
  const Mix mixed{"mixed: 512 B - 64 MiB", 512, 64 * kMiB, 200};
  int64_t cost = timer_cost();
  std::string json = "{\"timer_ticks\": " + std::to_string(cost) + ", \"single\": [";
  json += single(small, seconds, cost) + ", " + single(large, seconds, cost) + ", " +
          single(mixed, seconds, cost) + "], \"threads\": [";
  json += threads(small, seconds) + ", " + threads(large, seconds) + ", " +
          threads(mixed, seconds) + "], \"stalled\": [";
  json += stalled(small, seconds, cost) + ", " + stalled(large, seconds, cost) + "]}";
  std::puts(json.c_str());
  return 0;
}
