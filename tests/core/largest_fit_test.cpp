// The largest fit that an out-of-memory error names is exact: a request of that size succeeds, and
// one of 512 bytes more does not. The higher limit that it advises is high enough. Random programs
// run over policies, contiguous blocks, limits, streams, private pools, pins, pending work and
// guards. After each refusal the test tries the largest fit, 512 bytes more, and the advised limit.
//
// largest_fit_test [FIRST COUNT [MODE]] runs other seeds.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

#include "harness.h"

namespace {

using test::kGranule;
using test::kMiB;

constexpr size_t kStep = 512;  // of block sizes
constexpr glake_pool kOwn{0, 0}, kPool{7, 1}, kLender{7, 2};

struct Mode {
  const char* name;
  const char* contiguous = "none";
  const char* debug = "";
  bool pools = false;
  bool kinds = false;     // contiguous blocks are asked for by name too
  bool outside = false;   // another allocator takes part of the limit
  bool pins = false;      // some blocks are pinned, and freed while they are
  bool work = false;      // streams have work pending on blocks that are freed
  bool graphs = false;    // graphs are captured now and then, in a pool
  bool refusals = false;  // the driver refuses for a while to take memory back
  bool late = false;      // a pool's flags change at any time, after its last user has left too
  bool host = false;      // the host has less memory for the device than the driver reports
};

const Mode kModes[] = {
    {"plain"},
    {"contiguous 4MiB", "4MiB"},
    {"contiguous 1MiB", "1MiB"},
    {"legacy 4MiB", "legacy:4MiB"},
    {"kinds", "none", "", false, true},
    {"pools", "none", "", true},
    {"pools and contiguous", "4MiB", "", true, true},
    {"outside", "8MiB", "", false, true, true},
    {"guards", "none", "guard"},
    {"pins", "8MiB", "", false, true, false, true},
    {"work", "none", "", false, false, false, false, true},
    {"work and pins", "8MiB", "", true, true, true, true, true},
    {"graphs", "none", "", true, false, false, false, false, true},
    {"graphs and work", "8MiB", "", true, false, false, false, true, true},
    {"graphs and pins", "none", "", true, false, false, true, true, true},
    {"refusals", "none", "", true, true, false, false, false, false, true},
    {"refusals and all", "8MiB", "", true, true, true, true, true, true, true, true},
    {"late flags", "none", "", true, false, false, true, true, true, false, true},
    {"host", "none", "", false, true, false, false, false, false, false, false, true},
    {"host and contiguous", "8MiB", "", true, true, false, true, false, false, false, false, true},
};

// Gives this process a small /dev/shm of its own, which holds a shared simulated machine's memory.
// False where the system does not allow that.
bool have_small_shm() {
  const std::string user = std::to_string(geteuid()), group = std::to_string(getegid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";  // otherwise no group may be mapped
  std::ofstream("/proc/self/uid_map") << user + " " + user + " 1";
  std::ofstream("/proc/self/gid_map") << group + " " + group + " 1";
  return mount("none", "/dev/shm", "tmpfs", 0, "size=24m") == 0;
}

class Program {
 public:
  Program(const Mode& mode, uint64_t seed)
      : mode_(mode), dice_(seed), streams_(mode.graphs ? 3 : seed % 3 + 1) {
    test::running() = std::string(mode.name) + ", seed " + std::to_string(seed);
    // The driver has less than the limit allows.
    less_ = seed % 4 == 1 && !mode.host;
    test::fresh_simulator({{"phantom", mode.debug[0] == 0 && !mode.host ? "1" : "0"},
                           {"machine", mode.host ? "small" : ""},
                           {"memory", less_ ? "96MiB" : "256MiB"},
                           {"devices", "1"},
                           {"seed", std::to_string(seed)}});
    test::configure({{"driver", "sim"},
                     {"limit", mode.host       ? "100%"
                               : seed % 4 == 3 ? "0.3"
                                               : "96MiB"},
                     {"policy", dice_.chance(50) ? "balanced" : "compact"},
                     {"contiguous", mode.contiguous},
                     {"debug", mode.debug}});
    void* first = glake_malloc(kMiB, 0, nullptr);
    CHECK_TEXT(first != nullptr, test::last_error());
    OK(glake_free(first));
    context_ = std::make_unique<test::CurrentContext>();
    for (size_t i = 1; i < streams_.size(); ++i) {
      CU(cuStreamCreate(&streams_[i], 1));
      // A capture on a stream that glake has not seen would be broken by its wait for the device.
      OK(glake_free(glake_malloc(1, 0, streams_[i])));
    }
    if (less_) CU(cuMemAlloc(&taken_, 20 * kMiB));
    if (mode.outside) OK(glake_claim_outside(0, kClaimed));
  }

  // How often a request was refused, and how often it was granted under the advised limit.
  struct Count {
    int refused = 0, raised = 0;
  };

  Count run() {
    int& refused = count_.refused;
    for (int i = 0; i < 20000 / test::kSlowdown && refused < (mode_.host ? 10 : 30); ++i) {
      Call call = random_call();
      size_t bytes =
          dice_.chance(30) ? dice_(1, kMiB) : dice_(kMiB, dice_.chance(20) ? 80 * kMiB : 24 * kMiB);
      if (mode_.pools && dice_.chance(5)) turn_pool();
      if (mode_.graphs && dice_.chance(3)) turn_capture();
      if (mode_.refusals && dice_.chance(2)) turn_refusals();
      if (dice_.chance(1)) glake_empty_cache(0);
      const bool asks = dice_.chance(60);
      void* ptr = asks ? ask(call, bytes) : nullptr;
      if (ptr != nullptr) {
        live_.push_back(ptr);
      } else if (asks) {
        ++refused;
        if (!dice_.chance(30) || !check_raise(call, bytes)) check_fit(call);
        for (int n = 0; n < 5; ++n) drop();
      } else {
        drop();
      }
    }
    if (captures_) turn_capture();
    if (refuses_) turn_refusals();
    while (!live_.empty()) drop();
    for (void* block : pinned_) OK(glake_unpin(block));
    end();
    return count_;
  }

 private:
  // How a block is asked for.
  struct Call {
    CUstream stream;
    glake_pool pool;
    int kind;
  };

  Call random_call() {
    Call call{streams_[dice_(0, streams_.size() - 1)], kOwn, GLAKE_STITCHED};
    if (mode_.pools && dice_.chance(40))
      call.pool = dice_.chance(50) ? kPool : kLender;
    else if (mode_.kinds && dice_.chance(30))
      call.kind = dice_.chance(50) ? GLAKE_CONTIGUOUS_VMM : GLAKE_CONTIGUOUS_LEGACY;
    if (captures_ && call.stream == streams_[1]) call.pool = kPool;
    return call;
  }

  static void* ask(const Call& call, size_t bytes) {
    if (call.pool.first != 0) return glake_pool_malloc(bytes, 0, call.stream, call.pool);
    return glake_malloc_contiguous(bytes, 0, call.stream, call.kind);
  }

  void turn_refusals() {
    refuses_ = !refuses_;
    if (!refuses_) {
      CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
      return;
    }
    for (const char* call : {"cuMemUnmap", "cuMemRelease", "cuMemFree", "cuMemAddressFree"}) {
      if (dice_.chance(50)) CHECK(simcuda_fail(call, 1, CUDA_ERROR_UNKNOWN, 99999) == 0);
    }
  }

  void turn_capture() {
    captures_ = !captures_;
    if (captures_) {
      CU(cuStreamBeginCapture(streams_[1], CU_STREAM_CAPTURE_MODE_RELAXED));
      return;
    }
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(streams_[1], &graph));
    CU(cuGraphDestroy(graph));
  }

  void turn_pool() {
    glake_pool pool = dice_.chance(50) ? kPool : kLender;
    if (glake_pool_uses(0, pool) > 0 && dice_.chance(40)) {
      OK(glake_pool_release(0, pool));
    } else {
      OK(glake_pool_retain(0, pool));
      OK(glake_pool_set_flags(0, pool, static_cast<unsigned>(dice_(0, 3))));
    }
    if (mode_.late) glake_pool_set_flags(0, pool, static_cast<unsigned>(dice_(0, 3)));
  }

  static size_t largest_fit() {
    const std::string text = test::last_error();
    CHECK_TEXT(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY, text);
    size_t at = text.find("largest fit now ");
    CHECK_TEXT(at != std::string::npos, text);
    return std::strtoull(text.c_str() + text.find('(', at) + 1, nullptr, 10);
  }

  void check_fit(const Call& call) {
    const std::string text = test::last_error();
    const size_t fits = largest_fit();
    // Where the driver takes nothing back, a refused request leaves granules, which change the fit.
    if (!refuses_) {
      void* more = ask(call, fits + kStep);
      CHECK_TEXT(more == nullptr, "512 bytes more fit: " + text);
      CHECK_TEXT(largest_fit() == fits, text + "\n  then: " + test::last_error());
    }
    if (fits == 0) return;
    void* ptr = ask(call, fits);
    CHECK_TEXT(ptr != nullptr, "it does not fit: " + text);
    OK(glake_free(ptr));
  }

  // Sets the limit as the last refusal advises, asks again, and sets the limit back. False if the
  // refusal advises none.
  bool check_raise(const Call& call, size_t bytes) {
    const std::string text = test::last_error();
    const size_t at = text.find("Raising GLAKE_LIMIT by ");
    if (at == std::string::npos) return false;
    const size_t to =
        std::strtoull(text.c_str() + text.find("(GLAKE_LIMIT=", at) + 13, nullptr, 10);
    const size_t total = (less_ ? 96 : 256) * kMiB;
    const double before = glake_limit_fraction(0);
    OK(glake_set_limit_fraction(0, static_cast<double>(to * kMiB) / static_cast<double>(total)));
    void* ptr = ask(call, bytes);
    CHECK_TEXT(ptr != nullptr, text + "\n  then: " + test::last_error());
    OK(glake_free(ptr));
    OK(glake_set_limit_fraction(0, before));
    ++count_.raised;
    return true;
  }

  void drop() {
    if (mode_.pins && !pinned_.empty() && dice_.chance(30)) {
      OK(glake_unpin(pinned_.back()));
      pinned_.pop_back();
    }
    if (live_.empty()) return;
    std::swap(live_[dice_(0, live_.size() - 1)], live_.back());
    void* const block = live_.back();
    if (mode_.work && dice_.chance(50)) use(block);
    if (mode_.pins && dice_.chance(20)) {
      OK(glake_pin(block));
      pinned_.push_back(block);
    }
    OK(glake_free(block));
    live_.pop_back();
  }

  void use(void* block) {
    CUstream stream = streams_[dice_(0, streams_.size() - 1)];
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(block), 1, 1, stream));
    OK(glake_record_stream(block, stream));
  }

  void end() {
    if (mode_.outside) OK(glake_claim_outside(0, -kClaimed));
    for (glake_pool pool : {kPool, kLender}) {
      while (glake_pool_uses(0, pool) > 0) OK(glake_pool_release(0, pool));
    }
    if (taken_ != 0) CU(cuMemFree(taken_));
    OK(glake_check(0));
    OK(glake_shutdown());
    for (size_t i = 1; i < streams_.size(); ++i) test::end_stream(streams_[i]);
  }

  static constexpr int64_t kClaimed = 9 * 1000 * 1000;
  const Mode& mode_;
  bool less_ = false;
  bool captures_ = false;
  bool refuses_ = false;
  Count count_;
  test::Dice dice_;
  std::vector<CUstream> streams_;
  std::unique_ptr<test::CurrentContext> context_;
  CUdeviceptr taken_ = 0;
  std::vector<void*> live_, pinned_;
};

uint64_t first_seed = 0, seeds = 4;

void play(const char* name) {
  for (const Mode& mode : kModes) {
    if (std::strcmp(name, mode.name) != 0) continue;
    if (mode.host && !have_small_shm()) {
      std::printf("not run, no user namespace to mount a small /dev/shm in\n");
      continue;
    }
    int refused = 0, raised = 0;
    for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      const Program::Count one = Program(mode, seed).run();
      refused += one.refused;
      raised += one.raised;
    }
    std::printf("%s: %d refusals, %d went through as advised\n", mode.name, refused, raised);
    CHECK_TEXT(refused > 20, mode.name);
  }
}

TEST(plain) { play("plain"); }
TEST(contiguous_4MiB) { play("contiguous 4MiB"); }
TEST(contiguous_1MiB) { play("contiguous 1MiB"); }
TEST(legacy_4MiB) { play("legacy 4MiB"); }
TEST(kinds) { play("kinds"); }
TEST(pools) { play("pools"); }
TEST(pools_and_contiguous) { play("pools and contiguous"); }
TEST(outside) { play("outside"); }
TEST(guards) { play("guards"); }
TEST(pins) { play("pins"); }
TEST(work) { play("work"); }
TEST(work_and_pins) { play("work and pins"); }
TEST(graphs) { play("graphs"); }
TEST(graphs_and_work) { play("graphs and work"); }
TEST(graphs_and_pins) { play("graphs and pins"); }
TEST(refusals) { play("refusals"); }
TEST(refusals_and_all) { play("refusals and all"); }
TEST(late_flags) { play("late flags"); }
TEST(host) { play("host"); }
TEST(host_and_contiguous) { play("host and contiguous"); }

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && argv[1][0] != '-') {  // other programs: the first seed, and how many
    first_seed = std::strtoull(argv[1], nullptr, 10);
    seeds = std::strtoull(argv[2], nullptr, 10);
  }
  return test::run_cases(argc, argv);
}
