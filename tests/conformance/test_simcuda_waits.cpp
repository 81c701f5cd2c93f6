// Tests waits with a deadline, the turns of threads at work, and waits for words that the host
// writes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "sim_harness.h"

namespace {

void check_deadlines() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  CUstream stream = new_stream();
  CUevent event = new_event(), never = new_event();
  OK(simcuda_wait_event(never, 0));  // never recorded: complete
  OK(cuEventRecord(event, stream));
  OK(simcuda_wait_event(event, 0));  // takes no time
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 123000, stream));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 0));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 17000));
  TRUE(simcuda_now_ns() == 17000);
  OK(simcuda_wait_event(event, 1000));  // ends at 18000, as the deadline does
  TRUE(simcuda_now_ns() == 18000);
  // Nothing is in flight that could end, so the clock jumps.
  *host.word() = 0;
  OK(cuStreamWaitValue32(stream, host.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 3600000000000));
  TRUE(simcuda_now_ns() == 3600000018000);
  *host.word() = 1;
  OK(simcuda_wait_event(event, 1000));
  TRUE(simcuda_now_ns() == 3600000018000);
}

// wait_any ends with the first event that is done or has failed. The caller asks the events to find
// out which one it was.
void check_first_of_several() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  CUstream streams[] = {new_stream(), new_stream()};
  CUevent events[] = {new_event(), new_event()}, never = new_event();
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_any(events, 0, 0));
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 246000, streams[0]));
  OK(cuEventRecord(events[0], streams[0]));
  OK(cuMemcpyDtoHAsync(host.at, memory.at, 130000, streams[1]));  // at 13 GB/s
  OK(cuEventRecord(events[1], streams[1]));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_any(events, 2, 17000));
  TRUE(simcuda_now_ns() == 17000);
  OK(simcuda_wait_any(events, 2, 1000000));
  TRUE(simcuda_now_ns() == 18000);
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(events[0], 0));
  OK(simcuda_wait_event(events[1], 0));
  OK(simcuda_wait_any(events, 2, 1000000));  // one of them is done already
  TRUE(simcuda_now_ns() == 18000);
  const CUevent with_idle[] = {events[0], never};
  OK(simcuda_wait_any(with_idle, 2, 1000000));  // never recorded: complete
  TRUE(simcuda_now_ns() == 18000);
  OK(simcuda_wait_any(events, 1, UINT64_MAX));
  TRUE(simcuda_now_ns() == 28000);
  OK(simcuda_fail_copy("host", "g0", 1, 719, 1));
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4096, streams[0]));
  OK(cuEventRecord(events[0], streams[0]));
  OK(simcuda_wait_any(events, 1, 1000000));  // the event tells that it failed
  GIVES(719, simcuda_wait_event(events[0], 0));
  OK(cuEventDestroy(never));
  GIVES(CUDA_ERROR_INVALID_HANDLE, simcuda_wait_any(with_idle, 2, 0));
}

// A plain store of another host thread lets a waiting stream go on.
void check_host_stores(const char* schedule, const char* phantom) {
  const Sim sim({{"preset", "dgx1v"}, {"schedule", schedule}, {"phantom", phantom}});
  const Host host(4096);
  CUstream stream = new_stream();
  CUevent event = new_event();
  *host.word() = 0;
  OK(cuStreamWaitValue32(stream, host.address(), 5, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuStreamWriteValue32(stream, host.address() + 8, 9, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  std::atomic<bool> stored{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stored = true;
    *host.word() = 6;
  });
  const int waited = cuStreamSynchronize(stream);
  const bool held = stored;
  other.join();
  OK(waited);
  TRUE(held && host.word()[2] == 9);
}

void check_host_stores_everywhere() {
  for (const char* schedule : {"lazy", "threaded"}) {
    for (const char* phantom : {"0", "1"}) check_host_stores(schedule, phantom);
  }
}

// A stream waits for a word that another stream's work writes. It goes on at that time, although
// other work ends later.
void check_words_are_written_in_time() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  std::memset(host.at, 0, kGranule);
  CUstream busy = new_stream(), writer = new_stream(), reader = new_stream();
  CUevent event = new_event();
  OK(simcuda_stall_copy("*", "*", 1, 1000000));
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4096, busy));
  OK(cuMemcpyHtoDAsync(memory.at + 4096, host.at, 4096, writer));
  OK(cuStreamWriteValue32(writer, host.address() + 8192, 3, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cuStreamWaitValue32(reader, host.address() + 8192, 3, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuEventRecord(event, reader));
  OK(simcuda_wait_event(event, 500000));
  TRUE(simcuda_now_ns() < 10000);
}

// A thread at work stores the word. The stream goes on at that time, not when the next work ends.
void check_stores_of_threads_at_work() {
  const Sim sim({{"preset", "dgx1v"}, {"phantom", "1"}});
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  Mapped memory(kGranule);
  const Host host(kGranule);
  *host.word() = 0;
  CUstream held = new_stream(), busy = new_stream();
  CUevent start = new_event(CU_EVENT_DEFAULT), end = new_event(CU_EVENT_DEFAULT);
  OK(simcuda_stall_copy("*", "*", 1, 1000000));
  OK(cuEventRecord(start, held));
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4096, busy));
  OK(cuStreamWaitValue32(held, host.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuEventRecord(end, held));
  std::atomic<uint64_t> stored{0};
  simcuda_expect(1);
  std::thread worker([&] {
    cuCtxSetCurrent(context);
    simcuda_work(1, 0);
    CUstream mine = nullptr;
    cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING);
    cuMemcpyHtoDAsync(memory.at + 4096, host.at, 123000, mine);
    cuStreamSynchronize(mine);
    *host.word() = 1;
    stored = simcuda_now_ns();
    simcuda_work(0, 0);
  });
  const int waited = cuStreamSynchronize(held);
  worker.join();
  OK(waited);
  float milliseconds = 0;
  OK(cuEventElapsedTime(&milliseconds, start, end));
  TRUE(stored == 18000 && std::abs(milliseconds - 0.018f) < 1e-5f);
}

// Host functions run before the clock moves on. They may announce threads that are about to start.
void check_host_functions_hold_time() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  CUstream stream = new_stream(), busy = new_stream();
  struct State {
    CUcontext context;
    CUdeviceptr dst;
    void* src;
    uint64_t called = 0, started = 0;
    std::thread worker;
  } state{context, memory.at + 8192, host.at, 0, 0, {}};
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4096, stream));
  OK(cuMemcpyHtoDAsync(memory.at + 4096, host.at, 1 << 20, busy));
  OK(cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto* s = static_cast<State*>(data);
        s->called = simcuda_now_ns();
        simcuda_expect(1);
        s->worker = std::thread([s] {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          simcuda_work(1, 0);
          s->started = simcuda_now_ns();
          cuCtxSetCurrent(s->context);
          CUstream mine = nullptr;
          cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING);
          cuMemcpyHtoDAsync(s->dst, s->src, 4096, mine);
          cuStreamSynchronize(mine);
          simcuda_work(0, 0);
        });
      },
      &state));
  OK(cuStreamSynchronize(busy));
  state.worker.join();
  TRUE(state.called > 8000 && state.called < 10000);  // as the first copy ended
  TRUE(state.started == state.called);                // the clock waited for the thread
}

// Threads that race for pieces of work do so in the same order every time.
std::string race(int threads) {
  const Sim sim({{"preset", "dgx1v"}, {"phantom", "1"}});
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  Mapped memory(kGranule);
  const Host host(kGranule);
  std::atomic<int> cursor{0}, at_work{0}, most{0};
  std::string order(64, '?');
  std::vector<std::thread> pool;
  simcuda_expect(threads);
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      cuCtxSetCurrent(context);
      std::this_thread::sleep_for(std::chrono::milliseconds((threads - t) % 3));
      simcuda_work(1, t);
      CUstream stream = nullptr;
      CUevent event = nullptr;
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
      while (true) {
        if (++at_work > most) most = at_work.load();
        std::this_thread::yield();
        const int mine = cursor++;
        if (mine < 64) {
          order[static_cast<size_t>(mine)] = static_cast<char>('a' + t);
          cuMemcpyHtoDAsync(memory.at, host.at, kGranule, stream);
          cuEventRecord(event, stream);
        }
        --at_work;
        if (mine >= 64) break;
        if (mine % 5 == 0) {
          while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) continue;
        } else {
          while (simcuda_wait_event(event, 100000) == CUDA_ERROR_NOT_READY) continue;
        }
      }
      simcuda_work(0, 0);
    });
  }
  for (std::thread& thread : pool) thread.join();
  return order + " " + std::to_string(simcuda_now_ns()) + " " + std::to_string(most);
}

void check_turns() {
  const std::string first = race(4);
  TRUE(first.substr(0, 4) == "abcd");  // in the order of their ranks
  TRUE(first.substr(first.size() - 2) == " 1");
  for (int i = 0; i < 4; ++i) TRUE(race(4) == first);
}

// A thread that is expected but never comes does not hang the others for good. If the expectation
// is taken back, the others go on at once.
void check_expectations_taken_back() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  CUstream stream = new_stream();
  OK(simcuda_expect(2));
  OK(simcuda_expect(-1));
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4096, stream));
  const auto start = std::chrono::steady_clock::now();
  std::thread other([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    simcuda_expect(-1);
  });
  const int result = cuStreamSynchronize(stream);
  const auto took = std::chrono::steady_clock::now() - start;
  other.join();
  OK(result);
  TRUE(took >= std::chrono::milliseconds(25));
}

void check_words_are_read_after_writes() {
  Sim sim({});
  Host host(4096);
  const CUstream stream = new_stream();
  host.word()->store(1);  // an old value, which the stream's own write replaces
  OK(cuStreamWriteValue32(stream, host.address(), 0, 0));
  OK(cuStreamWaitValue32(stream, host.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  const CUevent event = new_event();
  OK(cuEventRecord(event, stream));
  for (int i = 0; i < 20; ++i) GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  host.word()->store(1);
  OK(cuEventSynchronize(event));
}
}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"deadlines", check_deadlines},
                        {"the first of several", check_first_of_several},
                        {"host stores release streams", check_host_stores_everywhere},
                        {"awaited words are written in time", check_words_are_written_in_time},
                        {"words are read after earlier writes", check_words_are_read_after_writes},
                        {"threads at work store words", check_stores_of_threads_at_work},
                        {"host functions hold time", check_host_functions_hold_time},
                        {"threads take turns", check_turns},
                        {"expectations are taken back", check_expectations_taken_back},
                    });
}
