// How the cost of an operation grows with the number n of blocks, views or streams. No cost should
// rise faster than log n.
//
//   curves [--rounds N] [--most N]
//
// Each case grows one number n up to `most`. For every n it prints the cost of one operation: the
// host's time, and glake's driver calls (the models have no driver). Work on the simulated device
// never completes in the cases that this makes harder, and completes at once in all others.
#include <malloc.h>

#include <functional>
#include <random>

#include "memory/huge_pages.h"
#include "replay/engine.h"
#include "subjects.h"

namespace bench {
namespace {

using glake::replay::Event;
using glake::replay::kNever;
using glake::replay::Op;
using glake::replay::Trace;

constexpr uint64_t kRoomy = uint64_t{1} << 40;
constexpr size_t kOperations = 200;  // timed at each n
constexpr const char* kNative = "native";

class Device {
 public:
  Device(const std::string& name, int64_t complete_after, uint64_t bytes = kRoomy) : name_(name) {
    PolicyConfig config = device_of(bytes);
    config.complete_after = complete_after;
    policy_ = make_policy(name, config);
  }
  ~Device() {
    for (const uint64_t block : held_) policy_->release(block);
  }
  uint64_t get(size_t bytes, uint32_t stream = 0) {
    const uint64_t block = policy_->allocate(bytes, stream);
    if (block == 0) throw std::runtime_error(name_ + ": " + policy_->oom_message());
    return block;
  }
  void hold(uint64_t block) { held_.push_back(block); }
  void give(uint64_t block) { policy_->release(block); }
  // PyTorch's allocator gives its cache back when an allocation can be served no other way.
  void empty_cache() {
    if (is_ours(name_)) {
      glake_empty_cache(0);
    } else {
      policy_->allocate(uint64_t{1} << 42, 0);
    }
  }
  uint64_t held() const { return policy_->physical_bytes(); }
  // All driver calls, also those about events and streams. A model has none.
  double calls() const {
    double sum = 0;
    for (const char* symbol :
         {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
          "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuStreamQuery",
          "cuStreamGetId", "cuStreamIsCapturing", "cuStreamGetCaptureInfo_v2"}) {
      sum += static_cast<double>(std::max<int64_t>(simcuda_calls(symbol), 0));
    }
    return sum;
  }

 private:
  std::string name_;
  std::unique_ptr<Policy> policy_;
  std::vector<uint64_t> held_;
};

struct Point {
  double ns = 0;                // for one operation
  double calls = 0;             // of the driver, for one operation
  double bytes = std::nan("");  // of host memory, for a live block
};

// Times `count` calls of `body(i)`.
Point timed(Device& device, size_t count, const std::function<void(size_t)>& body) {
  const double before = device.calls();
  const int64_t from = now_ns();
  for (size_t i = 0; i < count; ++i) body(i);
  const double n = static_cast<double>(count);
  return {static_cast<double>(now_ns() - from) / n, (device.calls() - before) / n};
}

// All memory goes back after n frees, which do not merge, as neighbours are of two streams. The
// cost is that of a granule.
Point emptying(const std::string& name, size_t n) {
  Device device(name, kNever);
  std::vector<uint64_t> blocks;
  for (size_t i = 0; i < n; ++i) blocks.push_back(device.get(3 * kMiB / 2, i % 2));
  for (const uint64_t block : blocks) device.give(block);
  const double granules = static_cast<double>(device.held() / kGranule);
  Point whole = timed(device, 1, [&](size_t) { device.empty_cache(); });
  return {whole.ns / granules, whole.calls / granules};
}

// A request among n free pieces of its size class, each 512 bytes too small.
Point too_small(const std::string& name, size_t n) {
  constexpr size_t kPiece = kMiB + 512;
  Device device(name, 0);
  std::vector<uint64_t> pieces;
  for (size_t i = 0; i < n; ++i) {
    pieces.push_back(device.get(kPiece));
    device.hold(device.get(kPiece));
  }
  for (const uint64_t piece : pieces) device.give(piece);
  std::vector<uint64_t> spare;  // free blocks behind the pieces, of the size that is timed below
  for (size_t i = 0; i < kOperations; ++i) spare.push_back(device.get(kPiece + 512));
  for (const uint64_t block : spare) device.give(block);
  return timed(device, kOperations, [&](size_t) { device.hold(device.get(kPiece + 512)); });
}

// n free extents of a granule or two between live blocks, and a request larger than any.
Point extents(const std::string& name, size_t n) {
  const size_t least = kGranule;
  Device device(name, 0);
  std::vector<uint64_t> free;
  for (size_t i = 0; i < n; ++i) {
    free.push_back(device.get(least * (1 + i % 2)));
    device.hold(device.get(least));
  }
  for (const uint64_t block : free) device.give(block);
  const size_t count = std::min<size_t>(kOperations / 4, n / 32);
  return timed(device, count, [&](size_t i) { device.hold(device.get((4 + i % 8) * least)); });
}

// n blocks of random sizes have come and gone on a full device, so that there are as many views as
// the budget allows.
Point views(const std::string& name, size_t n) {
  std::minstd_rand random(1);
  Device device(name, 0, uint64_t{40} << 30);
  std::vector<uint64_t> live;
  const auto step = [&](size_t) {
    if (live.size() >= 64) {
      uint64_t& block = live[random() % live.size()];
      device.give(block);
      block = live.back();
      live.pop_back();
    }
    live.push_back(device.get(kMiB + random() % (256 * kMiB)));
  };
  for (size_t i = 0; i < n; ++i) step(i);
  const Point point = timed(device, kOperations, step);
  for (const uint64_t block : live) device.hold(block);
  return point;
}

// Work never completes on n streams, which take turns.
Point streams(const std::string& name, size_t n) {
  Device device(name, kNever);
  const auto turn = [&](size_t i) {
    const auto stream = static_cast<uint32_t>(1 + i % n);
    const uint64_t large = device.get((2 + i % 5) * kMiB, stream);
    device.give(device.get(64 << 10, stream));
    device.give(large);
  };
  for (size_t i = 0; i < 4 * n; ++i) turn(i);
  return timed(device, 2 * kOperations, turn);
}

// What malloc has given out, and glake's records in huge pages. Tables of pointers are not counted.
double host_bytes() {
  const struct mallinfo2 all = mallinfo2();
  return static_cast<double>(all.uordblks + all.hblkhd + glake::HugePages::mapped());
}

// A free and an allocation among n live blocks.
Point live_blocks(const std::string& name, size_t n) {
  std::minstd_rand random(1);
  const auto some = [&] { return size_t{512} * (1 + random() % 64); };
  Device device(name, 0);
  device.give(device.get(1));
  const double before = host_bytes();
  std::vector<uint64_t> live(n);
  for (uint64_t& block : live) block = device.get(some());
  const double taken = host_bytes() - before - 8.0 * static_cast<double>(n);
  Point point = timed(device, 100 * kOperations, [&](size_t) {
    uint64_t& block = live[random() % n];
    device.give(block);
    block = device.get(some());
  });
  point.bytes = taken / static_cast<double>(n);
  for (const uint64_t block : live) device.hold(block);
  return point;
}

// One event of a replay of n events. A quarter of the blocks are live at its end.
Point replayed(const std::string& name, size_t n) {
  std::minstd_rand random(1);
  Trace trace;
  trace.name = "made";
  std::vector<Event> live;
  while (trace.events.size() < n) {
    if (live.size() > n / 4 || (!live.empty() && random() % 8 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      Event event = live.back();
      live.pop_back();
      event.op = Op::kFree;
      trace.events.push_back(event);
      ++trace.frees;
    } else {
      Event event;
      event.op = Op::kAlloc;
      event.value = 512 * (1 + random() % 512);
      event.index = trace.indices++;
      live.push_back(event);
      trace.events.push_back(event);
      ++trace.allocations;
    }
  }
  glake::replay::ReplayOptions options;
  const int64_t from = now_ns();
  const auto result = glake::replay::replay(trace, name, options);
  if (result.oom) throw std::runtime_error(name + ": " + result.oom->message);
  return {static_cast<double>(now_ns() - from) / static_cast<double>(n), std::nan("")};
}

struct Curve {
  const char* name;
  Point (*measure)(const std::string&, size_t n);
  const char* ours;
  std::vector<size_t> counts;
};

const std::vector<Curve>& curves() {
  static const std::vector<Curve> all = {
      {"empty_cache, a granule, after frees", emptying, kGlake, {1000, 5000, 20000}},
      {"allocation among pieces too small", too_small, kGlake, {1000, 5000, 20000}},
      {"stitching among free extents", extents, kCompact, {1000, 10000, 100000}},
      {"random sizes after blocks", views, kCompact, {500, 2000, 8000}},
      {"two blocks on streams that never end", streams, kGlake, {4, 16, 64}},
      {"small block among live blocks", live_blocks, kGlake, {1000, 30000, 1000000}},
      {"event of a replay of", replayed, kGlake, {15000, 150000, 1500000}},
  };
  return all;
}

void body(int argc, char** argv) {
  Arguments arguments(argc, argv, {{"rounds", "3"}, {"most", "1500000"}, {"only", ""}});
  const int rounds = arguments.count("rounds");
  const auto most = static_cast<size_t>(arguments.number("most"));
  const std::string only = arguments.text("only");
  Report report("curves");
  for (const Curve& curve : curves()) {
    if (std::string(curve.name).find(only) == std::string::npos) continue;
    for (const size_t n : curve.counts) {
      if (n > most) continue;
      const std::string label = std::string(curve.name) + ": " + std::to_string(n);
      alternate({kGlake, kNative}, rounds, [&](const std::string& subject) {
        const bool ours = subject == kGlake;
        const Point point = curve.measure(ours ? curve.ours : kNative, n);
        report.add(label, subject, "ns", point.ns);
        report.add(label, subject, "calls", ours ? point.calls : std::nan(""));
        report.add(label, subject, "host_bytes", point.bytes);
      });
      std::fprintf(stderr, "%s\n", label.c_str());
    }
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("curves", [&] { bench::body(argc, argv); });
}
