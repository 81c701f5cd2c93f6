// Collectives of the stand-in for NCCL between processes on one simulated machine. Bytes are right,
// come in stream order, and take time.
#include <algorithm>
#include <cmath>

#include "nccl_harness.h"
#include "simcuda/runtime/nccl/floats.h"
#include "simcuda/runtime/nccl/reduce.h"

namespace {

using Floats = std::vector<float>;

void collectives(World& w) {
  w.join();
  const auto me = static_cast<float>(w.rank);
  const auto n = static_cast<size_t>(w.size);
  const float sum = static_cast<float>(w.size * (w.size - 1)) / 2;
  Device<float> mine(3, me);
  NCCL(ncclAllReduce(mine.at(), mine.at(), 3, ncclFloat32, ncclSum, w.comm, w.stream));
  TRUE(mine.read(w.stream) == Floats(3, sum));
  Floats own, all, turned;
  for (size_t i = 0; i < n; ++i) {
    own.push_back(10 * me + static_cast<float>(i));
    all.push_back(static_cast<float>(i));
    turned.push_back(10 * static_cast<float>(i) + me);
  }
  Device<float> one(1, me), row(own), out(n, -1);
  NCCL(ncclAllGather(one.at(), out.at(), 1, ncclFloat32, w.comm, w.stream));
  TRUE(out.read(w.stream) == all);
  NCCL(ncclAlltoAll(row.at(), out.at(), 1, ncclFloat32, w.comm, w.stream));
  TRUE(out.read(w.stream) == turned);
  NCCL(ncclReduceScatter(row.at(), one.at(), 1, ncclFloat32, ncclMax, w.comm, w.stream));
  TRUE(one.read(w.stream) == Floats(1, turned.back()));
  Device<float> two(2, me);
  NCCL(ncclBroadcast(two.at(), two.at(), 2, ncclFloat32, w.size - 1, w.comm, w.stream));
  TRUE(two.read(w.stream) == Floats(2, static_cast<float>(w.size - 1)));
  Device<float> at_root(1, -1), begin(1, me);
  NCCL(ncclReduce(begin.at(), at_root.at(), 1, ncclFloat32, ncclAvg, 0, w.comm, w.stream));
  TRUE(at_root.read(w.stream) == Floats(1, w.rank == 0 ? sum / static_cast<float>(n) : -1));
  Device<float> gathered(n, -1);
  NCCL(ncclGather(begin.at(), gathered.at(), 1, ncclFloat32, 1, w.comm, w.stream));
  TRUE(gathered.read(w.stream) == (w.rank == 1 ? all : Floats(n, -1)));
  NCCL(ncclScatter(row.at(), one.at(), 1, ncclFloat32, 1, w.comm, w.stream));
  TRUE(one.read(w.stream) == Floats(1, 10 + me));
}

void messages(World& w) {
  w.join();
  const int next = (w.rank + 1) % w.size, before = (w.rank + w.size - 1) % w.size;
  Device<float> out(4, static_cast<float>(w.rank)), in(4, -1), in2(4, -1);
  // Within a group no rank waits for another one's call. Two messages between the same two ranks
  // keep their order.
  Device<float> second(4, 100 + static_cast<float>(w.rank));
  NCCL(ncclGroupStart());
  NCCL(ncclRecv(in.at(), 4, ncclFloat32, before, w.comm, w.stream));
  NCCL(ncclRecv(in2.at(), 4, ncclFloat32, before, w.comm, w.stream));
  NCCL(ncclSend(out.at(), 4, ncclFloat32, next, w.comm, w.stream));
  NCCL(ncclSend(second.at(), 4, ncclFloat32, next, w.comm, w.stream));
  NCCL(ncclGroupEnd());
  TRUE(in.read(w.stream) == Floats(4, static_cast<float>(before)));
  TRUE(in2.read(w.stream) == Floats(4, 100 + static_cast<float>(before)));
  if (w.rank == 0) NCCL(ncclSend(out.at(), 4, ncclFloat32, 1, w.comm, w.stream));
  if (w.rank == 1) NCCL(ncclRecv(in.at(), 4, ncclFloat32, 0, w.comm, w.stream));
  if (w.rank == 1) TRUE(in.read(w.stream) == Floats(4, 0));
}

// Several collectives in one group, and on several streams, run in the order of the calls.
void grouped(World& w) {
  w.join();
  Device<float> a(2, 1), b(2, 2);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(a.at(), a.at(), 2, ncclFloat32, ncclSum, w.comm, w.stream));
  NCCL(ncclAllReduce(b.at(), b.at(), 2, ncclFloat32, ncclProd, w.comm, w.stream));
  NCCL(ncclGroupEnd());
  const auto n = static_cast<float>(w.size);
  TRUE(a.read(w.stream) == Floats(2, n));
  TRUE(b.read(w.stream) == Floats(2, std::exp2(n)));
  CUstream other = nullptr;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 20; ++i) {
    NCCL(ncclAllReduce(a.at(), a.at(), 2, ncclFloat32, ncclAvg, w.comm, i % 2 ? other : w.stream));
  }
  OK(cuStreamSynchronize(w.rank == 0 ? other : w.stream));
  OK(cuCtxSynchronize());
  TRUE(a.read(w.stream) == Floats(2, n));
}

// A reduction reads the bytes of an earlier copy that runs late. Meanwhile one rank waits outside
// of the driver.
void in_stream_order(World& w) {
  w.join();
  constexpr size_t kCount = 1 << 18;
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kCount * sizeof(float), 0));
  std::fill_n(static_cast<float*>(host), kCount, static_cast<float>(w.rank + 1));
  Device<float> data(kCount, -1);
  OK(cuMemcpyHtoDAsync(data.address, host, kCount * sizeof(float), w.stream));
  NCCL(ncclAllReduce(data.at(), data.at(), kCount, ncclFloat32, ncclSum, w.comm, w.stream));
  if (w.rank == 0) {
    OK(cuStreamSynchronize(w.stream));
    w.mark(1);
  } else {
    w.await(0, 1);  // this makes no driver call, so the communicator's thread must
  }
  TRUE(data.read(w.stream) == Floats(kCount, static_cast<float>(w.size * (w.size + 1)) / 2));
}

void factors(World& w) {
  w.join();
  const float factor = 0.5f + static_cast<float>(w.rank);
  Device<float> data(2, 2), on_device(1, factor);
  for (const bool device : {false, true}) {
    int op = 0;
    float host = factor;
    NCCL(ncclRedOpCreatePreMulSum(&op, device ? on_device.at() : &host, ncclFloat32,
                                  device ? ncclScalarDevice : ncclScalarHostImmediate, w.comm));
    Device<float> out(2, -1);
    NCCL(ncclAllReduce(data.at(), out.at(), 2, ncclFloat32, op, w.comm, w.stream));
    NCCL(ncclRedOpDestroy(op, w.comm));
    TRUE(out.read(w.stream) == Floats(2, 2 * 0.5f + 2 * 1.5f));
    NCCL_GIVES(ncclInvalidArgument,
               ncclAllReduce(data.at(), out.at(), 2, ncclFloat32, op, w.comm, w.stream));
  }
}

void split(World& w) {
  w.join();
  ncclComm* part = nullptr;
  // Splits into odd and even ranks in reversed order. Rank 0 of three takes no part in the second
  // split.
  NCCL(ncclCommSplit(w.comm, w.rank % 2, -w.rank, &part, nullptr));
  int size = 0, rank = -1;
  NCCL(ncclCommCount(part, &size));
  NCCL(ncclCommUserRank(part, &rank));
  TRUE(size == (w.rank % 2 == 0 ? 2 : 1));
  TRUE(rank == (w.rank == 0 ? 1 : 0));
  Device<float> data(1, static_cast<float>(w.rank));
  NCCL(ncclAllReduce(data.at(), data.at(), 1, ncclFloat32, ncclSum, part, w.stream));
  TRUE(data.read(w.stream) == Floats(1, w.rank % 2 == 0 ? 2 : 1));
  ncclComm* second = part;
  NCCL(ncclCommSplit(w.comm, w.rank == 0 ? -1 : 0, 0, &second, nullptr));
  TRUE((second == nullptr) == (w.rank == 0));
  if (second != nullptr) NCCL(ncclCommDestroy(second));
  NCCL(ncclCommDestroy(part));
}

// Reduces 16 MiB between two H100 over NVSwitch. Each link carries half of the buffer twice, and
// there is a latency.
void takes_time(World& w) {
  w.join();
  constexpr size_t kCount = 4 << 20;
  Device<float> data(kCount, 1);
  const uint64_t start = simcuda_now_ns();
  NCCL(ncclAllReduce(data.at(), data.at(), kCount, ncclFloat32, ncclSum, w.comm, w.stream));
  OK(cuStreamSynchronize(w.stream));
  const auto took = static_cast<double>(simcuda_now_ns() - start);
  char edges[1 << 16];
  simcuda_edges(edges, sizeof edges, 0);
  TRUE(std::string(edges).find("\"g0>N\"") != std::string::npos);
  const double bytes = kCount * sizeof(float);
  TRUE(took > bytes / 450 && took < bytes / 100);  // the link's peak is 450 GB/s
}

// Two devices of one process, in a group. The process does not wait for itself.
void one_process(World& w) {
  if (w.rank != 0) return;
  constexpr int kDevices[] = {0, 3};
  ncclComm* comms[2] = {};
  NCCL(ncclCommInitAll(comms, 2, kDevices));
  std::vector<Device<float>> data;
  CUstream streams[2] = {};
  for (int i = 0; i < 2; ++i) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, kDevices[i]));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    data.emplace_back(2, static_cast<float>(i + 1));
  }
  NCCL(ncclGroupStart());
  for (int i = 0; i < 2; ++i) {
    NCCL(ncclAllReduce(data[i].at(), data[i].at(), 2, ncclFloat32, ncclSum, comms[i], streams[i]));
  }
  NCCL(ncclGroupEnd());
  for (int i = 0; i < 2; ++i) TRUE(data[i].read(streams[i]) == Floats(2, 3));
  for (ncclComm* comm : comms) NCCL(ncclCommDestroy(comm));
}

// In phantom memory ranks also wait for each other, time passes, and accesses are checked.
void phantom(World& w) {
  w.join();
  CUdeviceptr data = 0;
  constexpr size_t kBytes = size_t{32} << 20;
  OK(cuMemAlloc(&data, kBytes));
  auto* at = reinterpret_cast<void*>(data);
  const uint64_t start = simcuda_now_ns();
  if (w.rank == 1) {
    usleep(100'000);
    w.mark(1);
  }
  NCCL(ncclAllReduce(at, at, kBytes / 4, ncclFloat32, ncclSum, w.comm, w.stream));
  OK(cuStreamSynchronize(w.stream));
  TRUE(w.shared->mark[1] == 1);  // rank 0 has waited
  TRUE(static_cast<double>(simcuda_now_ns() - start) > kBytes / 450.0);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(at, 16, ncclFloat32, 1 - w.rank, w.comm, w.stream));
  NCCL(ncclRecv(at, 16, ncclFloat32, 1 - w.rank, w.comm, w.stream));
  NCCL(ncclGroupEnd());
  OK(cuStreamSynchronize(w.stream));
}

// The bytes of one rank are not known. The result of a reduction with them is not known, and reads
// as zero. In a collective that only moves bytes, the bytes of the other ranks stay known.
void partly_known(World& w) {
  w.join();
  Device<float> mine(4, 3), all(8, 5);
  if (w.rank == 1) OK(cuMemAlloc(&mine.address, 64));  // nothing was written there
  NCCL(ncclAllGather(mine.at(), all.at(), 4, ncclFloat32, w.comm, w.stream));
  TRUE(all.read(w.stream) == Floats({3, 3, 3, 3, 0, 0, 0, 0}));
  NCCL(ncclAllReduce(mine.at(), all.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  TRUE(all.read(w.stream) == Floats(8, 0));
  const float half[2] = {7, 8};
  OK(cuMemcpyHtoD(mine.address, half, sizeof half));
  NCCL(ncclBroadcast(mine.at(), mine.at(), 4, ncclFloat32, 1, w.comm, w.stream));
  TRUE(mine.read(w.stream) == Floats({7, 8, 0, 0}));
}

template <class T>
void check_ints(int type) {
  const std::vector<T> a = {1, 2, 100}, b = {7, 5, 27};
  const std::vector<const char*> inputs = {reinterpret_cast<const char*>(a.data()),
                                           reinterpret_cast<const char*>(b.data())};
  std::vector<T> out(3);
  const auto is = [&](int op, std::vector<T> wanted) {
    nccl::reduce(type, op, inputs, nullptr, 3, reinterpret_cast<char*>(out.data()));
    TRUE(out == wanted);
  };
  is(ncclSum, {8, 7, 127});
  is(ncclMax, {7, 5, 100});
  is(ncclMin, {1, 2, 27});
  is(ncclAvg, {4, 3, 63});
  is(ncclProd, {7, 10, static_cast<T>(2700)});
}

// Every bit pattern is the same after a conversion to float and back. Rounding is to the nearest
// value, and ties go to even.
template <class Format>
void check_format(float largest, float smallest, float over) {
  for (unsigned i = 0; i < 1u << (8 * sizeof(typename Format::Bits)); ++i) {
    const auto bits = static_cast<typename Format::Bits>(i);
    const float value = Format::load(bits);
    if (!std::isnan(value)) TRUE(Format::store(value) == bits);
    if (std::isnan(value)) TRUE(std::isnan(Format::load(Format::store(value))));
  }
  TRUE(Format::load(Format::store(largest)) == largest);
  TRUE(Format::load(Format::store(smallest)) == smallest);
  TRUE(Format::load(Format::store(smallest / 2)) == 0);  // the tie goes to even
  TRUE(Format::load(Format::store(smallest * 1.5f)) == 2 * smallest);
  TRUE(!std::isfinite(Format::load(Format::store(over))));
}

void check_reductions() {
  check_ints<int8_t>(ncclInt8);
  check_ints<uint8_t>(ncclUint8);
  check_ints<int32_t>(ncclInt32);
  check_ints<uint32_t>(ncclUint32);
  check_ints<int64_t>(ncclInt64);
  check_ints<uint64_t>(ncclUint64);
  check_format<nccl::Half>(65504, std::ldexp(1.0f, -24), 65520);
  check_format<nccl::E4m3>(448, std::ldexp(1.0f, -9), 480);
  check_format<nccl::E5m2>(57344, std::ldexp(1.0f, -16), 61440);
  check_format<nccl::Bfloat16>(std::ldexp(255.0f, 120), std::ldexp(1.0f, -133),
                               std::numeric_limits<float>::max());
  // Half precision is summed in float. In half precision 2050 + 1 + 1 would lose both ones.
  const uint16_t half = nccl::Half::store(2050), one = nccl::Half::store(1);
  const std::vector<const char*> inputs = {reinterpret_cast<const char*>(&half),
                                           reinterpret_cast<const char*>(&one),
                                           reinterpret_cast<const char*>(&one)};
  uint16_t sum = 0;
  nccl::reduce(ncclFloat16, ncclSum, inputs, nullptr, 1, reinterpret_cast<char*>(&sum));
  TRUE(nccl::Half::load(sum) == 2052);
}

const std::vector<Settings::value_type> kPhantom = {{"phantom", "1"}};

}  // namespace

int main(int argc, char** argv) {
  return run_checks(
      argc, argv,
      {
          {"reductions", check_reductions},
          {"collectives", [] { ranks(2, collectives); }},
          {"collectives, threaded", [] { ranks(3, collectives, {{"schedule", "threaded"}}); }},
          {"messages", [] { ranks(3, messages); }},
          {"grouped calls", [] { ranks(2, grouped); }},
          {"in stream order", [] { ranks(2, in_stream_order); }},
          {"factors", [] { ranks(2, factors); }},
          {"split communicators", [] { ranks(3, split); }},
          {"calls take time", [] { ranks(2, takes_time); }},
          {"one process", [] { ranks(1, one_process); }},
          {"phantom memory", [] { ranks(2, phantom, kPhantom); }},
          {"partly known memory", [] { ranks(2, partly_known, kPhantom); }},
          // In phantom memory bytes that the host wrote are known, and so are their results.
          {"collectives of what is known", [] { ranks(2, collectives, kPhantom); }},
          {"messages of what is known", [] { ranks(2, messages, kPhantom); }},
          {"grouped calls of what is known", [] { ranks(2, grouped, kPhantom); }},
          {"factors of what is known", [] { ranks(2, factors, kPhantom); }},
      });
}
