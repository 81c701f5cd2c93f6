// Tests which bytes of phantom memory are known: bytes that came from the host, and their copies.
#include <cstring>
#include <numeric>

#include "sim_harness.h"
#include "simcuda/compute.h"
#include "simcuda/driver/known.h"
#include "simcuda/driver/runtime.h"

namespace {

using Bytes = std::vector<unsigned char>;

Bytes counting(size_t count, int first = 1) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(first));
  return bytes;
}

struct Memory {
  Memory() : sim({{"phantom", "1"}}), mapped(64 * kGranule), at(mapped.at) {
    stream = new_stream();
  }

  void write(size_t offset, const Bytes& bytes) const {
    OK(cuMemcpyHtoDAsync(at + offset, bytes.data(), bytes.size(), stream));
    OK(cuStreamSynchronize(stream));
  }
  Bytes read(size_t offset, size_t count) const {
    Bytes bytes(count, 255);
    OK(cuMemcpyDtoHAsync(bytes.data(), at + offset, count, stream));
    OK(cuStreamSynchronize(stream));
    return bytes;
  }
  Sim sim;
  Mapped mapped;
  CUdeviceptr at;
  CUstream stream = nullptr;
};

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void check_writes_and_reads() {
  const Memory m;
  m.write(100, counting(10));
  TRUE(m.read(98, 14) == joined({Bytes(2, 0), counting(10), Bytes(2, 0)}));
  m.write(103, Bytes(2, 77));  // into the middle: both ends stay
  TRUE(m.read(100, 10) == joined({counting(3), Bytes(2, 77), counting(5, 6)}));
  m.write(95, Bytes(7, 50));  // over the beginning
  TRUE(m.read(95, 15) == joined({Bytes(7, 50), counting(1, 3), Bytes(2, 77), counting(5, 6)}));
  OK(cuMemsetD16Async(m.at + 104, 0x0201, 2, m.stream));
  TRUE(m.read(102, 7) == Bytes({3, 77, 1, 2, 1, 2, 9}));
  OK(cuStreamWriteValue32(m.stream, m.at + 200, 0x04030201, 0));
  TRUE(m.read(200, 4) == counting(4));
}

void check_copies() {
  const Memory m;
  m.write(0, counting(8));
  m.write(1000, Bytes(20, 9));
  OK(cuMemcpyDtoDAsync(m.at + 1004, m.at + 4, 8, m.stream));  // half of it is known
  TRUE(m.read(1000, 14) == joined({Bytes(4, 9), counting(4, 5), Bytes(4, 0), Bytes(2, 9)}));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = m.at;
  rows.dstDevice = m.at + 2000;
  rows.srcPitch = 4;
  rows.dstPitch = 16;
  rows.WidthInBytes = 2;
  rows.Height = 2;
  OK(cuMemcpy2DAsync(&rows, m.stream));
  TRUE(m.read(2000, 18) == joined({counting(2), Bytes(14, 0), counting(2, 5)}));
  // A copy that is too large to keep makes its destination unknown.
  const size_t large = simcuda::Known::kMostOfOne + 1;
  const Bytes source(large, 3);
  m.write(0, source);
  TRUE(m.read(0, 8) == Bytes(8, 0));
  m.write(1000, Bytes(4, 1));
  OK(cuMemcpyDtoDAsync(m.at + kGranule * 32, m.at, large, m.stream));
  TRUE(m.read(kGranule * 32 + 1000, 5) == joined({Bytes(4, 1), Bytes(1, 0)}));
}

// The caller may change pageable memory when the call returns. The copy is made later.
void check_sources_are_taken_at_the_call() {
  const Memory m;
  Bytes source = counting(16);
  OK(cuMemcpyHtoDAsync(m.at, source.data(), source.size(), m.stream));
  std::fill(source.begin(), source.end(), 200);
  TRUE(m.read(0, 16) == counting(16));
  Bytes other(16, 0);
  OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(other.data()),
              reinterpret_cast<CUdeviceptr>(source.data()), 16));
  TRUE(other == source);  // between two places of the host
}

void check_launches() {
  const Memory m;
  m.write(0, counting(4));
  simcuda_cover();  // within a cover, the caller says what is written
  OK(static_cast<CUresult>(simcuda_launch("kernel", m.stream)));
  OK(cuMemsetD8Async(m.at, 9, 2, m.stream));
  TRUE(m.read(0, 2) == Bytes(2, 0));
  simcuda_uncover();
  TRUE(m.read(0, 4) == counting(4));
  OK(static_cast<CUresult>(simcuda_launch("kernel", m.stream)));
  TRUE(m.read(0, 4) == Bytes(4, 0));
}

// Results of work that is enqueued, and has not run, count as known ahead if its inputs are known.
void check_what_is_known_ahead() {
  const Memory m;
  const auto ahead = [&](std::initializer_list<simcuda_followed> pieces) {
    return simcuda_known_ahead(m.stream, pieces.begin(), pieces.size());
  };
  const auto follow = [&](int makes, std::vector<simcuda_followed> pieces) {
    simcuda_computed work{};
    work.compute = [](void*) { return 0; };
    work.release = [](void*) {};
    work.makes = makes;
    work.followed = pieces.data();
    work.followed_count = pieces.size();
    OK(static_cast<CUresult>(simcuda_compute(m.stream, &work)));
  };
  constexpr int kAllRead = SIMCUDA_ALL_READ, kAnyRead = SIMCUDA_ANY_READ,
                kWritten = SIMCUDA_ANY_WRITTEN;
  const CUdeviceptr a = m.at, b = m.at + 4096, c = m.at + 8192;
  TRUE(ahead({{a, 16, 1, 0}, {b, 16, 0, 1}}) == 0);
  TRUE(ahead({{b, 16, 0, 1}}) == kAllRead);  // it reads nothing
  const Bytes source = counting(16);
  OK(cuMemcpyHtoDAsync(a, source.data(), 16, m.stream));
  TRUE(ahead({{a, 16, 1, 1}}) == (kAllRead | kAnyRead | kWritten));
  TRUE(ahead({{a + 8, 16, 1, 0}}) == kAnyRead && ahead({{a + 16, 16, 1, 0}}) == 0);
  // Bytes that are computed only from known bytes are known. If some input bytes are unknown, the
  // results are unknown.
  follow(SIMCUDA_MAKES_OF_ALL, {{a, 16, 1, 0}, {b, 32, 0, 1}});
  TRUE(ahead({{b, 32, 1, 0}}) == (kAllRead | kAnyRead));
  follow(SIMCUDA_MAKES_OF_ALL, {{b, 16, 1, 1}, {c, 4, 1, 0}});
  TRUE(ahead({{b, 16, 1, 0}}) == 0 && ahead({{b + 16, 16, 1, 0}}) == (kAllRead | kAnyRead));
  follow(SIMCUDA_MAKES_OF_ANY, {{b, 32, 1, 0}, {c, 32, 0, 1}});
  follow(SIMCUDA_MAKES_NOTHING, {{b, 4096, 0, 1}});
  TRUE(ahead({{c, 32, 1, 0}, {b, 4096, 0, 1}}) == (kAllRead | kAnyRead));
  OK(cuMemcpyDtoDAsync(a + 8, a, 16, m.stream));  // onto itself
  OK(cuMemsetD8Async(a + 24, 1, 8, m.stream));
  TRUE(ahead({{a, 32, 1, 0}}) == (kAllRead | kAnyRead));
  OK(cuMemcpyDtoDAsync(a, b, 24, m.stream));
  TRUE(ahead({{a, 24, 0, 1}}) == kAllRead && ahead({{a, 25, 0, 1}}) == (kAllRead | kWritten));
  OK(cuStreamSynchronize(m.stream));
}

// The simulator follows a graph's work at each launch, whatever is known during the capture.
void check_what_a_graph_makes_known() {
  const Memory m;
  simcuda_computed work{};
  work.compute = [](void*) { return 0; };
  work.release = [](void*) {};
  work.makes = SIMCUDA_MAKES_OF_ALL;
  simcuda_followed pieces[] = {{m.at, 16, 1, 0}, {m.at + 4096, 16, 0, 1}};
  work.followed = pieces;
  work.followed_count = 2;
  OK(cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  TRUE(simcuda_known_ahead(m.stream, pieces, 2) == 7);
  OK(static_cast<CUresult>(simcuda_compute(m.stream, &work)));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(m.stream, &graph));
  CUgraphExec instance = nullptr;
  OK(cuGraphInstantiate(&instance, graph, 0));
  const simcuda_followed made = {m.at + 4096, 16, 1, 0};
  OK(cuGraphLaunch(instance, m.stream));
  TRUE(simcuda_known_ahead(m.stream, &made, 1) == 0);
  m.write(0, counting(16));
  OK(cuGraphLaunch(instance, m.stream));
  TRUE(simcuda_known_ahead(m.stream, &made, 1) == (SIMCUDA_ALL_READ | SIMCUDA_ANY_READ));
}

// Streams may wait for words that are written later. The order of calls says nothing then.
void check_words_waited_for() {
  const Memory m;
  const simcuda_followed piece = {m.at, 16, 1, 1};
  TRUE(simcuda_known_ahead(m.stream, &piece, 1) == 0);
  OK(cuStreamWaitValue32(m.stream, m.at + 64, 1, CU_STREAM_WAIT_VALUE_GEQ));
  TRUE(simcuda_known_ahead(m.stream, &piece, 1) == 7);
}

// A job enqueues work and never waits. The queue is bounded, as on a GPU.
void check_launches_without_end() {
  const Memory m;
  CUevent first = nullptr;
  OK(cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(first, m.stream));
  for (int i = 0; i < 40000; ++i) OK(static_cast<CUresult>(simcuda_launch("kernel", m.stream)));
  OK(cuEventQuery(first));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(m.stream));
}

// When known bytes are too many, the oldest are forgotten.
void check_how_much_is_kept() {
  const Memory m;
  constexpr size_t kOne = simcuda::Known::kMostOfOne;
  for (size_t i = 0; i < 5; ++i) m.write(i * kOne, Bytes(kOne, static_cast<unsigned char>(i + 1)));
  TRUE(m.read(0, kOne) == Bytes(kOne, 0));
  for (size_t i = 1; i < 5; ++i) {
    TRUE(m.read(i * kOne, kOne) == Bytes(kOne, static_cast<unsigned char>(i + 1)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"writes and reads", check_writes_and_reads},
                        {"copies", check_copies},
                        {"sources are taken at the call", check_sources_are_taken_at_the_call},
                        {"launches", check_launches},
                        {"how much is kept", check_how_much_is_kept},
                        {"what is known ahead", check_what_is_known_ahead},
                        {"what a graph makes known", check_what_a_graph_makes_known},
                        {"words waited for", check_words_waited_for},
                        {"launches without end", check_launches_without_end},
                    });
}
