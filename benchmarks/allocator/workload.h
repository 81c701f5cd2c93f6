// The steady working set that hot_path, thread_scaling and by_torch/torch_path time: hits only.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "measure.h"

namespace bench {

struct Mix {
  const char* name;
  size_t least, most;
};

constexpr Mix kMixes[] = {{"512 B - 1 MiB", 512, kMiB},
                          {"1 - 64 MiB", kMiB + 512, 64 * kMiB},
                          {"512 B - 64 MiB", 512, 64 * kMiB}};
constexpr int kLiveBlocks = 200;
constexpr int kSizes = 32;

// 200 live blocks of 32 sizes. Each operation frees a random one and allocates another of these
// sizes, as a training step does. A Subject has allocate(bytes), which returns null if there is no
// memory, and release(block).
template <typename Subject>
class Workload {
 public:
  // With `spare` it takes twice the memory first, so that all later requests are hits.
  Workload(const Mix& mix, unsigned seed, Subject& subject, bool spare = true)
      : random_(seed), subject_(subject) {
    std::uniform_real_distribution<double> exponent(std::log2(static_cast<double>(mix.least)),
                                                    std::log2(static_cast<double>(mix.most)));
    for (int i = 0; i < kSizes; ++i) {
      sizes_.push_back(static_cast<size_t>(std::exp2(exponent(random_))));
    }
    for (int i = 0; spare && i < 2 * kLiveBlocks; ++i)
      live_.push_back(allocate(sizes_[i % kSizes]));
    release_all();
    for (int i = 0; i < kLiveBlocks; ++i) live_.push_back(allocate(pick()));
  }
  ~Workload() { release_all(); }
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  void operations(int count) {
    for (int i = 0; i < count; ++i) {
      void*& block = live_[random_() % live_.size()];
      subject_.release(block);
      block = allocate(pick());
    }
  }
  void timed(Samples& allocations, Samples& frees) {
    void*& block = live_[random_() % live_.size()];
    const size_t bytes = pick();
    const int64_t a = ticks();
    subject_.release(block);
    const int64_t b = ticks();
    block = subject_.allocate(bytes);
    const int64_t c = ticks();
    if (block == nullptr) allocate(bytes);
    frees.add(b - a);
    allocations.add(c - b);
  }

 private:
  void release_all() {
    for (void* block : live_) subject_.release(block);
    live_.clear();
  }
  size_t pick() { return sizes_[random_() % sizes_.size()]; }
  void* allocate(size_t bytes) {
    void* block = subject_.allocate(bytes);
    if (block == nullptr) throw std::runtime_error("out of memory in a workload of hits");
    return block;
  }

  std::minstd_rand random_;
  Subject& subject_;
  std::vector<size_t> sizes_;
  std::vector<void*> live_;
};

// What timing one call costs, in ticks. It is the median over a subject that does nothing, and the
// least of ten batches. While other programs slow the machine, a single batch could take longer
// than a fast subject does later, whose calls would then cost 0 ns.
inline int64_t timing_cost() {
  struct Nothing {
    virtual void* allocate(size_t) { return this; }  // virtual, as subjects are
    virtual void release(void*) {}
  };
  Nothing nothing;
  Workload workload(kMixes[0], 1, nothing);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int batch = 0; batch < 10; ++batch) {
    Samples allocations, frees;
    for (int i = 0; i < 10000; ++i) workload.timed(allocations, frees);
    least = std::min(least, frees.quantile_ticks(0.5));
  }
  return least;
}

}  // namespace bench
