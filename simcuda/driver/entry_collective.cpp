// Stream work of the stand-in for NCCL (collective.h).
#include <algorithm>
#include <map>

#include "collective.h"
#include "driver.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

struct simcuda_order {
  OpPtr last;
};

namespace {

std::vector<Op::Part> parts_of(const Driver& driver, const simcuda_piece* pieces, size_t count,
                               int device, bool to_host) {
  std::vector<Op::Part> parts;
  for (const simcuda_piece* piece = pieces; piece != pieces + count; ++piece) {
    if (piece->bytes == 0) continue;
    // As for a kernel, pageable memory counts as unmapped.
    const bool pinned = driver.host.pinned(piece->address, piece->bytes);
    const Op::Side user{piece->address, 0, pinned, device};
    const Op::Side staged{reinterpret_cast<uint64_t>(piece->host), 0, true, device};
    Op::Part part;
    part.bytes = piece->bytes;
    part.known = piece->known;
    part.dst = to_host ? staged : user;
    part.src = to_host ? user : staged;
    parts.push_back(std::move(part));
  }
  return parts;
}

OpPtr moving(std::vector<Op::Part> parts, int gpu) {
  auto op = std::make_shared<Op>();
  op->from.gpu = op->to.gpu = gpu;
  if (parts.empty()) return op;  // a marker
  op->kind = Op::Kind::kCopy;
  op->staging = true;
  for (const Op::Part& part : parts) op->bytes += part.bytes;
  op->parts = std::move(parts);
  return op;
}

// All flows end together, so they are one piece of work with the bytes of the largest flow. The
// load of an edge is the sum of the bytes of its flows, divided by the bytes of the largest flow.
void take_time(const Driver& driver, const simcuda_collective_work& work, Op* op) {
  op->latency_ns = work.latency_ns;
  uint64_t most = 0;
  for (size_t i = 0; i < work.flow_count; ++i) most = std::max(most, work.flows[i].bytes);
  if (most == 0) return;
  std::map<int, double> loads;
  for (const simcuda_flow* flow = work.flows; flow != work.flows + work.flow_count; ++flow) {
    const double part = static_cast<double>(flow->bytes) / static_cast<double>(most);
    const Route way = driver.topology.device_to_device(flow->from, flow->to);
    for (const auto& [edge, share] : way) loads[edge] += share * part;
  }
  op->route.clear();
  for (const auto& [edge, load] : loads) op->route.push_back({edge, load});
  op->bytes = most;
  op->rows = 1;
  op->from.gpu = work.flows[0].from;
  op->to.gpu = work.flows[0].to;
}

bool known(const Driver& driver, const simcuda_collective_work& work) {
  return std::all_of(work.flows, work.flows + work.flow_count, [&](const simcuda_flow& flow) {
    return flow.from >= 0 && flow.to >= 0 && flow.from < driver.topology.gpus() &&
           flow.to < driver.topology.gpus();
  });
}

// Returns four pieces of work, which run in this order: read `in`, call `reached`, wait for `go`,
// write `out`.
std::vector<OpPtr> ops_of(const Driver& driver, const simcuda_collective_work& work, int device) {
  const int gpu = driver.gpus.gpu(device);
  const OpPtr in = moving(parts_of(driver, work.in, work.ins, device, true), gpu);
  in->latency_ns = driver.kernel_costs.start_ns;
  const auto reached = std::make_shared<Op>();
  reached->kind = Op::Kind::kHostFunction;
  reached->function = work.reached;
  reached->data = work.data;
  const auto wait = std::make_shared<Op>();
  wait->kind = Op::Kind::kWaitValue;
  wait->bytes = wait->width = sizeof *work.go;
  wait->value = 1;
  wait->flags = CU_STREAM_WAIT_VALUE_GEQ;
  wait->dst = {reinterpret_cast<uint64_t>(work.go), 0, true, device};
  const OpPtr out = moving(parts_of(driver, work.out, work.outs, device, false), gpu);
  take_time(driver, work, out.get());
  return {in, reached, wait, out};
}

CUresult enqueue(Driver* driver, Stream* stream, const simcuda_collective_work& work,
                 simcuda_order* order, int* how) {
  if (!known(*driver, work))
    return fail(CUDA_ERROR_INVALID_DEVICE, "a flow names a device that the platform does not have");
  const bool captured = stream->capture != nullptr;
  *how = captured ? SIMCUDA_CAPTURED : driver->ticking() ? SIMCUDA_COUNTED : SIMCUDA_ENQUEUED;
  const std::vector<OpPtr> ops = ops_of(*driver, work, stream->device);
  if (*how != SIMCUDA_ENQUEUED) {
    for (const OpPtr& op : ops) {
      const CUresult result = submit(driver, stream, op);
      if (result != CUDA_SUCCESS) return result;
    }
    if (*how == SIMCUDA_COUNTED) work.release(work.data);
    return CUDA_SUCCESS;
  }
  bool taken = false;
  const CUresult result = driver->captures.take(stream, &taken);  // this may invalidate a capture
  if (result != CUDA_SUCCESS) return result;
  ops.back()->keep = std::shared_ptr<void>(work.data, work.release);
  for (const OpPtr& op : ops) {
    driver->scheduler->enqueue(stream, op, op == ops.front() ? order->last : nullptr);
  }
  order->last = ops.back();
  return CUDA_SUCCESS;
}

}  // namespace

simcuda_order* simcuda_order_new(void) { return new simcuda_order; }

// It may be called with the driver's mutex held. That is safe: work that was not applied has other
// owners too, so this call destroys none.
void simcuda_order_free(simcuda_order* order) { delete order; }

int simcuda_collective(CUstream handle, const simcuda_collective_work* work, simcuda_order* order,
                       int* how) {
  return on_stream(CALL(cuLaunchKernel), handle, [&](Driver& driver, Stream& stream) {
    return enqueue(&driver, &stream, *work, order, how);
  });
}

void simcuda_collective_go(uint64_t* go) {
  __atomic_store_n(go, 1, __ATOMIC_RELEASE);
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return;
  const std::lock_guard<std::mutex> lock(driver->mutex);
  driver->scheduler->turns().expect(0);
}

void simcuda_collective_ask(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked || driver->ticking()) return;
  Lock lock(driver->mutex);
  driver->scheduler->waits().query(&lock, std::make_shared<Op>());
}

int simcuda_collective_phantom(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  return driver != nullptr && driver->options.phantom ? 1 : 0;
}

size_t simcuda_collective_most_known(void) { return Known::kMostOfOne; }

const char* simcuda_collective_machine(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  return driver == nullptr ? "" : driver->options.machine.c_str();
}

int simcuda_collective_gpu(int device) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || device < 0 || device >= driver->devices) return device;
  return driver->gpus.gpu(device);
}

int simcuda_collective_gpus(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  return driver == nullptr ? 0 : driver->topology.gpus();
}

int simcuda_collective_linked(int a, int b) {
  Driver* driver = running.load(std::memory_order_acquire);
  return driver != nullptr && a != b && driver->topology.linked(a, b) ? 1 : 0;
}
