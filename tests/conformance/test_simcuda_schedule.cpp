// Tests the order in which the simulator runs work: seeds, late work, threads, the virtual clock.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "sim_harness.h"

namespace {

// Two copies write the same host byte, on streams between which there is no order.
std::string race(const char* seed) {
  const Sim sim({{"seed", seed}});
  Mapped memory(kGranule);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, 4096, 0));
  auto* bytes = static_cast<unsigned char*>(host);
  std::vector<CUstream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(new_stream());
  std::string outcome;
  for (int round = 0; round < 16; ++round) {
    for (int i = 0; i < 4; ++i) {
      OK(cuMemsetD8Async(memory.at, static_cast<unsigned char>('a' + i), 1, streams[i]));
    }
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH(bytes, memory.at, 1));
    outcome += static_cast<char>(bytes[0]);
  }
  return outcome + " " + std::to_string(simcuda_now_ns());
}

void check_seeds() {
  const std::string first = race("1");
  TRUE(first == race("1"));
  TRUE(first != race("2"));
}

// Work that was enqueued on another stream has not run yet. So memory that is reused without a wait
// has wrong bytes.
void check_work_runs_late() {
  const Sim sim({});
  Mapped memory(kGranule);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kGranule, 0));
  auto* source = static_cast<unsigned char*>(host);
  CUstream reader = new_stream(), writer = new_stream();
  std::memset(host, 1, kGranule);
  OK(cuMemcpyHtoDAsync(memory.at, host, kGranule, reader));
  source[5] = 2;  // too early: the copy has not read it
  OK(cuStreamSynchronize(reader));
  unsigned char seen = 0;
  OK(cuMemcpyDtoH(&seen, memory.at + 5, 1));
  TRUE(seen == 2);
  // The completion of one stream says nothing about the other.
  OK(cuMemsetD8Async(memory.at, 9, kGranule, reader));
  OK(cuMemsetD8Async(memory.at + 1, 1, 1, writer));
  OK(cuStreamSynchronize(writer));
  TRUE(reinterpret_cast<volatile unsigned char*>(memory.at)[0] == 1);
  OK(cuStreamSynchronize(reader));
  TRUE(reinterpret_cast<volatile unsigned char*>(memory.at)[0] == 9);
  // A query right after the enqueue finds work not ready, and asking again lets it finish.
  CUevent event = new_event();
  OK(cuMemsetD8Async(memory.at, 3, kGranule, reader));
  OK(cuEventRecord(event, reader));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  int asked = 0;
  while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) TRUE(++asked < 100);
  TRUE(reinterpret_cast<volatile unsigned char*>(memory.at)[0] == 3);
}

unsigned char first_byte(CUdeviceptr at) {
  unsigned char seen = 0;
  OK(cuMemcpyDtoH(&seen, at, 1));
  return seen;
}

// A copy between two GPUs in the NULL stream starts after the default-stream work of both, and ends
// before what comes there later. No other stream of the second GPU is waited for.
void check_null_stream_copies_order_both_gpus(const char* schedule) {
  const Sim sim({{"preset", "dgx1v"}, {"schedule", schedule}});
  const bool late = std::string(schedule) != "threaded";
  CUcontext here = nullptr, there = nullptr;
  OK(cuCtxGetCurrent(&here));
  Mapped target(kGranule);
  OK(cuDevicePrimaryCtxRetain(&there, 1));
  Mapped source(kGranule, 1);
  OK(cuCtxSetCurrent(there));
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT), apart = new_stream();
  OK(cuMemsetD8Async(source.at, 7, kGranule, nullptr));
  OK(cuCtxSetCurrent(here));
  OK(cuMemcpyPeer(target.at, here, source.at, there, kGranule));
  TRUE(first_byte(target.at) == 7);
  for (const CUstream stream : {CUstream{nullptr}, blocking}) {
    OK(cuCtxSetCurrent(there));
    OK(cuMemsetD8Async(source.at, 1, kGranule, stream));
    OK(cuCtxSetCurrent(here));
    OK(cuMemcpyPeerAsync(target.at, here, source.at, there, kGranule, nullptr));
    OK(cuCtxSetCurrent(there));
    OK(cuMemsetD8Async(source.at, 2, kGranule, stream));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(here));
    TRUE(first_byte(target.at) == 1);
  }
  if (!late) return;
  OK(cuCtxSetCurrent(there));
  OK(cuMemsetD8Async(source.at, 3, kGranule, apart));
  OK(cuCtxSetCurrent(here));
  OK(cuMemcpyPeer(target.at, here, source.at, there, kGranule));
  TRUE(first_byte(target.at) == 2);
  // A copy in another blocking stream has the order of its own GPU's NULL stream alone.
  const CUstream mine = new_stream(CU_STREAM_DEFAULT);
  OK(cuCtxSetCurrent(there));
  OK(cuCtxSynchronize());
  OK(cuMemsetD8Async(source.at, 4, kGranule, nullptr));
  OK(cuCtxSetCurrent(here));
  OK(cuMemcpyPeerAsync(target.at, here, source.at, there, kGranule, mine));
  TRUE(first_byte(target.at) == 3);
}

void check_null_stream_copies() {
  check_null_stream_copies_order_both_gpus("lazy");
  check_null_stream_copies_order_both_gpus("threaded");
}

// A capture on a blocking stream of the other GPU would have to be waited for.
void check_null_stream_copy_breaks_capture() {
  const Sim sim({{"preset", "dgx1v"}});
  CUcontext here = nullptr, there = nullptr;
  OK(cuCtxGetCurrent(&here));
  OK(cuDevicePrimaryCtxRetain(&there, 1));
  Mapped target(kGranule), source(kGranule, 1);
  OK(cuCtxSetCurrent(there));
  const CUstream capturing = new_stream(CU_STREAM_DEFAULT);
  OK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuCtxSetCurrent(here));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        cuMemcpyPeer(target.at, here, source.at, there, kGranule));
  CUgraph graph = nullptr;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(capturing, &graph));
}

// CUDA Driver API, API synchronization behavior, Memset.
void check_memsets_of_host_memory_wait() {
  const Sim sim({});
  const Host host(4096);
  CUdeviceptr managed = 0;
  OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  Mapped device(kGranule);
  for (const CUdeviceptr at : {host.address(), managed, device.at}) {
    const auto* seen = reinterpret_cast<volatile unsigned char*>(at);
    OK(cuMemsetD8(at, 1, 4096));
    TRUE((seen[4095] == 1) == (at != device.at));
    OK(cuMemsetD32(at, 0x02020202, 1024));
    TRUE((seen[4095] == 2) == (at != device.at));
    OK(cuMemsetD8Async(at, 3, 4096, nullptr));
    TRUE(seen[4095] != 3);
    OK(cuCtxSynchronize());
    TRUE(seen[4095] == 3);
  }
}

void check_threaded_schedule() {
  const Sim sim({{"schedule", "threaded"}});
  Mapped memory(kGranule);
  CUstream writer = new_stream(), reader = new_stream();
  CUevent event = new_event();
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kGranule, 0));
  for (unsigned char round = 1; round < 50; ++round) {
    OK(cuMemsetD8Async(memory.at, round, kGranule, writer));
    OK(cuEventRecord(event, writer));
    OK(cuStreamWaitEvent(reader, event, 0));
    OK(cuMemcpyDtoHAsync(host, memory.at, kGranule, reader));
    OK(cuStreamSynchronize(reader));
    TRUE(static_cast<unsigned char*>(host)[kGranule - 1] == round);
  }
}

void check_host_function_may_not_call() {
  const Sim sim({});
  CUstream stream = new_stream();
  static CUresult inside;
  inside = CUDA_SUCCESS;
  OK(cuLaunchHostFunc(stream, [](void*) { inside = cuCtxSynchronize(); }, nullptr));
  OK(cuStreamSynchronize(stream));
  TRUE(inside == CUDA_ERROR_NOT_PERMITTED);
}

void check_many_threads() {
  const Sim sim({});
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      try {
        OK(cuCtxSetCurrent(context));
        CUstream stream = new_stream();
        for (int i = 0; i < 50; ++i) {
          Mapped memory(kGranule);
          OK(cuMemsetD8Async(memory.at, static_cast<unsigned char>(t), kGranule, stream));
          OK(cuStreamSynchronize(stream));
          if (*reinterpret_cast<unsigned char*>(memory.at + i) != t) ++wrong;
          memory.free();
        }
        OK(cuStreamDestroy(stream));
      } catch (const Failed&) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  TRUE(wrong == 0);
  TRUE(ledger_of("used_bytes") == 0 && ledger_of("reservations") == 0);
}

// With registered threads the clock stands still until each of them waits in the driver.
void check_registered_threads_hold_time() {
  const Sim sim({});
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  Mapped memory(kGranule);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kGranule, 0));
  CUstream mine = new_stream(), theirs = new_stream();
  std::atomic<bool> joined{false}, waits{false};
  std::atomic<uint64_t> before{1};
  std::thread other([&] {
    cuCtxSetCurrent(context);
    simcuda_thread(1);
    joined = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    before = simcuda_now_ns();  // the main thread has been waiting meanwhile
    waits = true;
    cuMemcpyHtoDAsync(memory.at, host, kGranule, theirs);
    cuStreamSynchronize(theirs);
    simcuda_thread(0);
  });
  while (!joined) std::this_thread::yield();
  OK(simcuda_thread(1));
  OK(cuMemcpyHtoDAsync(memory.at, host, 4096, mine));
  OK(cuStreamSynchronize(mine));
  const bool held = waits;
  OK(simcuda_thread(0));
  other.join();
  TRUE(held && before == 0);
  TRUE(simcuda_now_ns() > 8000);
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(
      argc, argv,
      {
          {"seeds", check_seeds},
          {"work runs as late as legal", check_work_runs_late},
          {"copies between GPUs in the NULL stream", check_null_stream_copies},
          {"a capture on the other GPU", check_null_stream_copy_breaks_capture},
          {"memsets of host memory wait", check_memsets_of_host_memory_wait},
          {"threaded schedule", check_threaded_schedule},
          {"host functions may not call the driver", check_host_function_may_not_call},
          {"many threads", check_many_threads},
          {"registered threads hold time", check_registered_threads_hold_time},
      });
}
