// Batches of copies, and copies of the simulator through glake's Driver class.
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "driver/device_scope.h"
#include "driver/driver.h"
#include "sim_harness.h"

namespace {

constexpr double kUplink = 12.3;  // dgx1v

using Batch = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, void*, size_t*, size_t,
                           size_t*, CUstream);
using Batch13 = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, void*, size_t*, size_t,
                             CUstream);
struct Attributes {
  int order;
  CUmemLocation source, destination;
  unsigned flags;
};

template <class F>
F batch_call(int version) {
  void* function = nullptr;
  OK(cuGetProcAddress("cuMemcpyBatchAsync", &function, version, 0, nullptr));
  return reinterpret_cast<F>(function);
}

void check_batches() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  for (size_t i = 0; i < kGranule; ++i) host.bytes()[i] = static_cast<unsigned char>(i / 4096);
  const auto batch = batch_call<Batch>(12080);
  const auto batch13 = batch_call<Batch13>(13000);
  TRUE(reinterpret_cast<void*>(batch) != reinterpret_cast<void*>(batch13));
  constexpr size_t kCount = 100;
  CUdeviceptr dsts[kCount], srcs[kCount];
  size_t sizes[kCount], firsts[2] = {0, 50}, failed = 0;
  for (size_t i = 0; i < kCount; ++i) {
    dsts[i] = memory.at + i * 4096;
    srcs[i] = host.address() + (kCount - 1 - i) * 4096;
    sizes[i] = 4096;
  }
  Attributes attributes[2] = {};
  attributes[0].order = 1;
  attributes[1].order = 2;  // read during the call
  CUstream stream = new_stream();
  simcuda_reset_calls();
  OK(batch(dsts, srcs, sizes, kCount, attributes, firsts, 2, &failed, stream));
  TRUE(failed == SIZE_MAX && simcuda_calls("cuMemcpyBatchAsync") == 1);
  TRUE(simcuda_cost_us("cuMemcpyBatchAsync") > 20);
  std::memset(host.at, 200, kGranule);  // too early for the first half
  OK(cuStreamSynchronize(stream));
  const auto* seen = reinterpret_cast<volatile unsigned char*>(memory.at);
  for (size_t i = 0; i < kCount; ++i) TRUE(seen[i * 4096] == (i < 50 ? 200 : kCount - 1 - i));
  // A batch takes one latency, 2.4 us for each copy, and the link's time for all bytes.
  const double wanted = 8000 + kCount * 2400 + kCount * 4096 / kUplink;
  TRUE(std::abs(static_cast<double>(simcuda_now_ns()) - wanted) < 5);
  attributes[0].order = 3;
  OK(batch13(dsts, srcs, sizes, 3, attributes, firsts, 1, stream));
  OK(simcuda_fail_copy("host", "g0", 1, 719, 1));
  OK(batch13(dsts, srcs, sizes, 3, attributes, firsts, 1, stream));
  GIVES(719, cuStreamSynchronize(stream));
  sizes[2] = 0;
  GIVES(CUDA_ERROR_INVALID_VALUE,
        batch(dsts, srcs, sizes, 4, attributes, firsts, 1, &failed, stream));
  TRUE(failed == 2);
  sizes[2] = 4096;
  GIVES(CUDA_ERROR_INVALID_VALUE,
        batch(dsts, srcs, sizes, 4, attributes, firsts, 1, &failed, nullptr));
  firsts[0] = 1;
  GIVES(CUDA_ERROR_INVALID_VALUE, batch13(dsts, srcs, sizes, 4, attributes, firsts, 1, stream));
  firsts[0] = 0;
  attributes[0].order = 0;
  GIVES(CUDA_ERROR_INVALID_VALUE, batch13(dsts, srcs, sizes, 4, attributes, firsts, 1, stream));
  TRUE(violations() == "[]");
}

#define GOOD(status) TRUE((status).ok())

void check_driver_copies(const char* schedule) {
  const Sim sim({{"preset", "dgx1v"}, {"schedule", schedule}});
  const std::unique_ptr<glake::Driver> driver = glake::Driver::open("sim");
  GOOD(driver->attach(0));
  GOOD(driver->attach(1));
  glake::DeviceScope scope(*driver, 0);
  GOOD(scope.status());
  Mapped memory(kGranule), other(kGranule, 1);
  const Host host(kGranule), back(kGranule);
  std::iota(host.bytes(), host.bytes() + kGranule, 0);
  std::memset(back.at, 0, kGranule);
  glake::StreamHandle stream = 0;
  glake::EventId event = 0;
  GOOD(driver->create_stream(&stream));
  GOOD(driver->create_event(0, &event));
  GOOD(driver->enable_peer(0, 1));
  GOOD(driver->enable_peer(0, 1));
  GOOD(driver->copy(memory.at, host.address(), kGranule, stream));
  GOOD(driver->copy_peer(other.at, 1, memory.at, 0, kGranule, stream));
  GOOD(driver->copy_peer(memory.at, 0, other.at, 1, 4096, stream));
  GOOD(driver->copy_rows({back.address(), memory.at, 8192, 4096, 4096, 4}, stream));
  TRUE(driver->has_rows());
  GOOD(driver->copy_peer_rows({other.at + 65536, memory.at, 16384, 8192, 4096, 3}, 1, 0, stream));
  GOOD(driver->copy_peer(memory.at + kGranule / 2, 0, other.at + 65536, 1, 3 * 16384, stream));
  GOOD(driver->copy(back.address() + 131072, memory.at + kGranule / 2, 3 * 16384, stream));
  TRUE(!driver->copy_peer_rows({other.at, memory.at, 4095, 4096, 4096, 2}, 1, 0, stream).ok());
  const glake::Bytes far = glake::Driver::kMostPitch + 1;
  TRUE(!driver->copy_rows({back.address(), memory.at, 4096, far, 4096, 2}, stream).ok());
  glake::Address dsts[] = {back.address() + 4096, back.address() + 12288};
  glake::Address srcs[] = {memory.at, memory.at + 4096};
  glake::Bytes sizes[] = {4096, 100};
  GOOD(driver->copy_batch(dsts, srcs, sizes, 2, stream));
  GOOD(driver->write_value(0, stream, back.address() + 65536, 4));
  GOOD(driver->wait_value(0, stream, back.address() + 65536, 3));
  static std::atomic<int> called;
  int five = 5;
  called = 0;
  GOOD(driver->host_function(
      0, stream, [](void* data) { called = *static_cast<int*>(data); }, &five));
  GOOD(driver->record(0, event, stream));
  TRUE(driver->wait_event(event, 0).not_ready() || std::string(schedule) == "threaded");
  GOOD(driver->wait_event(event, 10000000000));
  bool idle = false;
  GOOD(driver->synchronize_stream(0, stream));
  GOOD(driver->stream_idle(0, stream, &idle));
  TRUE(idle && called == 5);
  TRUE(std::memcmp(back.bytes() + 8192 * 3, host.bytes() + 4096 * 3, 4096) == 0);
  TRUE(std::memcmp(back.bytes() + 4096, host.bytes(), 4096) == 0);
  for (size_t row = 0; row < 3; ++row) {
    const auto* const arrived = back.bytes() + 131072 + row * 16384;
    TRUE(std::memcmp(arrived, host.bytes() + row * 8192, 4096) == 0);
  }
  TRUE(std::memcmp(back.bytes() + 12288, host.bytes() + 4096, 100) == 0);
  GOOD(driver->destroy_stream(stream));
  GOOD(driver->destroy_event(event));
  TRUE(violations() == "[]");
}

void check_driver_copies_everywhere() {
  check_driver_copies("lazy");
  check_driver_copies("threaded");
}

// A copy between devices without access to each other passes host memory. Access is that of the
// context that makes the copy, or of the mapping.
void check_copies_without_access() {
  const Sim sim({{"preset", "hgx_h100_h200"}, {"phantom", "1"}});
  constexpr size_t kBytes = size_t{1} << 30;
  const CUcontext there = context_of(1), here = context_of(0);
  OK(cuCtxSetCurrent(there));
  CUdeviceptr block = 0;
  OK(cuMemAlloc(&block, kBytes));
  OK(cuCtxSetCurrent(here));
  const Mapped memory(kBytes), mapped(kBytes, 1);
  const CUstream stream = new_stream();
  const auto rate = [&](CUdeviceptr dst) {
    const uint64_t start = simcuda_now_ns();
    OK(cuMemcpyPeerAsync(dst, there, memory.at, here, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    return static_cast<double>(kBytes) / static_cast<double>(simcuda_now_ns() - start);
  };
  TRUE(rate(block) < 60 && rate(mapped.at) < 60);
  OK(cuCtxEnablePeerAccess(there, 0));
  TRUE(rate(block) > 380 && rate(mapped.at) < 60);
  OK(grant(mapped.at, kBytes, 0));
  TRUE(rate(mapped.at) > 380);
}

// Over NVLink a copy engine that reads is slower than one that writes.
void check_reads_over_nvlink() {
  const std::pair<const char*, double> parts[] = {{"dgx1v", 0.977}, {"hgx_h100_h200", 0.80}};
  for (const auto& [preset, part] : parts) {
    const Sim sim({{"preset", preset}, {"phantom", "1"}});
    const std::unique_ptr<glake::Driver> driver = glake::Driver::open("sim");
    GOOD(driver->attach(0));
    GOOD(driver->attach(1));
    glake::DeviceScope first(*driver, 0);
    constexpr size_t kBytes = size_t{4} << 30;
    const Mapped memory(kBytes), other(kBytes, 1);
    OK(grant(memory.at, kBytes, 1));
    OK(grant(other.at, kBytes, 0));
    double ns[2] = {};
    for (const int device : {0, 1}) {
      glake::DeviceScope scope(*driver, device);
      glake::StreamHandle stream = 0;
      GOOD(driver->create_stream(&stream));
      const uint64_t start = driver->now_ns();
      GOOD(driver->copy_peer(other.at, 1, memory.at, 0, kBytes, stream));
      GOOD(driver->synchronize_stream(device, stream));
      ns[device] = static_cast<double>(driver->now_ns() - start);
      GOOD(driver->destroy_stream(stream));
    }
    TRUE(std::abs(ns[0] / ns[1] - part) < 0.005);
  }
}

void check_driver_facts() {
  const Sim sim({{"preset", "dgx1v"}});
  const std::unique_ptr<glake::Driver> driver = glake::Driver::open("sim");
  GOOD(driver->attach(0));
  glake::DeviceScope scope(*driver, 0);
  using Kind = glake::PointerFacts::Kind;
  glake::PointerFacts facts;
  Mapped memory(2 * kGranule, 1);
  OK(grant(memory.at, 2 * kGranule, 0));
  GOOD(driver->pointer_facts(memory.at + 5, &facts));
  TRUE(facts.kind == Kind::kDevice && facts.device == 1 && facts.base == memory.at);
  TRUE(facts.size == 2 * kGranule && !facts.read_only);
  CUmemAccessDesc read{};
  read.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  read.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  OK(cuMemSetAccess(memory.at, 2 * kGranule, &read, 1));
  GOOD(driver->pointer_facts(memory.at, &facts, true));
  TRUE(facts.read_only);
  const Host host(8192);
  GOOD(driver->pointer_facts(host.address() + 8191, &facts));
  TRUE(facts.kind == Kind::kHost && facts.device == -1 && facts.base == host.address());
  TRUE(facts.size == 8192 && !facts.read_only);
  static unsigned char page[8192] __attribute__((aligned(4096)));
  const auto address = reinterpret_cast<glake::Address>(page);
  GOOD(driver->pointer_facts(address, &facts));
  TRUE(facts.kind == Kind::kUnregistered);
  GOOD(driver->register_host(page, sizeof page));
  GOOD(driver->pointer_facts(address, &facts));
  TRUE(facts.kind == Kind::kHost);
  glake::Address device = 0;
  GOOD(driver->device_pointer(page, &device));
  TRUE(device == address);
  int node = 9;
  OK(simcuda_place_host(page, 4096, 1));
  GOOD(driver->host_node(page, 100, &node));
  TRUE(node == 1);
  GOOD(driver->unregister_host(page));
  OK(cuMemHostRegister(page, sizeof page, CU_MEMHOSTREGISTER_READ_ONLY));
  GOOD(driver->pointer_facts(address + 100, &facts, true));
  TRUE(facts.kind == Kind::kHost && facts.read_only);
  GOOD(driver->unregister_host(page));
  TRUE(!driver->unregister_host(page).ok());
  void* const nowhere = reinterpret_cast<void*>(0x10000);
  TRUE(cuMemHostRegister(nowhere, 4096, 0) == CUDA_ERROR_INVALID_VALUE);
  TRUE(driver->now_ns() == simcuda_now_ns());
  driver->expect_threads(1);
  std::thread worker([&] {
    driver->thread_at_work(true, 3);
    driver->thread_at_work(false);
  });
  worker.join();
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"batches", check_batches},
                        {"the driver's copies", check_driver_copies_everywhere},
                        {"copies without access", check_copies_without_access},
                        {"reads over NVLink", check_reads_over_nvlink},
                        {"the driver's facts", check_driver_facts},
                    });
}
