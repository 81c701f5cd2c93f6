// Turns copy, memset and value calls into stream work.
#include "work.h"

#include <cstring>

namespace simcuda {
namespace {

// The device whose memory is at `address`; `otherwise` where nothing is mapped.
int owner(Driver* driver, CUdeviceptr address, int otherwise) {
  const Page* page = driver->memory.page_at(address);
  return page == nullptr ? otherwise : driver->memory.handle_of(*page)->prop.location.id;
}

// The socket of host memory, -1: spread over all.
int host_node(const Driver& driver, int device) {
  const std::string& option = driver.options.host_node;
  if (option == "interleave") return -1;
  if (option == "local") return driver.topology.socket_of(device);
  return std::min(std::atoi(option.c_str()), driver.topology.sockets() - 1);
}

CUresult resolve(Driver* driver, CopyEnd* end, size_t bytes, size_t rows) {
  const bool device = driver->memory.find(end->address) != nullptr;
  if (end->unified) end->host = !device;
  if (!end->host && !device) {
    // Pinned memory has a device address too: the host's own.
    if (!driver->host.pinned(end->address, bytes)) {
      return fail(CUDA_ERROR_INVALID_VALUE, "the device address is not reserved");
    }
    end->host = true;
  }
  if (end->address == 0 && bytes * rows != 0) return fail(CUDA_ERROR_INVALID_VALUE, "NULL");
  return CUDA_SUCCESS;
}

Route route(Driver* driver, const CopyEnd& dst, const CopyEnd& src, int device) {
  const Topology& topology = driver->topology;
  const int to = dst.host ? -1 : owner(driver, dst.address, device);
  const int from = src.host ? -1 : owner(driver, src.address, device);
  if (dst.host && src.host) return topology.host_to_host(host_node(*driver, device));
  if (src.host) return topology.host_to_device(host_node(*driver, to), to);
  if (dst.host) return topology.device_to_host(from, host_node(*driver, from));
  return topology.device_to_device(from, to);
}

void take_source(Op* op) {
  op->staged.resize(op->bytes * op->rows);
  for (size_t row = 0; row < op->rows; ++row) {
    std::memcpy(op->staged.data() + row * op->bytes,
                reinterpret_cast<const char*>(op->src.address) + row * op->src.pitch, op->bytes);
  }
}

}  // namespace

CUresult submit(Driver* driver, Stream* stream, const OpPtr& op) {
  bool taken = false;
  const CUresult result = driver->streams.captured(stream, &taken);
  if (result != CUDA_SUCCESS || taken) return result;
  if (driver->ticking()) {
    driver->streams.tick_work(stream);
  } else {
    driver->scheduler.enqueue(stream, op);
  }
  return CUDA_SUCCESS;
}

CUresult copy(Driver* driver, uint64_t id, Lock* lock, CopyEnd dst, CopyEnd src, size_t bytes,
              size_t rows, bool peer, bool wait) {
  CUresult result = resolve(driver, &dst, bytes, rows);
  if (result == CUDA_SUCCESS) result = resolve(driver, &src, bytes, rows);
  Stream* stream = driver->streams.streams.find(id);
  if (result == CUDA_SUCCESS && wait) result = driver->streams.check_blocking(stream);
  if (result != CUDA_SUCCESS || bytes == 0 || rows == 0) return result;
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kCopy;
  op->bytes = bytes;
  op->rows = rows;
  const auto side = [&](const CopyEnd& end) {
    const int device = peer ? owner(driver, end.address, stream->device) : stream->device;
    return Op::Side{end.address, end.pitch, end.host, device};
  };
  op->dst = side(dst);
  op->src = side(src);
  op->latency_ns = driver->topology.copy_ns();
  op->route = route(driver, dst, src, stream->device);
  const bool capturing = stream->capture != nullptr;
  const size_t dst_span = dst.pitch * (rows - 1) + bytes, src_span = src.pitch * (rows - 1) + bytes;
  // Pageable memory is read before the call returns, and written before it returns.
  if (src.host && !capturing && !driver->options.phantom &&
      !driver->host.pinned(src.address, src_span)) {
    take_source(op.get());
  }
  if (dst.host && !driver->host.pinned(dst.address, dst_span)) wait = true;
  if (dst.host && src.host) wait = true;
  result = submit(driver, stream, op);
  if (result != CUDA_SUCCESS || !wait || capturing || driver->ticking()) return result;
  return driver->scheduler.wait(lock, op);
}

CUresult fill(Driver* driver, uint64_t id, CUdeviceptr dst, uint64_t value, unsigned width,
              size_t count) {
  CopyEnd end{dst, 0, false, false};
  const CUresult result = resolve(driver, &end, count * width, 1);
  if (result != CUDA_SUCCESS || count == 0) return result;
  if (dst % width != 0) return fail(CUDA_ERROR_INVALID_VALUE, "memset: address not aligned");
  Stream* stream = driver->streams.streams.find(id);
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kMemset;
  op->bytes = count * width;
  op->value = value;
  op->width = width;
  op->dst = {dst, 0, end.host, stream->device};
  const int device = owner(driver, dst, stream->device);
  op->route = driver->topology.device_to_device(device, device);
  return submit(driver, stream, op);
}

}  // namespace simcuda
