// glake_copy_blocks on the simulator: what it copies, when, and what a driver refuses.
#include <cmath>
#include <cstring>

#include "sim_harness.h"
#include "transfer/run/kernels/copy_blocks.h"
#include "transfer/run/kernels/copy_blocks_ptx.h"

namespace {

using glake::transfer::CopyBlock;
using glake::transfer::kCopyBlocks;
using glake::transfer::kCopyBlocksPtx;

constexpr double kUplink = 12.3;  // dgx1v: s0>u0, GB/s
constexpr uint64_t kStart = 8000 + 2000;
constexpr double kRate = 0.9;

// A machine with the kernel loaded, a table, and memory at both ends.
struct Machine : Sim {
  explicit Machine(size_t bytes, Settings more = {}) : Sim(joined(more)), device(bytes) {
    OK(cuMemHostAlloc(&host, bytes, 0));
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&table), 1 << 16, 0));
    at = reinterpret_cast<CUdeviceptr>(host);
    OK(cuModuleLoadData(&module, kCopyBlocksPtx));
    OK(cuModuleGetFunction(&function, module, kCopyBlocks));
    stream = new_stream();
    event = new_event();
  }
  static std::vector<std::pair<const char*, const char*>> joined(Settings more) {
    std::vector<std::pair<const char*, const char*>> all = {{"preset", "dgx1v"},
                                                            {"memory", "64MiB"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  CUresult launch(unsigned count, unsigned threads = 256, unsigned groups = 4) {
    auto where = reinterpret_cast<CUdeviceptr>(table);
    void* arguments[] = {&where, &count};
    return cuLaunchKernel(function, groups, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  }
  Mapped device;
  void* host = nullptr;
  CopyBlock* table = nullptr;
  CUdeviceptr at = 0;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
};

// The bytes are there once the host waits, and not before. They are the bytes that the table names
// when the kernel runs.
void check_bytes() {
  Machine m(kGranule);
  auto* from = static_cast<char*>(m.host);
  auto* to = reinterpret_cast<char*>(m.device.at);
  for (size_t i = 0; i < kGranule; ++i) from[i] = static_cast<char>(i * 7 + i / 256);
  std::memset(to, 1, kGranule);
  OK(simcuda_watch_landings(m.device.at, kGranule));
  m.table[0] = {m.device.at + 3, m.at + 100, 4099};
  m.table[1] = {m.device.at + 8192, m.at + 1, 1};
  m.table[2] = {0, 0, 0};
  m.table[3] = {m.device.at + 65536, m.at + 65536, 65536};
  OK(m.launch(4));
  OK(cuEventRecord(m.event, m.stream));
  TRUE(to[3] == 1 && to[65536] == 1);
  OK(cuEventSynchronize(m.event));
  TRUE(std::memcmp(to + 3, from + 100, 4099) == 0 && to[2] == 1 && to[3 + 4099] == 1);
  TRUE(to[8192] == from[1] && std::memcmp(to + 65536, from + 65536, 65536) == 0);
  TRUE(simcuda_landed(m.device.at, kGranule, 1) == 4099 + 1 + 65536);
  // A table that changes before the kernel has run is a fault, as it is on a GPU.
  m.table[0] = {m.device.at, m.at, 16};
  OK(m.launch(1));
  m.table[0] = {m.device.at + 16, m.at, 16};
  OK(cuStreamSynchronize(m.stream));
  TRUE(to[0] == 1 && std::memcmp(to + 16, from, 16) == 0);
  OK(m.launch(0));
  OK(cuStreamSynchronize(m.stream));
  TRUE(violations() == "[]");
}

// The kernel takes as long as one copy of all bytes would take at kRate times a copy's rate. It
// shares its link with other copies.
void check_time() {
  constexpr size_t kBytes = size_t{32} << 20, kBlock = 16384;
  Machine m(kBytes, {{"phantom", "1"}});
  const size_t count = 2048;
  for (size_t i = 0; i < count; ++i) {
    m.table[i] = {m.device.at + i * kBlock, m.at + (count - 1 - i) * kBlock, kBlock};
  }
  const uint64_t start = simcuda_now_ns();
  OK(m.launch(count));
  OK(cuStreamSynchronize(m.stream));
  const double wanted = static_cast<double>(kStart) + kBytes / (kRate * kUplink);
  const auto taken = static_cast<double>(simcuda_now_ns() - start);
  TRUE(std::abs(taken - wanted) < 1e-3 * wanted);
  TRUE(simcuda_cost_us("cuLaunchKernel") > 0);
  // A dead link stops the kernel as it stops a copy.
  OK(simcuda_set_link("s0", "u0", 0));
  OK(m.launch(count));
  OK(cuEventRecord(m.event, m.stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(m.event, simcuda_now_ns() + 1000000000));
  OK(simcuda_set_link("s0", "u0", kUplink));
  OK(cuEventSynchronize(m.event));
}

void check_faults() {
  Machine m(kGranule);
  auto* to = reinterpret_cast<char*>(m.device.at);
  std::memset(m.host, 5, kGranule);
  std::memset(to, 1, kGranule);
  m.table[0] = {m.device.at, m.at, 64};
  OK(simcuda_fail_copy("m0", "g0", 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1));
  OK(m.launch(1));
  OK(cuEventRecord(m.event, m.stream));
  GIVES(CUDA_ERROR_ECC_UNCORRECTABLE, cuEventSynchronize(m.event));
  TRUE(to[0] == 1);
  OK(simcuda_fail_copy(nullptr, nullptr, 1, 0, 1));
  OK(simcuda_stall_copy("host", "g0", 1, 5000000));
  const uint64_t start = simcuda_now_ns();
  OK(m.launch(1));
  OK(cuEventRecord(m.event, m.stream));
  OK(cuEventSynchronize(m.event));
  TRUE(simcuda_now_ns() - start >= 5000000 && to[0] == 5);
  // An access to memory that the kernel may not touch is found when the host waits for the work.
  static char pageable[64];
  m.table[0] = {m.device.at, reinterpret_cast<uint64_t>(pageable), 64};
  OK(m.launch(1));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(m.stream));
  TRUE(violations().find("access to unmapped memory") != std::string::npos);
  Mapped other(kGranule, 1);
  m.table[0] = {other.at, m.at, 64};
  OK(m.launch(1));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(m.stream));
  TRUE(violations().find("access without grant") != std::string::npos);
}

void check_refusals() {
  Machine m(kGranule);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, nullptr));
  GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "nonsense"));
  GIVES(CUDA_ERROR_NOT_SUPPORTED,
        cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.visible .entry other()"));
  GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, m.module, "other"));
  GIVES(CUDA_ERROR_INVALID_VALUE, m.launch(1, 256, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, m.launch(1, 48));
  GIVES(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, m.launch(1, 512));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuLaunchKernel(m.function, 1, 1, 1, 32, 1, 1, 0, m.stream, nullptr, nullptr));
  m.use(1);  // another context's stream
  const CUstream own = std::exchange(m.stream, new_stream());
  GIVES(CUDA_ERROR_INVALID_HANDLE, m.launch(1));
  m.use(0);
  m.stream = own;
  OK(cuModuleUnload(m.module));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(m.module));
  GIVES(CUDA_ERROR_INVALID_HANDLE, m.launch(1));
}

// A captured launch is a node of the graph. Nothing runs during the capture.
void check_capture() {
  Machine m(kGranule);
  auto* to = reinterpret_cast<char*>(m.device.at);
  std::memset(m.host, 5, kGranule);
  std::memset(to, 1, kGranule);
  m.table[0] = {m.device.at, m.at, 64};
  OK(cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(m.launch(1));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(m.stream, &graph));
  OK(cuStreamSynchronize(m.stream));
  TRUE(to[0] == 1 && graph != nullptr);
  OK(cuGraphDestroy(graph));
}

// The mode with a thread for each stream does the same.
void check_threads() {
  Machine m(kGranule, {{"schedule", "threaded"}});
  std::memset(m.host, 5, kGranule);
  std::memset(reinterpret_cast<void*>(m.device.at), 1, kGranule);
  m.table[0] = {m.device.at + 1, m.at, 63};
  OK(m.launch(1));
  OK(cuStreamSynchronize(m.stream));
  const auto* to = reinterpret_cast<const char*>(m.device.at);
  TRUE(to[0] == 1 && to[1] == 5 && to[63] == 5 && to[64] == 1);
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"bytes", check_bytes},
                        {"time", check_time},
                        {"faults", check_faults},
                        {"refusals", check_refusals},
                        {"capture", check_capture},
                        {"threads", check_threads},
                    });
}
