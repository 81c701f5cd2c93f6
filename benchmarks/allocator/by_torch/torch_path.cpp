// Times a block as PyTorch takes it: from the allocator in force, through DataPtr and StorageImpl.
// Also times other allocators: glake's C interface if it is loaded, else mimalloc and glibc.
// torch_path.py loads this library into a Python that has torch.
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <memory>
#include <thread>

#include "../workload.h"

namespace bench {
namespace {

constexpr int kWarmUp = 50000;

// Torch's record of a tensor's memory: the pointer with its deleter, and a count of its users.
struct ByStorage {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  void* allocate(size_t bytes) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                 allocator, /*resizable=*/true)
        .release();
  }
  void release(void* block) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(block));
  }
};

// Gives out the same byte every time, so that only DataPtr and StorageImpl take time.
struct OneByte final : c10::Allocator {
  c10::DataPtr allocate(size_t) override {
    return {&byte, &byte, [](void*) {}, c10::Device(c10::kCUDA, 0)};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
  char byte = 0;
};

// A general heap. Sizes are scaled so that its smallest block stands for our smallest.
struct ByFunctions {
  using Allocate = void* (*)(size_t);
  static constexpr size_t kScale = 512;
  Allocate take;
  void (*give)(void*);
  void* allocate(size_t bytes) { return take(std::max<size_t>(bytes / kScale, 1)); }
  void release(void* block) { give(block); }
};

struct ByGlake {
  void* (*take)(size_t, int, void*);
  int (*give)(void*);
  void* allocate(size_t bytes) { return take(bytes, 0, nullptr); }
  void release(void* block) { give(block); }
};

template <typename Subject>
void hits(const Mix& mix, const std::string& name, double seconds, int64_t cost, Subject subject,
          Report& report) {
  Workload<Subject> workload(mix, 1, subject);
  workload.operations(kWarmUp);
  Samples allocations, frees;
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (now_ns() < end) {
    for (int i = 0; i < 16; ++i) workload.timed(allocations, frees);
  }
  report.add(mix.name, name, "alloc_p50_ns", allocations.quantile(0.5, cost));
  report.add(mix.name, name, "free_p50_ns", frees.quantile(0.5, cost));
  report.add(mix.name, name, "pair_mean_ns", allocations.mean(cost) + frees.mean(cost));
}

// How many pairs two threads make, each on its own workload, while one thread alone makes one.
template <typename Subject>
void threads(const Mix& mix, const std::string& name, double seconds, Subject subject,
             Report& report) {
  double rates[2];
  for (int count : {1, 2}) {
    std::vector<Counter> counters(static_cast<size_t>(count));
    std::atomic<int> ready{0};
    std::atomic<bool> go{false}, stop{false};
    std::vector<std::thread> workers;
    for (int i = 0; i < count; ++i) {
      workers.emplace_back([&, i] {
        Subject own = subject;
        Workload<Subject> workload(mix, static_cast<unsigned>(i + 1), own);
        workload.operations(kWarmUp);
        ++ready;
        while (!go) std::this_thread::yield();
        while (!stop) {
          workload.operations(16);
          add(counters[static_cast<size_t>(i)].pairs, uint64_t{16});
        }
      });
    }
    while (ready != count) std::this_thread::yield();
    const int64_t start = now_ns();
    go = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 2));
    const uint64_t pairs = sum_of_pairs(counters);
    rates[count - 1] = static_cast<double>(pairs) / static_cast<double>(now_ns() - start);
    stop = true;
    for (std::thread& worker : workers) worker.join();
  }
  report.add(mix.name, name, "two_threads", rates[1] / rates[0]);
}

template <typename Work>
double mean_ns(Work&& work) {
  constexpr int kTimes = 200000;
  for (int i = 0; i < kTimes; ++i) work();
  const int64_t start = now_ns();
  for (int i = 0; i < kTimes; ++i) work();
  return static_cast<double>(now_ns() - start) / kTimes;
}

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

void beside(double seconds, int64_t cost, Report& report) {
  OneByte nothing;
  for (const Mix& mix : kMixes)
    hits(mix, "no allocator", seconds, cost, ByStorage{&nothing}, report);
  if (void* glake = dlopen("libglake.so", RTLD_NOW | RTLD_NOLOAD); glake != nullptr) {
    const ByGlake c{symbol<void* (*)(size_t, int, void*)>(glake, "glake_malloc"),
                    symbol<int (*)(void*)>(glake, "glake_free")};
    for (const Mix& mix : kMixes) hits(mix, "glake's C interface", seconds, cost, c, report);
    return;
  }
  for (const auto& [name, prefix] : {std::pair{"libmimalloc.so.2", "mi_"}, {"libc.so.6", ""}}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const std::string of = prefix;
    const ByFunctions heap{symbol<ByFunctions::Allocate>(library, (of + "malloc").c_str()),
                           symbol<void (*)(void*)>(library, (of + "free").c_str())};
    const char* called = of.empty() ? "glibc" : "mimalloc";
    for (const Mix& mix : kMixes) hits(mix, called, seconds, cost, heap, report);
  }
}

void body(const std::string& name, double seconds) {
  const int64_t cost = timing_cost();
  Report report("torch_path");
  for (const Mix& mix : kMixes) {
    hits(mix, name, seconds, cost, ByStorage{}, report);
    threads(mix, name, seconds, ByStorage{}, report);
  }
  beside(seconds, cost, report);
  const char* const calls = "what torch asks the runtime";
  report.add(calls, name, "pair_mean_ns",
             mean_ns([] { (void)c10::cuda::getCurrentCUDAStream(c10::cuda::current_device()); }));
  report.print();
  std::fflush(stdout);
}

}  // namespace
}  // namespace bench

extern "C" __attribute__((visibility("default"))) int torch_path(const char* name, double seconds) {
  return bench::run("torch_path", [&] { bench::body(name, seconds); });
}
