#include "transfer/call/plain_copies.h"

#include <algorithm>
#include <vector>

#include "base/json_text.h"
#include "driver/device_scope.h"
#include "transfer/call/quiesce.h"

namespace glake::transfer {

void follow(Driver& driver, int device, StreamHandle stream, int other_device, StreamHandle other) {
  EventId event = 0;
  Status s = driver.create_event(other_device, &event);
  if (s.ok()) {
    s = driver.record(other_device, event, other);
    if (s.ok()) s = driver.wait_stream(device, stream, event);
    driver.destroy_event(event);  // the driver keeps what is already enqueued
  }
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "joining two streams: " + driver.describe(s));
}

bool PlainCopies::possible(const Request& request) {
  const int device = request.stream_device;
  const int src = request.src.gpu, dst = request.dst.gpu;
  if (src == device && (dst < 0 || dst == device)) return true;
  if (src < 0 && dst == device) return true;
  if (src >= 0 && dst >= 0 && src != dst) return true;  // between two contexts
  devices_.open(device);
  for (int gpu : {src, dst}) {
    if (gpu < 0) continue;
    devices_.open(gpu);
    if (!devices_.reach(gpu, device)) return false;
  }
  return true;
}

StreamHandle PlainCopies::stream_for(const Request& request) {
  const int device = request.stream_device;
  devices_.open(device);
  const StreamHandle stream =
      request.ordered ? request.stream : devices_.plain_stream(device, !request.src.host());
  for (int gpu : {request.src.gpu, request.dst.gpu}) {
    if (gpu >= 0) devices_.open(gpu);
  }
  if (!request.src.host() && !request.dst.host()) {
    for (int gpu : {request.src.gpu, request.dst.gpu}) devices_.try_reach(gpu, device);
  }
  return stream;
}

void PlainCopies::submit(const Request& request, StreamHandle stream) {
  DeviceScope scope(driver_, request.stream_device);
  Status s = scope.status();
  Bytes enqueued = 0;
  if (s.ok()) s = submit_parts(request, stream, &enqueued);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused a copy of " +
                                        std::to_string(request.parts.total()) +
                                        " bytes: " + driver_.describe(s) +
                                        after_refusal(request.stream_device, stream, enqueued));
  }
  count_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(request.parts.total(), std::memory_order_relaxed);
}

// A caller whose copy is refused gets no handle, and may change or free the memory at once. So if
// the driver has taken a part of the copy, this waits for it. Work that is captured does not run
// yet, and its stream cannot be waited for.
std::string PlainCopies::after_refusal(int device, StreamHandle stream, Bytes enqueued) {
  if (enqueued == 0) return "";
  const std::string text = "; before that it took " + std::to_string(enqueued) + " of the bytes, ";
  bool captured = false;
  const Status s = driver_.is_capturing(device, stream, &captured);
  if (s.ok() && captured) return text + "which are in the captured graph: drop that graph";
  if (quiesce(driver_, device, stream)) return text + "which are copied";
  return text + "and it does not tell when they are copied";
}

Status PlainCopies::submit_parts(const Request& request, StreamHandle stream, Bytes* enqueued) {
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
    if (s.ok()) {
      *enqueued += part.bytes;
    } else if (s.invalid_value() && host) {
      s = submit_stretches(request, part, stream, s, enqueued);
    }
    if (!s.ok()) return s;
  }
  return {};
}

// Copies host memory in stretches that are pinned as a whole or not at all, as a driver requires
// (CUDA Driver API, cuMemcpyAsync). The driver tells where the pinned range around an address
// begins and ends, but not where the next one is. So memory whose first byte is not pinned is
// halved until the driver takes it. `refused` is the driver's answer for the whole memory. It is
// returned if all of it is pinned.
Status PlainCopies::submit_stretches(const Request& request, const Part& part, StreamHandle stream,
                                     Status refused, Bytes* enqueued) {
  struct Pinned {
    Address begin = 0, end = 0;  // end == 0: not pinned, or the driver does not tell
  };
  const auto pinned_at = [&](Address at) -> Pinned {
    PointerFacts facts;
    const Status s = driver_.pointer_facts(at, &facts);
    if (!s.ok() || facts.kind != PointerFacts::Kind::kHost || facts.size == 0) return {};
    return {facts.base, facts.base + facts.size};
  };
  const Address begin = request.dst.host() ? part.dst : part.src, end = begin + part.bytes;
  Address mixed = end;  // the driver has refused the memory from `at` to here
  for (Address at = begin, until = end; at < end;) {
    const Pinned first = pinned_at(at), last = pinned_at(until - 1);
    if (first.end != 0) {
      until = std::min(first.end, end);
      if (until - at == part.bytes) return refused;
    } else if (last.begin > at) {
      until = last.begin;
    }
    const Bytes done = at - begin;
    const Status s = driver_.copy(part.dst + done, part.src + done, until - at, stream);
    if (s.ok()) {
      *enqueued += until - at;
      at = until;
      if (at >= mixed) mixed = end;
      until = mixed;
      continue;
    }
    if (!s.invalid_value() || first.end != 0 || until - at == 1) return s;
    mixed = until;
    until = at + (until - at) / 2;
  }
  return {};
}

}  // namespace glake::transfer
