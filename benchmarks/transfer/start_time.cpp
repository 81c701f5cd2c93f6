// Real time from the call of a copy to the engine's first driver copy, beside the plain copy. It is
// measured for the engine's first copy of a kind, and for later ones.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>

#include "benchmarks/allocator/measure.h"
#include "benchmarks/transfer/first_copy/first_copy.h"
#include "glake/glake.h"
#include "simcuda/simcuda.h"

namespace bench {
namespace {

constexpr size_t kSizes[] = {1, 16, 256};  // MiB
constexpr int kAgain = 24;                 // copies after the first, in each round
constexpr int kNew = 12;                   // copies of new sizes after them

void expect(bool good, const std::string& what) {
  char text[512] = "";
  glake_last_error(text, sizeof text);
  if (!good) throw std::runtime_error(what + ": " + text);
}

void expect_ok(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(what + (": CUresult " + std::to_string(static_cast<int>(result))));
  }
}

// A GPU, its memory, host memory near it and a stream.
class Gpu {
 public:
  Gpu(int number, size_t bytes) : number_(number), context_(nullptr), stream_(nullptr) {
    memory_ = glake_malloc(bytes, number, nullptr);
    host_ = glake_host_malloc(bytes);
    expect(memory_ != nullptr && host_ != nullptr, "memory");
    expect_ok(cuDevicePrimaryCtxRetain(&context_, number), "context");
    expect_ok(cuCtxSetCurrent(context_), "context");
    expect_ok(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "stream");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    cuStreamDestroy(stream_);
    glake_free(memory_);
    glake_host_free(host_);
    cuDevicePrimaryCtxRelease(number_);
  }
  int number() const { return number_; }
  uint64_t memory() const { return reinterpret_cast<uint64_t>(memory_); }
  uint64_t host() const { return reinterpret_cast<uint64_t>(host_); }
  CUstream stream() const { return stream_; }

 private:
  int number_;
  void *memory_ = nullptr, *host_ = nullptr;
  CUcontext context_;
  CUstream stream_;
};

// A simulated machine with glake open on it.
class Machine {
 public:
  explicit Machine(const std::string& platform) : platform_(platform) {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&first_copy_ns), &info);
    const std::string library = info.dli_fname;
    const std::string folder = library.substr(0, library.rfind('/') + 1);
    std::stringstream text;
    text << std::ifstream(folder + "platforms.json").rdbuf();
    topology_ = text.str();
    for (const auto& [key, value] : {std::pair{"preset", platform.c_str()},
                                     {"phantom", "1"},
                                     {"memory", "80GiB"},
                                     {"host_node", "local"}}) {
      expect_ok(static_cast<CUresult>(simcuda_configure(key, value)), key);
    }
    expect(glake_configure("driver", library.c_str()) == GLAKE_OK, library);
    const int count = glake_device_count();
    expect(count > 1, platform);
    for (int i = 0; i < count; ++i) {
      gpus_.push_back(std::make_unique<Gpu>(i, kSizes[std::size(kSizes) - 1] * kMiB));
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
    gpus_.clear();
    glake_shutdown();
  }

  void open() const {
    expect(glake_transfer_open(topology_.c_str(), platform_.c_str()) == GLAKE_OK, platform_);
  }
  static void close() { expect(glake_transfer_close() == GLAKE_OK, "closing the engine"); }
  const Gpu& gpu(size_t i) const { return *gpus_[i]; }
  size_t gpus() const { return gpus_.size(); }

 private:
  const std::string platform_;
  std::string topology_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

struct Took {
  double start_us = 0, call_us = 0;
};

// Begins one copy of a GPU. Sets `id`, for which the caller waits.
Took begin(const glake_copy_part& part, int dst, int src, const Gpu& on, unsigned flags,
           uint64_t* id) {
  glake_copy_request request{};
  request.size = sizeof request;
  request.parts = &part;
  request.count = 1;
  request.dst_device = dst;
  request.src_device = src;
  request.stream = on.stream();
  request.stream_device = on.number();
  request.ordered = 1;
  request.flags = flags;
  first_copy_forget();
  const int64_t called = now_ns();
  *id = glake_copy_start(&request);
  const int64_t returned = now_ns(), first = first_copy_ns();
  expect(*id != 0, "a copy");
  expect(first != 0, "no copy was asked of the driver");
  return {static_cast<double>(first - called) / 1000,
          static_cast<double>(returned - called) / 1000};
}

void finish(uint64_t id) {
  expect(glake_copy_wait(id, UINT64_MAX) == GLAKE_OK, "waiting");
  expect(glake_copy_release(id) == GLAKE_OK, "releasing");
}

// What is copied. The times of a loop are the mean of its copies.
enum class Kind { kToGpu, kFromGpu, kPeer, kLoop };
constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::kToGpu, "h2d"}, {Kind::kFromGpu, "d2h"}, {Kind::kPeer, "p2p"}, {Kind::kLoop, "all h2d"}};

Took once(const Machine& machine, Kind kind, size_t bytes, unsigned flags) {
  const Gpu &gpu = machine.gpu(0), &peer = machine.gpu(1);
  uint64_t id = 0;
  Took took;
  if (kind == Kind::kFromGpu) {
    took = begin({gpu.host(), gpu.memory(), bytes}, GLAKE_HOST, 0, gpu, flags, &id);
    finish(id);
    return took;
  }
  if (kind == Kind::kPeer) {
    took = begin({peer.memory(), gpu.memory(), bytes}, 1, 0, gpu, flags, &id);
    finish(id);
    return took;
  }
  const size_t gpus = kind == Kind::kLoop ? machine.gpus() : 1;
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < gpus; ++i) {
    const Gpu& one = machine.gpu(i);
    const Took each =
        begin({one.memory(), one.host(), bytes}, one.number(), GLAKE_HOST, one, flags, &id);
    took.start_us += each.start_us / static_cast<double>(gpus);
    took.call_us += each.call_us / static_cast<double>(gpus);
    ids.push_back(id);
  }
  for (const uint64_t each : ids) finish(each);
  return took;
}

// Sizes from half of `bytes` to all of it. None comes again in a program's run.
size_t new_size(size_t bytes) {
  static double part = 0;
  part = std::fmod(part + 0.6180339887, 1.0);
  return static_cast<size_t>((0.5 + part / 2) * static_cast<double>(bytes)) / 256 * 256;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void measure(const Machine& machine, Kind kind, size_t bytes, unsigned flags,
             const std::string& label, const std::string& subject, Report* report) {
  machine.open();
  report->add(label, subject, "first_us", once(machine, kind, bytes, flags).start_us);
  std::vector<double> starts, calls;
  for (int i = 0; i < kAgain; ++i) {
    const Took took = once(machine, kind, bytes, flags);
    starts.push_back(took.start_us);
    calls.push_back(took.call_us);
  }
  report->add(label, subject, "again_us", median(starts));
  report->add(label, subject, "call_us", median(calls));
  std::vector<double> fresh;
  for (int i = 0; i < kNew; ++i) {
    fresh.push_back(once(machine, kind, new_size(bytes), flags).start_us);
  }
  report->add(label, subject, "new_us", median(fresh));
  report->add(label, subject, "new_worst_us", *std::max_element(fresh.begin(), fresh.end()));
  Machine::close();
}

void body(int argc, char** argv) {
  Arguments arguments(argc, argv, {{"rounds", "9"}, {"platform", "hgx_h100_h200"}, {"only", ""}});
  const std::string platform = arguments.text("platform"), only = arguments.text("only");
  Report report("start_time");
  const int rounds = arguments.count("rounds");
  const Machine machine(platform);
  for (const auto& [kind, name] : kKinds) {
    for (const size_t mib : kSizes) {
      const std::string label = platform + ", " + name + ", " + std::to_string(mib) + " MiB";
      if (label.find(only) == std::string::npos) continue;
      alternate({"glake", "plain"}, rounds, [&, kind = kind](const std::string& subject) {
        const unsigned flags = subject == "plain" ? GLAKE_COPY_DIRECT : 0;
        measure(machine, kind, mib * kMiB, flags, label, subject, &report);
      });
    }
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("start_time", [&] { bench::body(argc, argv); });
}
