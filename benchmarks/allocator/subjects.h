// The allocators that are measured. All do the same job on a CPU. common.py and docs/benchmarks.md
// say what each is and what its figures mean.
//
//   glake, compact      the real core under its two policies, through its C interface, over simcuda
//                       in phantom mode
//   native, expandable, gmlake
//                       the replay's models of other allocators (csrc/replay), behind one recursive
//                       lock for each device, as PyTorch's is
//   glibc               malloc of sizes 512 times smaller, as a yardstick for pure book-keeping
#pragma once

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "glake/glake.h"
#include "measure.h"
#include "replay/policy.h"
#include "simcuda/simcuda.h"

namespace bench {

using glake::replay::DriverCalls;
using glake::replay::make_policy;
using glake::replay::Policy;
using glake::replay::PolicyConfig;
using glake::replay::price_tables;
using glake::replay::PriceTable;

constexpr uint64_t kDeviceBytes = uint64_t{80} << 30;  // where the size of a device does not matter

constexpr const char* kGlake = "glake";
constexpr const char* kCompact = "compact";
constexpr const char* kGlibc = "glibc";
constexpr size_t kGlibcScale = 512;  // makes its smallest block stand for ours

// Modelled microseconds of calls, by each of the two built-in tables.
struct Modelled {
  double published, a100_kvcached;
};
inline Modelled modelled_us(const DriverCalls& calls) {
  static const std::vector<PriceTable> tables = price_tables("", {"published", "a100-kvcached"});
  return {tables[0].of(calls, {}).all, tables[1].of(calls, {}).all};
}

// The memory of one fresh device. Threads may share it, except in construction and destruction.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual void* allocate(size_t bytes) = 0;  // NULL: out of memory
  virtual void release(void* block) = 0;
  // Like allocate(), but the driver takes `stall` where memory grows.
  virtual void* allocate_stalled(size_t bytes, std::chrono::milliseconds stall) = 0;
  virtual DriverCalls calls() { return {}; }
  virtual uint64_t physical_bytes() { return 0; }  // 0: not known
};

class GlakeSubject : public Subject {
 public:
  GlakeSubject(const std::string& name, const PolicyConfig& config)
      : device_(make_policy(name, config)) {}
  ~GlakeSubject() override { simcuda_configure("call_delay_us", "cuMemMap=0"); }
  void* allocate(size_t bytes) override { return glake_malloc(bytes, 0, nullptr); }
  void release(void* block) override { glake_free(block); }
  void* allocate_stalled(size_t bytes, std::chrono::milliseconds stall) override {
    const size_t calls = std::max<size_t>(bytes / kGranule, 1);
    const std::string delay =
        "cuMemMap=" + std::to_string(stall.count() * 1000 / static_cast<int64_t>(calls));
    simcuda_configure("call_delay_us", delay.c_str());
    return glake_malloc(bytes, 0, nullptr);
  }
  DriverCalls calls() override { return device_->calls(); }
  uint64_t physical_bytes() override { return device_->physical_bytes(); }

 private:
  std::unique_ptr<Policy> device_;  // starts the core on a fresh simulated device, and ends it
};

// This is cheaper than the allocator that it models: it has no table from pointers to blocks, no
// statistics and no history.
class ModelSubject : public Subject {
 public:
  ModelSubject(const std::string& name, const PolicyConfig& config)
      : policy_(make_policy(name, config)) {}
  void* allocate(size_t bytes) override {
    const std::lock_guard<std::recursive_mutex> held(lock_);
    return reinterpret_cast<void*>(static_cast<uintptr_t>(policy_->allocate(bytes, 0)));
  }
  void release(void* block) override {
    const std::lock_guard<std::recursive_mutex> held(lock_);
    policy_->release(reinterpret_cast<uintptr_t>(block));
  }
  // PyTorch keeps its lock across cudaMalloc unless release_lock_on_cudamalloc is set.
  void* allocate_stalled(size_t bytes, std::chrono::milliseconds stall) override {
    const std::lock_guard<std::recursive_mutex> held(lock_);
    const uint64_t before = policy_->physical_bytes();
    void* block = allocate(bytes);
    if (policy_->physical_bytes() != before) std::this_thread::sleep_for(stall);
    return block;
  }
  DriverCalls calls() override { return locked()->calls(); }
  uint64_t physical_bytes() override { return locked()->physical_bytes(); }

 private:
  Policy* locked() {
    const std::lock_guard<std::recursive_mutex> held(lock_);
    return policy_.get();
  }
  std::recursive_mutex lock_;
  std::unique_ptr<Policy> policy_;
};

class GlibcSubject : public Subject {
 public:
  GlibcSubject() {  // takes all from the heap, and gives nothing back to the system
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
  }
  void* allocate(size_t bytes) override {
    // Nobody else uses the block, and the compiler must not remove the pair.
    void* volatile block = std::malloc(std::max<size_t>(bytes / kGlibcScale, 1));
    return block;
  }
  void release(void* block) override { std::free(block); }
  void* allocate_stalled(size_t bytes, std::chrono::milliseconds) override {
    return allocate(bytes);
  }
};

inline bool is_ours(const std::string& name) { return name == kGlake || name == kCompact; }

inline PolicyConfig device_of(uint64_t bytes = kDeviceBytes) {
  PolicyConfig config;
  config.capacity = bytes;
  return config;
}

inline std::unique_ptr<Subject> make_subject(const std::string& name) {
  const PolicyConfig config = device_of();
  if (is_ours(name)) return std::make_unique<GlakeSubject>(name, config);
  if (name == kGlibc) return std::make_unique<GlibcSubject>();
  return std::make_unique<ModelSubject>(name, config);
}

// The models of other allocators.
inline std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const glake::replay::PolicyTitle& each : glake::replay::policies()) {
    if (each.kind == glake::replay::PolicyKind::kModel) names.push_back(each.name);
  }
  return names;
}

// Returns the block, or throws, as the benchmark cannot go on without it.
inline void* must(void* block, const std::string& who) {
  if (block != nullptr) return block;
  char why[1024] = "";
  if (is_ours(who)) glake_last_error(why, sizeof why);
  throw std::runtime_error(who + ": out of memory " + why);
}

}  // namespace bench
