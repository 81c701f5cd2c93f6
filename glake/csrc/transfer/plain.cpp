// The fast path: copies too small, or without a second path worth taking, as the driver makes them.
#include "transfer/plain.h"

#include <unistd.h>

#include <algorithm>

#include "core/process.h"
#include "transfer/engine.h"

namespace glake::transfer {

// Streams for plain copies that belong to none of the caller's; made once, kept until close().
// One of each direction: a copy in is not held up by one out.
StreamHandle Engine::plain_stream(int device, bool outward) {
  std::atomic<StreamHandle>& known = plain_streams_[2 * static_cast<size_t>(device) + outward];
  StreamHandle stream = known.load(std::memory_order_acquire);
  if (stream != 0) return stream;
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = driver_.create_stream(&stream);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "no stream for a copy: " + driver_.describe(s));
  StreamHandle none = 0;
  if (known.compare_exchange_strong(none, stream)) return stream;
  driver_.destroy_stream(stream);  // another thread was first
  return none;
}

// Copies host memory in stretches that are pinned as a whole or not at all, as a driver wants it
// (CUDA Driver API, cuMemcpyAsync). It tells where a pinned range ends, but not where the next one
// begins: pages are asked about one by one. `refused`: what it said of the whole, which stands
// where the memory is of one kind.
Status Engine::copy_in_stretches(const Request& request, const Part& part, StreamHandle stream,
                                 Status refused) {
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  const Address begin = request.dst.host() ? part.dst : part.src;
  const auto pinned_until = [&](Address at, Address* until) {
    PointerFacts facts;
    const bool pinned =
        driver_.pointer_facts(at, &facts).ok() && facts.kind == PointerFacts::Kind::kHost;
    *until = pinned && facts.size != 0 ? facts.base + facts.size : round_down(at, page) + page;
    return pinned;
  };
  for (Bytes done = 0; done < part.bytes;) {
    Address until = 0;
    const bool pinned = pinned_until(begin + done, &until);
    for (Address next = 0; until < begin + part.bytes; until = next) {
      if (pinned_until(until, &next) != pinned) break;
    }
    const Bytes stretch = std::min(part.bytes, until - begin) - done;
    if (stretch == part.bytes) return refused;
    const Status s = driver_.copy(part.dst + done, part.src + done, stretch, stream);
    if (!s.ok()) return s;
    done += stretch;
  }
  return {};
}

Status Engine::submit_plain(const Request& request, StreamHandle stream) {
  const Parts& parts = request.parts;
  const bool peers =
      !request.src.host() && !request.dst.host() && request.src.gpu != request.dst.gpu;
  if (parts.count() > 1 && !peers && stream != 0) {
    std::vector<Address> dsts, srcs;
    std::vector<Bytes> sizes;
    for (size_t i = 0; i < parts.count(); ++i) {
      dsts.push_back(parts[i].dst);
      srcs.push_back(parts[i].src);
      sizes.push_back(parts[i].bytes);
    }
    Status s = driver_.copy_batch(dsts.data(), srcs.data(), sizes.data(), parts.count(), stream);
    if (!s.not_supported() && !s.invalid_value()) return s;
  }
  for (size_t i = 0; i < parts.count(); ++i) {
    const Part& part = parts[i];
    Status s = peers ? driver_.copy_peer(part.dst, request.dst.gpu, part.src, request.src.gpu,
                                         part.bytes, stream)
                     : driver_.copy(part.dst, part.src, part.bytes, stream);
    const bool host = request.src.host() || request.dst.host();
    if (s.invalid_value() && host) s = copy_in_stretches(request, part, stream, s);
    if (!s.ok()) return s;
  }
  return {};
}

// Whether a copy on the request's stream reaches both ends: the stream's GPU makes it.
bool Engine::plain_possible(const Request& request) {
  const int device = request.stream_device;
  const int src = request.src.gpu, dst = request.dst.gpu;
  if (src == device && (dst < 0 || dst == device)) return true;
  if (src < 0 && dst == device) return true;
  if (src >= 0 && dst >= 0 && src != dst) return true;  // between two contexts
  open_device(device);
  for (int gpu : {src, dst}) {
    if (gpu < 0) continue;
    open_device(gpu);
    if (!reach(gpu, device)) return false;
  }
  return true;
}

uint64_t Engine::plain(const Request& request, bool captured, const char* why) {
  const int device = request.stream_device;
  open_device(device);
  const StreamHandle stream =
      request.ordered ? request.stream : plain_stream(device, !request.src.host());
  for (int gpu : {request.src.gpu, request.dst.gpu}) {
    if (gpu >= 0) open_device(gpu);
  }
  const bool tracked = (request.flags & kTracked) != 0 && !captured;
  Marks::MarkPtr mark = tracked ? marks_.make(device) : nullptr;
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = submit_plain(request, stream);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused a copy of " +
                                        std::to_string(request.parts.total()) +
                                        " bytes: " + driver_.describe(s));
  }
  plain_copies_.fetch_add(1, std::memory_order_relaxed);
  plain_bytes_.fetch_add(request.parts.total(), std::memory_order_relaxed);
  if (mark != nullptr) return marks_.put(std::move(mark), stream, request.parts.total(), why);
  if (!PlainId::fits(stream)) {
    throw Error(GLAKE_INTERNAL, "a stream's handle has more than 53 bits");
  }
  return PlainId(device, stream, captured).id();
}

int Engine::wait_plain(uint64_t id, std::string* text) {
  const PlainId plain(id);
  if (plain.captured()) return GLAKE_OK;  // it runs when the graph does
  // Another thread's own default stream cannot be named here.
  const bool mine = !is_thread_stream(plain.stream()) || plain.stream() == this_thread_stream();
  const Status s = mine ? driver_.synchronize_stream(plain.device(), plain.stream())
                        : driver_.synchronize(plain.device());
  if (s.ok()) return GLAKE_OK;
  *text = "waiting for a plain copy's stream: " + driver_.describe(s);
  return GLAKE_DRIVER_ERROR;
}

// The device's context: it stays until the process's devices are closed, after the engine.
void Engine::open_device(int device) {
  std::atomic<bool>& ready = opened_[static_cast<size_t>(device)];
  if (ready.load(std::memory_order_acquire)) return;
  process_.device(device);
  ready.store(true, std::memory_order_release);
}

}  // namespace glake::transfer
