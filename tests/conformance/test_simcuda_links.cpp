// Tests links that change, copies that fail or stall, where bytes land, and which socket host
// memory is on.
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "base/json.h"
#include "sim_harness.h"

namespace {

using glake::topology::Json;

constexpr size_t kBytes = size_t{1} << 30;  // phantom: costs nothing
constexpr double kUplink = 12.3;            // dgx1v: s0>u0, GB/s
constexpr uint64_t kLatency = 8000;

struct Machine : Sim {
  explicit Machine(Settings more = {}) : Sim(joined(more)) {
    OK(cuMemHostAlloc(&host, kBytes, 0));
    at = reinterpret_cast<CUdeviceptr>(host);
  }
  static std::vector<std::pair<const char*, const char*>> joined(Settings more) {
    std::vector<std::pair<const char*, const char*>> all = {{"preset", "dgx1v"}, {"phantom", "1"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void* host = nullptr;
  CUdeviceptr at = 0;
};

bool close_to(double got, double wanted) { return std::abs(got - wanted) <= 1e-3 * wanted + 2; }

double after(uint64_t start) { return static_cast<double>(simcuda_now_ns() - start); }

Json edges(bool clear = false) {
  std::string text(size_t{1} << 16, '\0');
  text.resize(simcuda_edges(text.data(), text.size(), clear));
  return Json::parse(text);
}

// The rate of a link changes during a copy. Each part of the copy takes as long as the rate at that
// time says.
void check_link_changes_while_copies_flow() {
  Machine machine;
  Mapped memory(kBytes);
  CUstream stream = new_stream();
  CUevent event = new_event();
  const double half = static_cast<double>(kBytes) / 2;
  const auto middle = static_cast<uint64_t>(half / kUplink) + kLatency;
  OK(cuMemcpyHtoDAsync(memory.at, machine.host, kBytes, stream));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, middle));
  TRUE(simcuda_now_ns() == middle);
  OK(simcuda_set_link("s0", "u0", kUplink / 4));
  OK(cuEventSynchronize(event));
  TRUE(close_to(after(middle), half / (kUplink / 4)));
  // The link changes at a time on the clock, and back again.
  const uint64_t start = simcuda_now_ns();
  OK(simcuda_set_link("s0", "u0", kUplink));
  OK(simcuda_set_link_at(start + middle, "s0", "u0", kUplink / 4));
  OK(simcuda_set_link_at(start + middle + 1000000, "s0", "u0", kUplink));
  OK(cuMemcpyHtoDAsync(memory.at, machine.host, kBytes, stream));
  OK(cuStreamSynchronize(stream));
  const double slow = 1e6 * kUplink / 4;  // bytes of the slow millisecond
  TRUE(close_to(after(start), static_cast<double>(middle) + 1e6 + (half - slow) / kUplink));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_set_link("s0", "u9", 1));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_set_link("s0", "u0", -1));
}

void check_dead_links() {
  Machine machine;
  Mapped memory(kBytes);
  CUstream stream = new_stream();
  CUevent event = new_event(), other = new_event();
  OK(simcuda_set_link("s0", "u0", 0));
  OK(cuMemcpyHtoDAsync(memory.at, machine.host, 1 << 20, stream));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 5000000000));  // it stands still
  TRUE(simcuda_now_ns() == 5000000000);
  OK(simcuda_set_link_at(6000000000, "s0", "u0", kUplink));
  OK(cuEventSynchronize(event));
  TRUE(close_to(static_cast<double>(simcuda_now_ns()), 6e9 + (1 << 20) / kUplink));
  OK(simcuda_configure("dead_link", "220"));
  OK(simcuda_set_link("s0", "u0", 0));
  OK(cuMemcpyHtoDAsync(memory.at, machine.host, 1 << 20, stream));
  OK(cuEventRecord(other, stream));
  GIVES(220, cuEventSynchronize(other));
  OK(cuStreamSynchronize(stream));  // the error was reported already
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("dead_link", "dead"));
}

// Only questions about the copy's event or stream get the error code. No byte lands.
void check_failing_copies(const char* schedule) {
  const Sim sim({{"preset", "dgx1v"}, {"schedule", schedule}});
  Mapped memory(kGranule);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kGranule, 0));
  std::memset(host, 7, kGranule);
  OK(simcuda_watch_landings(memory.at, kGranule));
  CUstream stream = new_stream(), second = new_stream();
  CUevent events[4];
  OK(simcuda_fail_copy("host", "g0", 2, 719, 2));
  OK(simcuda_fail_copy("g0", "host", 1, 999, -1));
  for (int i = 0; i < 4; ++i) {
    events[i] = new_event();
    OK(cuMemcpyHtoDAsync(memory.at + static_cast<size_t>(i) * 4096, host, 4096, stream));
    OK(cuEventRecord(events[i], stream));
  }
  const int wanted[4] = {0, 719, 719, 0};
  for (int i = 0; i < 4; ++i) GIVES(wanted[i], cuEventSynchronize(events[i]));
  for (int i = 0; i < 4; ++i) GIVES(wanted[i], cuEventQuery(events[i]));  // always the same
  OK(cuStreamSynchronize(stream));                                        // reported above
  std::vector<uint8_t> counts(4 * 4096);
  OK(simcuda_landings(memory.at, counts.size(), counts.data()));
  for (size_t i = 0; i < 4; ++i) {
    const unsigned landed = wanted[i] == 0;
    TRUE(counts[i * 4096] == landed && counts[i * 4096 + 4095] == landed);
    TRUE(reinterpret_cast<volatile unsigned char*>(memory.at)[i * 4096] == 7 * landed);
  }
  // The stream reports the error once. A call that waits for its own copy returns it too.
  for (int i = 0; i < 2; ++i) {
    OK(cuMemcpyDtoHAsync(host, memory.at, 4096, second));
    GIVES(999, cuStreamSynchronize(second));
    OK(cuStreamSynchronize(second));
  }
  OK(cuMemcpyDtoHAsync(host, memory.at, 4096, second));
  GIVES(999, cuCtxSynchronize());
  unsigned char byte = 0;
  GIVES(999, cuMemcpyDtoH(&byte, memory.at, 1));
  OK(simcuda_fail_copy(nullptr, nullptr, 0, 0, 0));
  OK(cuMemcpyDtoH(&byte, memory.at, 1));
  TRUE(byte == 7);
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_fail_copy("gpu0", "host", 1, 719, 1));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_fail_copy("g0", "host", 0, 719, 1));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_fail_copy("g0", "host", 1, 0, 1));
}

void check_failing_copies_lazily() { check_failing_copies("lazy"); }
void check_failing_copies_on_threads() { check_failing_copies("threaded"); }

void check_stalled_copies() {
  Machine machine;
  Mapped memory(kBytes);
  CUstream streams[2] = {new_stream(), new_stream()};
  CUevent events[2] = {new_event(), new_event()};
  OK(simcuda_stall_copy("m0", "g0", 2, 1000000));
  for (int i = 0; i < 2; ++i) {
    OK(cuMemcpyHtoDAsync(memory.at, machine.host, 123000, streams[i]));
    OK(cuEventRecord(events[i], streams[i]));
  }
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(events[1], 500000));
  TRUE(simcuda_now_ns() == 500000);
  OK(cuEventQuery(events[0]));  // the other copy is done
  OK(cuEventSynchronize(events[1]));
  TRUE(simcuda_now_ns() == 1000000 + kLatency + 10000);
}

// On the threaded schedule a stall and a dead link take real time.
void check_faults_on_threads() {
  const Sim sim({{"preset", "dgx1v"}, {"schedule", "threaded"}});
  Mapped memory(kGranule);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kGranule, 0));
  CUstream stream = new_stream();
  CUevent event = new_event();
  OK(simcuda_stall_copy("*", "*", 1, 100000000));
  OK(cuMemcpyHtoDAsync(memory.at, host, 4096, stream));
  OK(cuEventRecord(event, stream));
  const uint64_t start = simcuda_now_ns();
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 20000000));
  TRUE(simcuda_now_ns() - start >= 20000000);
  OK(simcuda_wait_event(event, 60000000000));
  OK(simcuda_set_link("u0", "g0", 0));
  OK(cuMemcpyHtoDAsync(memory.at, host, 4096, stream));
  OK(cuEventRecord(event, stream));
  GIVES(CUDA_ERROR_NOT_READY, simcuda_wait_event(event, 20000000));
  OK(simcuda_set_link("u0", "g0", 1));
  OK(cuEventSynchronize(event));
}

void check_landings() {
  Machine machine;
  Mapped memory(kBytes);
  CUstream stream = new_stream();
  OK(simcuda_watch_landings(memory.at + 100, kBytes - 200));
  const auto copy = [&](size_t from, size_t bytes) {
    OK(cuMemcpyHtoDAsync(memory.at + from, machine.host, bytes, stream));
  };
  copy(0, 1000);
  copy(500, 1000);
  copy(kBytes - 300, 300);
  OK(cuMemsetD8Async(memory.at + 700, 1, 100, stream));  // no copy
  OK(cuStreamSynchronize(stream));
  uint8_t counts[1500];
  OK(simcuda_landings(memory.at + 100, sizeof counts, counts));
  TRUE(counts[0] == 1 && counts[399] == 1 && counts[400] == 2 && counts[899] == 2);
  TRUE(counts[900] == 1 && counts[1399] == 1 && counts[1400] == 0);
  TRUE(simcuda_landed(memory.at + 100, kBytes - 200, 1) == 400 + 500 + 200);
  TRUE(simcuda_landed(memory.at + 100, kBytes - 200, -1) == 500);
  TRUE(simcuda_landed(memory.at + 100, kBytes - 200, 0) == kBytes - 200 - 1600);
  TRUE(simcuda_landed(memory.at, 200, 1) == UINT64_MAX);  // a part of it is not watched
  CUDA_MEMCPY2D shape{};
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  shape.srcDevice = machine.at;
  shape.dstDevice = memory.at + 8192;
  shape.srcPitch = 100;
  shape.dstPitch = 1000;
  shape.WidthInBytes = 100;
  shape.Height = 3;
  OK(cuMemcpy2DAsync(&shape, stream));
  OK(cuStreamSynchronize(stream));
  TRUE(simcuda_landed(memory.at + 8192, 3000, 1) == 300);
  TRUE(simcuda_landed(memory.at + 8192 + 2000, 100, 1) == 100);
}

void check_edges() {
  Machine machine;
  Mapped first(kBytes), second(kBytes, 1);
  OK(grant(second.at, kBytes, 0));
  CUstream streams[2] = {new_stream(), new_stream()};
  OK(cuMemcpyHtoDAsync(first.at, machine.host, 1 << 28, streams[0]));
  OK(cuMemcpyAsync(second.at, machine.at, 1 << 27, streams[1]));
  OK(cuCtxSynchronize());
  const Json seen = edges();
  const Json& uplink = seen.at("edges").at("s0>u0");
  TRUE(uplink.at("bytes").number() == 3.0 * (1 << 27));  // both share it
  TRUE(close_to(uplink.at("peak").number(), kUplink));
  TRUE(seen.at("edges").at("u0>g1").at("bytes").number() == 1 << 27);
  TRUE(close_to(seen.at("edges").at("u0>g1").at("peak").number() * 1e6, kUplink / 2 * 1e6));
  TRUE(seen.at("edges").at("s0>u1").at("bytes").number() == 0);
  for (const auto& [name, edge] : seen.at("edges").members()) {
    TRUE(edge.at("load").number() <= 1 + 1e-9);
  }
  TRUE(edges(true).at("edges").at("s0>u0").at("bytes").number() != 0);
  TRUE(edges().at("edges").at("s0>u0").at("bytes").number() == 0);
}

// The route of a copy depends on the socket of its host memory.
void check_host_places() {
  Machine machine;
  Mapped memory(kBytes);
  int node = 9;
  const auto at = [&](size_t offset) { return static_cast<char*>(machine.host) + offset; };
  OK(simcuda_host_node(machine.host, 100, &node));
  TRUE(node == 0);  // option host_node
  OK(simcuda_place_host(at(1 << 20), 1 << 20, 1));
  OK(simcuda_place_host(at(3 << 20), 1 << 20, -1));
  OK(simcuda_host_node(at(1 << 20), 100, &node));
  TRUE(node == 1);
  OK(simcuda_host_node(at((3 << 20) - 50), 100, &node));
  TRUE(node == -1);
  CUstream stream = new_stream();
  const auto socket_link = [&](size_t offset) {
    edges(true);
    OK(cuMemcpyHtoDAsync(memory.at, at(offset), 1000, stream));
    OK(cuStreamSynchronize(stream));
    return edges().at("edges").at("s1>s0").at("bytes").number();
  };
  TRUE(socket_link(0) == 0);
  TRUE(socket_link(1 << 20) == 1000);
  TRUE(socket_link((1 << 20) - 500) == 1000);  // part of it is placed
  TRUE(socket_link(3 << 20) == 500);           // half on each socket
  OK(simcuda_place_host(at(1 << 20), 1000, 0));
  TRUE(socket_link(1 << 20) == 0 && socket_link((1 << 20) + 1000) == 1000);
  // A copy over several stripes uses each socket for the bytes that lie there.
  OK(simcuda_place_host(at(3 << 20), 500, 0));
  OK(simcuda_place_host(at((3 << 20) + 500), 800, 1));
  TRUE(socket_link(3 << 20) == 500 && socket_link((3 << 20) + 300) == 800);
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_place_host(machine.host, 1, 2));
  OK(cuMemFreeHost(machine.host));
  OK(simcuda_host_node(at(1 << 20), 100, &node));
  TRUE(node == 0);  // the place is forgotten with the memory
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"links change while copies flow", check_link_changes_while_copies_flow},
                        {"dead links", check_dead_links},
                        {"failing copies", check_failing_copies_lazily},
                        {"failing copies, threaded", check_failing_copies_on_threads},
                        {"stalled copies", check_stalled_copies},
                        {"stalls and dead links, threaded", check_faults_on_threads},
                        {"landings", check_landings},
                        {"loads of links", check_edges},
                        {"host memory has places", check_host_places},
                    });
}
