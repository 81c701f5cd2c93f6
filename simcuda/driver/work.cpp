// Turns copy, memset and value calls into stream work.
#include "work.h"

#include <array>
#include <cstring>
#include <map>

#include "base/numbers.h"

namespace simcuda {
namespace {

// Smaller copies of a batch go another, slower way through the driver (published, H100: vLLM
// #42212).
constexpr size_t kSmallPart = 28 << 10;
constexpr int kByDevice = -2;

// The device whose memory is at `address`; `otherwise` if nothing is mapped there.
int owner(Driver* driver, CUdeviceptr address, int otherwise) {
  const Page* page = driver->memory.page_at(address);
  return page == nullptr ? otherwise : driver->memory.handle_of(*page)->prop.location.id;
}

int host_node(const Driver& driver, uint64_t address, size_t bytes, int gpu) {
  const int node = node_of_host(driver, address, bytes);
  return node == kByDevice ? driver.topology.socket_of(gpu) : node;
}

CUresult resolve(Driver* driver, CopyEnd* end, size_t bytes, size_t rows) {
  const bool device = driver->memory.find(end->address) != nullptr;
  if (end->unified) end->host = !device;
  if (!end->host && !device) {
    // Pinned memory also has a device address, which is the host's own.
    if (!driver->host.pinned(end->address, bytes)) {
      return fail(CUDA_ERROR_INVALID_VALUE, "the device address is not reserved");
    }
    end->host = true;
  }
  if (end->address == 0 && bytes * rows != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "a copy's address is NULL");
  }
  const size_t span = bytes * rows == 0 ? 0 : end->pitch * (rows - 1) + bytes;
  // CUDA Driver API, cuMemcpyAsync: host memory of a copy must be registered as a whole, or not at
  // all.
  if (end->host && span != 0 &&
      driver->host.pinned_extent(end->address, span) == HostMemory::Extent::kPart) {
    return fail(CUDA_ERROR_INVALID_VALUE, "only a part of the copy's host memory is pinned");
  }
  return CUDA_SUCCESS;
}

// Finds where both ends of a copy are. Host memory that nobody placed is where option host_node
// says.
void locate(Driver* driver, const CopyEnd& dst, const CopyEnd& src, size_t dst_span,
            size_t src_span, int device, Op* op) {
  const auto gpu_of = [&](CUdeviceptr address) {
    return driver->gpus.gpu(owner(driver, address, device));
  };
  if (!dst.host) op->to.gpu = gpu_of(dst.address);
  if (!src.host) op->from.gpu = gpu_of(src.address);
  const auto at = [](const Op::Place& place, int otherwise) {
    return place.gpu >= 0 ? place.gpu : otherwise;
  };
  const int gpu = driver->gpus.gpu(device);
  if (dst.host) op->to.node = host_node(*driver, dst.address, dst_span, at(op->from, gpu));
  if (src.host) op->from.node = host_node(*driver, src.address, src_span, at(op->to, gpu));
}

// `gpu`: whose copy engine works.
Route route(const Topology& topology, const Op::Place& from, const Op::Place& to, int gpu) {
  if (from.gpu < 0 && to.gpu < 0) return topology.host_to_host(from.node);
  if (from.gpu < 0) return topology.host_to_device(from.node, to.gpu);
  if (to.gpu < 0) return topology.device_to_host(from.gpu, to.node);
  return topology.device_to_device(from.gpu, to.gpu, gpu == to.gpu && gpu != from.gpu);
}

// Whether the device that makes a copy between two has no access to the memory of the other one.
// "If peer-to-peer access is enabled between two devices [...] copy between these two devices no
// longer needs to be staged through the host" (CUDA programming guide, Peer-to-Peer Memory Copy).
bool staged(Driver* driver, const Stream& stream, const Op& op, const CopyEnd& dst,
            const CopyEnd& src) {
  if (op.from.gpu < 0 || op.to.gpu < 0 || op.from.gpu == op.to.gpu) return false;
  const Context* context = driver->contexts.live(as_context(stream.context));
  const auto reaches = [&](CUdeviceptr address, uint32_t right) {
    Reservation* reservation = nullptr;
    const Page* page = driver->memory.page_at(address, &reservation);
    if (page == nullptr) return true;
    const int of = driver->memory.handle_of(*page)->prop.location.id;
    if (of == stream.device) return true;
    if (reservation->allocation != 0) return context == nullptr || (context->peers >> of & 1) != 0;
    return (page->access >> (2 * stream.device) & right) != 0;
  };
  return !reaches(dst.address, 2) || !reaches(src.address, 1);
}

void take_source(Op* op) {
  op->staged.resize(op->bytes * op->rows);
  for (size_t row = 0; row < op->rows; ++row) {
    std::memcpy(op->staged.data() + row * op->bytes,
                reinterpret_cast<const char*>(op->src.address) + row * op->src.pitch, op->bytes);
  }
}

// The legacy streams that a copy is also the next work of. A copy between two devices in the NULL
// stream starts after what was given to either device, and ends before what is given to them later
// (CUDA C++ Programming Guide, Multi-Device System). Streams that do not wait for the NULL stream
// are left out, because their own description says so. Where the call names no contexts, a device's
// work is that of its primary context.
std::vector<Stream*> others_of(Driver* driver, const Stream& stream, const Op& op,
                               const CopyRequest& request) {
  std::vector<Stream*> others;
  if (!stream.legacy || op.dst.host || op.src.host) return others;
  uint64_t ends[2] = {request.to, request.from};
  if (!request.peer) {
    ends[0] = driver->contexts.primary(owner(driver, op.dst.address, stream.device))->id;
    ends[1] = driver->contexts.primary(owner(driver, op.src.address, stream.device))->id;
    if (ends[0] == ends[1]) return others;
  }
  for (const uint64_t end : ends) {
    const Context* context = driver->contexts.live(as_context(end));
    if (context == nullptr || end == stream.context) continue;
    Stream* other = driver->streams.resolve(CU_STREAM_LEGACY, context);
    if (others.empty() || others[0] != other) others.push_back(other);
  }
  return others;
}

CUgraphNodeType node_type(const Op& op) {
  switch (op.kind) {
    case Op::Kind::kCopy:
      return op.table != 0 ? CU_GRAPH_NODE_TYPE_KERNEL : CU_GRAPH_NODE_TYPE_MEMCPY;
    case Op::Kind::kMemset:
      return CU_GRAPH_NODE_TYPE_MEMSET;
    case Op::Kind::kHostFunction:
      return CU_GRAPH_NODE_TYPE_HOST;
    case Op::Kind::kWriteValue:
    case Op::Kind::kWaitValue:
      return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case Op::Kind::kMarker:
    case Op::Kind::kCompute:
      break;
  }
  return CU_GRAPH_NODE_TYPE_KERNEL;
}

void capture(Driver* driver, Stream* stream, const OpPtr& op) {
  op->device = stream->device;
  const auto mark = [&](Op::Side* side, size_t span) {
    side->pinned = side->host && driver->host.pinned(side->address, span);
  };
  if (op->parts.empty()) {
    mark(&op->dst, op->dst.pitch * (op->rows - 1) + op->bytes);
    mark(&op->src, op->src.pitch * (op->rows - 1) + op->bytes);
  }
  for (Op::Part& part : op->parts) {
    mark(&part.dst, part.bytes);
    mark(&part.src, part.bytes);
  }
  GraphNode node;
  node.type = node_type(*op);
  node.op = op;
  driver->captures.add_node(stream, std::move(node));
}

// The bytes on each route, for work that uses a few routes, and their common load on edges.
class Ways {
 public:
  explicit Ways(int gpu) : gpu_(gpu) {}  // the GPU that works
  // A copy between these places. Each socket has its part of the host memory at either end.
  void add(const Driver& driver, const Op& place, const CopyEnd& dst, const CopyEnd& src,
           size_t dst_span, size_t src_span) {
    const auto at = [&](const CopyEnd& end, size_t span, int node) {
      const std::map<int, size_t> on =
          end.host ? driver.host.placed(end.address, span) : std::map<int, size_t>();
      return on.empty() ? std::map<int, size_t>{{node, 1}} : on;
    };
    const auto sum = [](const std::map<int, size_t>& on) {
      double all = 0;
      for (const auto& [node, bytes] : on) all += static_cast<double>(bytes);
      return all;
    };
    const auto to = at(dst, dst_span, place.to.node), from = at(src, src_span, place.from.node);
    const double each = static_cast<double>(dst_span) / sum(to) / sum(from);
    for (const auto& [to_node, in] : to) {
      for (const auto& [from_node, out] : from) {
        between_[{place.from.gpu, from_node, place.to.gpu, to_node}] +=
            each * static_cast<double>(in) * static_cast<double>(out);
      }
    }
    total_ += static_cast<double>(dst_span);
  }
  // `efficiency` is the part of the links' rate that such work reaches.
  Route route(const Topology& topology, double efficiency = 1) const {
    if (between_.size() == 1 && efficiency == 1) return way(topology, between_.begin()->first);
    std::map<int, double> loads;
    for (const auto& [ends, bytes] : between_) {
      for (const auto& [edge, share] : way(topology, ends)) loads[edge] += share * bytes;
    }
    Route together;
    for (const auto& [edge, load] : loads) together.push_back({edge, load / total_ / efficiency});
    return together;
  }

 private:
  using Ends = std::array<int, 4>;  // the GPU and the socket of each end

  Route way(const Topology& topology, const Ends& ends) const {
    return simcuda::route(topology, {ends[0], ends[1]}, {ends[2], ends[3]}, gpu_);
  }

  const int gpu_;
  std::map<Ends, double> between_;
  double total_ = 0;
};

}  // namespace

int node_of_host(const Driver& driver, uint64_t address, size_t bytes) {
  const std::map<int, size_t> on = driver.host.placed(address, bytes);
  if (on.size() == 1) return on.begin()->first;
  const std::string& option = driver.options.host_node;
  if (!on.empty() || option == "interleave") return -1;
  if (option == "local") return kByDevice;
  const int last = driver.topology.sockets() - 1;
  return static_cast<int>(glake::parse_whole(option, 0, last).value_or(last));
}

CUresult submit(Driver* driver, Stream* stream, const OpPtr& op,
                const std::vector<Stream*>& others) {
  bool taken = false;
  for (Stream* other : others) {
    const CUresult allowed = driver->captures.take(other, &taken);
    if (allowed != CUDA_SUCCESS) return allowed;
  }
  const CUresult result = driver->captures.take(stream, &taken);
  if (result != CUDA_SUCCESS) return result;
  const bool writes = op->kind == Op::Kind::kCopy || op->kind == Op::Kind::kMemset || op->launch;
  op->covered = writes && covered();
  if (taken) {
    capture(driver, stream, op);
  } else if (driver->ticking()) {
    driver->tick_clock.work(stream);
  } else {
    driver->scheduler->enqueue_across(stream, others, op);
  }
  return CUDA_SUCCESS;
}

CUresult copy(Driver* driver, uint64_t id, Lock* lock, const CopyRequest& request) {
  CopyEnd dst = request.dst, src = request.src;
  const size_t bytes = request.bytes, rows = request.rows;
  bool wait = request.wait;
  CUresult result = resolve(driver, &dst, bytes, rows);
  if (result == CUDA_SUCCESS) result = resolve(driver, &src, bytes, rows);
  Stream* stream = driver->streams.find(id);
  if (result == CUDA_SUCCESS && wait) result = driver->captures.check_blocking(stream);
  if (result != CUDA_SUCCESS || bytes == 0 || rows == 0) return result;
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kCopy;
  op->bytes = bytes;
  op->rows = rows;
  const auto side = [&](const CopyEnd& end) {
    const int device = request.peer ? owner(driver, end.address, stream->device) : stream->device;
    return Op::Side{end.address, end.pitch, end.host, device};
  };
  op->dst = side(dst);
  op->src = side(src);
  // Each further row costs as much as a further copy of a batch. A copy engine takes all rows as
  // one piece of work (LINE_COUNT of its class, NVIDIA's open-gpu-doc), so that is the dearer
  // guess.
  op->latency_ns = driver->topology.copy_ns() + (rows - 1) * driver->options.batch_large_ns;
  const bool capturing = stream->capture != nullptr;
  const size_t dst_span = dst.pitch * (rows - 1) + bytes, src_span = src.pitch * (rows - 1) + bytes;
  locate(driver, dst, src, dst_span, src_span, stream->device, op.get());
  Ways ways(driver->gpus.gpu(stream->device));
  ways.add(*driver, *op, dst, src, dst_span, src_span);
  op->route = ways.route(driver->topology);
  if (staged(driver, *stream, *op, dst, src)) {
    op->route = driver->topology.staged(op->from.gpu, op->to.gpu);
  }
  // Before the call returns, a pageable source has been read, and a pageable target written.
  const bool kept = !driver->options.phantom || bytes * rows <= Known::kMostOfOne;
  if (src.host && !capturing && kept && !driver->host.pinned(src.address, src_span)) {
    take_source(op.get());
  }
  if (dst.host && !driver->host.pinned(dst.address, dst_span)) wait = true;
  if (dst.host && src.host) wait = true;
  result = submit(driver, stream, op, others_of(driver, *stream, *op, request));
  if (result != CUDA_SUCCESS || !wait || capturing || driver->ticking()) return result;
  result = driver->scheduler->waits().wait(lock, op);
  return result != CUDA_SUCCESS ? result : tell_faults({op}, true);
}

CUresult copy_batch(Driver* driver, uint64_t id, const std::vector<BatchCopy>& copies) {
  Stream* stream = driver->streams.find(id);
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kCopy;
  op->latency_ns = driver->topology.copy_ns();
  Ways ways(driver->gpus.gpu(stream->device));
  for (const BatchCopy& each : copies) {
    CopyEnd dst{each.dst, 0, false, true}, src{each.src, 0, false, true};
    CUresult result = resolve(driver, &dst, each.bytes, 1);
    if (result == CUDA_SUCCESS) result = resolve(driver, &src, each.bytes, 1);
    if (result != CUDA_SUCCESS) return result;
    Op place;
    locate(driver, dst, src, each.bytes, each.bytes, stream->device, &place);
    if (op->parts.empty()) {  // a fault refers to the places of the first part
      op->from = place.from;
      op->to = place.to;
    }
    ways.add(*driver, place, dst, src, each.bytes, each.bytes);
    Op::Part part;
    part.bytes = each.bytes;
    part.dst = {each.dst, 0, dst.host, stream->device};
    part.src = {each.src, 0, src.host, stream->device};
    const bool kept = !driver->options.phantom || each.bytes <= Known::kMostOfOne;
    if (each.read_now && src.host && kept) {
      const auto* from = reinterpret_cast<const char*>(each.src);
      part.staged.assign(from, from + each.bytes);
    }
    op->parts.push_back(std::move(part));
    op->bytes += each.bytes;
    op->latency_ns +=
        each.bytes < kSmallPart ? driver->options.batch_small_ns : driver->options.batch_large_ns;
  }
  op->route = ways.route(driver->topology);
  return submit(driver, stream, op);
}

CUresult copy_blocks(Driver* driver, uint64_t id, uint64_t table, uint32_t count) {
  Stream* stream = driver->streams.find(id);
  if (driver->memory.find(table) != nullptr) {
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                "glake_copy_blocks: simcuda takes tables in pinned host memory");
  }
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kCopy;
  op->device = stream->device;
  op->table = table;
  op->blocks = count;
  op->latency_ns = driver->topology.copy_ns() + driver->kernel_costs.start_ns;
  driver->scheduler->effects().read_table(op.get());
  Ways ways(driver->gpus.gpu(stream->device));
  for (const Op::Part& part : op->parts) {
    CopyEnd dst{part.dst.address, 0, part.dst.host}, src{part.src.address, 0, part.src.host};
    Op place;
    locate(driver, dst, src, part.bytes, part.bytes, stream->device, &place);
    ways.add(*driver, place, dst, src, part.bytes, part.bytes);
    // A fault refers to the places of the first part.
    if (&part != &op->parts.front()) continue;
    op->from = place.from;
    op->to = place.to;
  }
  if (!op->parts.empty()) op->route = ways.route(driver->topology, driver->kernel_costs.rate);
  return submit(driver, stream, op);
}

CUresult fill(Driver* driver, uint64_t id, Lock* lock, const FillRequest& request) {
  const CUdeviceptr dst = request.dst;
  CopyEnd end{dst, 0, false, false};
  CUresult result = resolve(driver, &end, request.count * request.width, 1);
  if (result != CUDA_SUCCESS || request.count == 0) return result;
  if (dst % request.width != 0)
    return fail(CUDA_ERROR_INVALID_VALUE, "memset: address not aligned");
  Stream* stream = driver->streams.find(id);
  const bool wait = request.synchronous && (end.host || driver->memory.find(dst)->managed);
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kMemset;
  op->bytes = request.count * request.width;
  op->value = request.value;
  op->width = request.width;
  op->dst = {dst, 0, end.host, stream->device};
  const int gpu = driver->gpus.gpu(owner(driver, dst, stream->device));
  op->route = driver->topology.device_to_device(gpu, gpu);
  result = submit(driver, stream, op);
  if (result != CUDA_SUCCESS || !wait || driver->ticking()) return result;
  return driver->scheduler->waits().wait(lock, op);
}

}  // namespace simcuda
