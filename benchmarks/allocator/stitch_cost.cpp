// What a large block costs where the device is full and its free bytes are in pieces of 2 MiB.
// There are as many pieces as the block needs, and no two of them are adjacent.
//
//   stitch_cost [--rounds N] [--most BYTES_IN_MIB]
//
// The device holds twice the request (rounded up to 20 MiB), filled with blocks of 2 MiB of which
// every other one is freed. An allocator that does not stitch is out of memory then (`fits` 0).
// `again` is the same request after the block was freed. "new memory" is the same request on an
// empty device, for comparison. For native that is one cudaMalloc. `driver_us` is modelled.
// `host_us` contains the simulated driver's own time for glake, but none for the models, which have
// no driver.
#include "subjects.h"

namespace bench {
namespace {

constexpr size_t kSegment = 20 * kMiB;
constexpr const char* kNew = ", new memory";

struct Cost {
  double calls;
  Modelled driver_us{};
  double host_us;
};

// Makes one request. Returns the block, or NULL if memory ran out.
void* ask(Policy& device, size_t bytes, Cost* cost) {
  const DriverCalls before = device.calls();
  const int64_t from = now_ns();
  const uint64_t block = device.allocate(bytes, 0);
  const double taken = static_cast<double>(now_ns() - from) * 1e-3;
  const DriverCalls calls = device.calls() - before;
  *cost = {static_cast<double>(calls.of_memory()), modelled_us(calls), taken};
  return reinterpret_cast<void*>(static_cast<uintptr_t>(block));
}

void give(Policy& device, void* block) { device.release(reinterpret_cast<uintptr_t>(block)); }

// Fills the device with blocks of 2 MiB and frees every other one. Returns the rest.
std::vector<uint64_t> fragment(Policy& device, size_t bytes) {
  std::vector<uint64_t> all, kept;
  for (size_t held = 0; held < bytes; held += kGranule) {
    const uint64_t block = device.allocate(kGranule, 0);
    if (block == 0)
      throw std::runtime_error("a block of 2 MiB did not fit: " + device.oom_message());
    all.push_back(block);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 2 == 0) {
      kept.push_back(all[i]);
    } else {
      device.release(all[i]);
    }
  }
  return kept;
}

// By default GMLake stitches from 512 MiB on. Here it may stitch blocks of the same sizes as glake.
std::string policy_of(const std::string& subject) {
  const std::string name = subject.substr(0, subject.find(','));
  return name == "gmlake" ? "gmlake:2MiB" : name;
}

void measure(size_t bytes, const std::string& label, const std::string& subject, Report& report) {
  const bool fresh = subject.find(kNew) != std::string::npos;
  const uint64_t capacity = (2 * bytes + kSegment - 1) / kSegment * kSegment;
  const std::unique_ptr<Policy> device = make_policy(policy_of(subject), device_of(capacity));
  std::vector<uint64_t> kept;
  if (!fresh) kept = fragment(*device, capacity);
  Cost first{}, again{};
  void* block = ask(*device, bytes, &first);
  const bool fits = block != nullptr;
  if (fits) {
    give(*device, block);
    block = ask(*device, bytes, &again);
    if (block != nullptr) give(*device, block);
  }
  for (const uint64_t each : kept) device->release(each);
  const auto add = [&](const char* metric, double value, bool known) {
    report.add(label, subject, metric, known ? value : std::nan(""));
  };
  add("fits", fits ? 1 : 0, true);
  add("driver_calls", first.calls, fits);
  add("driver_us", first.driver_us.published, fits);
  add("driver_us_a100", first.driver_us.a100_kvcached, fits);
  add("driver_us_per_gib", first.driver_us.published * 1024 / (static_cast<double>(bytes) / kMiB),
      fits);
  add("host_us", first.host_us, fits);
  add("again_calls", again.calls, fits);
  add("again_host_us", again.host_us, fits);
}

void body(int argc, char** argv) {
  Arguments arguments(argc, argv, {{"rounds", "5"}, {"most", "4096"}});
  const auto most = static_cast<size_t>(arguments.count("most"));
  std::vector<std::string> subjects = models();
  subjects.insert(subjects.begin(), kGlake);
  for (const char* name : {kGlake, "native", "expandable"}) {
    subjects.push_back(std::string(name) + kNew);
  }
  Report report("stitch_cost");
  for (size_t mib = 64; mib <= most; mib *= 4) {
    const std::string label = std::to_string(mib) + " MiB";
    alternate(subjects, arguments.count("rounds"),
              [&](const std::string& subject) { measure(mib * kMiB, label, subject, report); });
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("stitch_cost", [&] { bench::body(argc, argv); });
}
