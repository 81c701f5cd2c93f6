// What new memory costs, by the size of the driver's handles and by allocator.
//
//   growth [--rounds N]
//
// "handles of N" are the driver's calls alone, on the simulator: one reservation, a create and a
// map for each handle, one set access. The allocators get the same bytes from an empty device, in
// one request or in several. `driver_us` is modelled. `host_us` contains the simulated driver's own
// time where there is one (glake, handles), and says nothing about a GPU.
// benchmarks/gpu/driver_calls measures a real driver.
#include <cuda.h>

#include "subjects.h"

namespace bench {
namespace {

constexpr size_t kGiB = 1024 * kMiB;
constexpr size_t kHandleMiB[] = {2, 4, 8, 20, 32, 64, 128, 256};

struct Case {
  const char* name;
  size_t bytes, request;
};
constexpr Case kCases[] = {{"256 MiB at once", 256 * kMiB, 256 * kMiB},
                           {"1 GiB at once", kGiB, kGiB},
                           {"4 GiB at once", 4 * kGiB, 4 * kGiB},
                           {"1 GiB by 20 MiB", kGiB, 20 * kMiB},
                           {"1 GiB by 3 MiB", kGiB, 3 * kMiB}};

void ok(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(what) + ": CUresult " + std::to_string(result));
  }
}
#define OK(call) ok((call), #call)

CUmemAllocationProp on_device() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return prop;
}

// The driver's calls alone, in the context of a fresh simulated device.
class Handles {
 public:
  Handles(size_t bytes, size_t handle_bytes) {
    const CUmemAllocationProp prop = on_device();
    bytes_ = (bytes + handle_bytes - 1) / handle_bytes * handle_bytes;
    OK(cuMemAddressReserve(&base_, bytes_, 0, 0, 0));
    for (size_t at = 0; at < bytes_; at += handle_bytes) {
      CUmemGenericAllocationHandle handle = 0;
      OK(cuMemCreate(&handle, handle_bytes, &prop, 0));
      handles_.push_back(handle);
      OK(cuMemMap(base_ + at, handle_bytes, 0, handle, 0));
    }
    CUmemAccessDesc access{};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemSetAccess(base_, bytes_, &access, 1));
  }
  ~Handles() {
    cuMemUnmap(base_, bytes_);
    for (const CUmemGenericAllocationHandle handle : handles_) cuMemRelease(handle);
    cuMemAddressFree(base_, bytes_);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  size_t bytes() const { return bytes_; }

 private:
  CUdeviceptr base_ = 0;
  size_t bytes_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

void add(Report& report, const Case& which, const std::string& subject, const DriverCalls& calls,
         double host_us, double physical) {
  const double asked = static_cast<double>(which.bytes);
  const Modelled us = modelled_us(calls);
  report.add(which.name, subject, "driver_calls", static_cast<double>(calls.of_memory()));
  report.add(which.name, subject, "driver_us", us.published);
  report.add(which.name, subject, "driver_us_a100", us.a100_kvcached);
  report.add(which.name, subject, "driver_us_per_gib", us.published * kGiB / asked);
  report.add(which.name, subject, "host_us", host_us);
  report.add(which.name, subject, "held_per_asked", physical / asked);
}

void by_handles(const Case& which, size_t mib, Report& report) {
  const std::unique_ptr<Policy> device =
      make_policy(kGlake, device_of());  // makes the context current
  const int64_t from = now_ns();
  const Handles handles(which.bytes, mib * kMiB);
  const double taken = static_cast<double>(now_ns() - from) * 1e-3;
  add(report, which, "handles of " + std::to_string(mib) + " MiB", device->calls(), taken,
      static_cast<double>(handles.bytes()));
}

void by_policy(const Case& which, const std::string& name, Report& report) {
  const std::unique_ptr<Policy> device = make_policy(name, device_of());
  device->release(device->allocate(1, 0));  // opens the device, which takes milliseconds
  const DriverCalls before = device->calls();
  const uint64_t held = device->physical_bytes();
  std::vector<uint64_t> blocks;
  const int64_t from = now_ns();
  for (size_t asked = 0; asked < which.bytes; asked += which.request) {
    blocks.push_back(device->allocate(which.request, 0));
    if (blocks.back() == 0) throw std::runtime_error(name + ": " + device->oom_message());
  }
  const double taken = static_cast<double>(now_ns() - from) * 1e-3;
  add(report, which, name, device->calls() - before, taken,
      static_cast<double>(device->physical_bytes() - held));
  for (const uint64_t block : blocks) device->release(block);
}

void body(int argc, char** argv) {
  Arguments arguments(argc, argv, {{"rounds", "5"}});
  const int rounds = arguments.count("rounds");
  std::vector<std::string> subjects = models();
  subjects.insert(subjects.begin(), kGlake);
  Report report("growth");
  for (const Case& which : kCases) {
    alternate(subjects, rounds, [&](const std::string& name) { by_policy(which, name, report); });
    if (which.bytes != which.request) continue;
    for (int round = 0; round < rounds; ++round) {
      for (const size_t mib : kHandleMiB) by_handles(which, mib, report);
    }
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("growth", [&] { bench::body(argc, argv); });
}
