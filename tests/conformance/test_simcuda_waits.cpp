// Waiting with a deadline, threads at work and their turns, words that the host writes, batches,
// and what glake's own driver makes of them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "driver/driver.h"
#include "sim_harness.h"

namespace {

constexpr double kUplink = 12.3;  // dgx1v

struct Host {
  explicit Host(size_t bytes) { OK(cuMemHostAlloc(&at, bytes, 0)); }
  unsigned char* bytes() const { return static_cast<unsigned char*>(at); }
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(at); }
  volatile unsigned* word() const { return static_cast<volatile unsigned*>(at); }
  void* at = nullptr;
};

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
  // Nothing in flight that could end: the clock jumps.
  *host.word() = 0;
  OK(cuStreamWaitValue32(stream, host.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 3600000000000));
  TRUE(simcuda_now_ns() == 3600000018000);
  *host.word() = 1;
  OK(simcuda_wait_event(event, 1000));
  TRUE(simcuda_now_ns() == 3600000018000);
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

// A stream waits for a word that another stream's work writes: it goes on at that moment, though
// the clock has other places to go.
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

// Host functions run before the clock moves on, and may announce threads.
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
  TRUE(first.substr(0, 4) == "abcd");  // by rank
  TRUE(first.substr(first.size() - 2) == " 1");
  for (int i = 0; i < 4; ++i) TRUE(race(4) == first);
}

// Who is expected but never comes does not hang the others for good; taking it back is at once.
void check_expectations_taken_back() {
  const Sim sim({{"preset", "dgx1v"}});
  Mapped memory(kGranule);
  const Host host(kGranule);
  CUstream stream = new_stream();
  OK(simcuda_expect(2));
  OK(simcuda_expect(-1));
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4096, stream));
  std::thread other([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    simcuda_expect(-1);
  });
  const auto start = std::chrono::steady_clock::now();
  const int result = cuStreamSynchronize(stream);
  const auto took = std::chrono::steady_clock::now() - start;
  other.join();
  OK(result);
  TRUE(took >= std::chrono::milliseconds(25));
}

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
  // One latency, each copy's own 2.4 us, and the link's time for all bytes.
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
  GOOD(driver->copy_2d(back.address(), 8192, memory.at, 4096, 4096, 4, stream));
  const glake::Address dsts[] = {back.address() + 4096, back.address() + 12288};
  const glake::Address srcs[] = {memory.at, memory.at + 4096};
  const glake::Bytes sizes[] = {4096, 100};
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
  TRUE(std::memcmp(back.bytes() + 12288, host.bytes() + 4096, 100) == 0);
  GOOD(driver->destroy_stream(stream));
  GOOD(driver->destroy_event(event));
  TRUE(violations() == "[]");
}

void check_driver_copies_everywhere() {
  check_driver_copies("lazy");
  check_driver_copies("threaded");
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
  GOOD(driver->pointer_facts(memory.at, &facts));
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
  TRUE(!driver->unregister_host(page).ok());
  TRUE(driver->now_ns() == simcuda_now_ns());
  driver->expect_threads(1);
  std::thread worker([&] {
    driver->thread_at_work(true, 3);
    driver->thread_at_work(false);
  });
  worker.join();
}

}  // namespace

int main() {
  return run_checks({
      {"deadlines", check_deadlines},
      {"host stores release streams", check_host_stores_everywhere},
      {"awaited words are written in time", check_words_are_written_in_time},
      {"host functions hold time", check_host_functions_hold_time},
      {"threads take turns", check_turns},
      {"expectations are taken back", check_expectations_taken_back},
      {"batches", check_batches},
      {"the driver's copies", check_driver_copies_everywhere},
      {"the driver's facts", check_driver_facts},
  });
}
