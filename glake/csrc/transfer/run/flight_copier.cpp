#include "transfer/run/flight_copier.h"

#include <algorithm>

#include "driver/device_scope.h"

namespace glake::transfer {

// The relay service has few buffers, so a chunk may have to wait for one.
bool FlightCopier::has_room(const PathRun& run, Bytes bytes) const {
  if (!tools_.remote.on_way(run.planned.path)) return true;
  Bytes size = TransferTuning::kLeastChunk;
  while (size < std::min(bytes, TransferTuning::kMostRemote)) size *= 2;
  return tools_.remote.room(run.planned.path, size);
}

// Whether the chunk passes through a pinned buffer at the host's end.
bool FlightCopier::staged(const Flight& flight) const {
  const Request& request = flight.transfer->request;
  return request.pageable || (request.unshared && tools_.remote.on_way(flight.run->planned.path));
}

void FlightCopier::outfit(Flight* flight) {
  tools_.devices.prepare(flight->run->planned.path);
  const std::vector<Hop>& hops = flight->run->planned.path.hops;
  for (size_t i = 0; i + 1 < hops.size(); ++i) {
    flight->slots.push_back(tools_.slots.lend(hops[i].to, flight->range.bytes()));
  }
  if (!staged(*flight)) return;
  flight->stage = tools_.remote.on_way(flight->run->planned.path)
                      ? tools_.slots.lend_shared(flight->range.bytes())
                      : tools_.slots.lend(Place{}, flight->range.bytes());
  if (!flight->transfer->request.src.host()) return;
  tools_.staging.copy(flight->transfer->request.parts, flight->range, flight->stage.at(),
                      Staging::Way::kIn);
}

Status FlightCopier::start(Flight* flight, Bytes* enqueued) {
  flight->remote = {};
  flight->remote_why.clear();
  if (tools_.remote.carries(flight->step())) {
    flight->seen_done = flight->marked = false;
    flight->device = flight->step().from.host() ? flight->step().to.gpu : flight->step().from.gpu;
    flight->stream = 0;
    return order(flight, enqueued);
  }
  const int device = flight->device = tools_.remote.worker_of(flight->step());
  flight->seen_done = flight->marked = false;
  DeviceScope scope(tools_.driver, device);
  Status s = scope.status();
  if (s.ok()) {
    s = streams_.next(device, flight->step(), flight->flows, flight->alone, &flight->stream);
  }
  if (s.ok()) s = streams_.event(device, &flight->event);
  if (!s.ok()) return s;
  const Request& request = flight->transfer->request;
  const bool first = flight->hop == 0, last = flight->last();
  ChunkHop chunk{request, flight->step(), flight->range, 0, 0, flight->link, flight->stream};
  if (!first) chunk.from = flight->slots[flight->hop - 1].at();
  if (!last) chunk.to = flight->slots[flight->hop].at();
  if (flight->stage && first && request.src.host()) chunk.from = flight->stage.at();
  if (flight->stage && last && request.dst.host()) chunk.to = flight->stage.at();
  s = chunks_.copy(chunk, &flight->kernel, enqueued, &flight->unsure);
  if (*enqueued == 0) return s;
  const Status marked = tools_.driver.record(device, flight->event.id(), flight->stream);
  flight->marked = marked.ok();
  if (marked.ok()) return s;
  // Without the event only a wait for the stream tells when the copies are done.
  flight->seen_done = quiesce(*flight);
  flight->unsure = !flight->seen_done;
  return s.ok() && flight->unsure ? marked : s;
}

// The relay service makes this hop's copy.
Status FlightCopier::order(Flight* flight, Bytes* enqueued) {
  const Request& request = flight->transfer->request;
  const Bytes begin = flight->range.begin;  // such a transfer has one part
  const bool first = flight->hop == 0, last = flight->last();
  Address from = flight->stage ? flight->stage.at() : request.parts[0].src + begin;
  Address to = flight->stage ? flight->stage.at() : request.parts[0].dst + begin;
  if (!first) from = flight->slots[flight->hop - 1].at();
  if (!last) to = flight->slots[flight->hop].at();
  try {
    flight->remote = tools_.remote.begin(flight->step(), to, from, flight->range.bytes());
  } catch (const Error& e) {
    flight->remote_why = e.what();
    return tools_.driver.unsupported();
  }
  *enqueued = flight->range.bytes();
  return {};
}

// The state of a copy that is under way.
Status FlightCopier::ask(Flight* flight) {
  if (!flight->remote) return tools_.driver.wait_event(flight->event.id(), 0);
  switch (RemoteGpus::state(flight->remote, &flight->remote_why)) {
    case RemoteCopy::State::kUnderWay:
      return Status::unready();
    case RemoteCopy::State::kFailed:
      return tools_.driver.unsupported();
    case RemoteCopy::State::kDone:
      break;
  }
  return {};
}

// Waits until nothing may still read or write the buffers, so that another chunk may have them.
// False: the driver does not say.
bool FlightCopier::quiesce(const Flight& flight) {
  // The service reports a failed copy only when nothing uses the memory any more.
  return flight.remote ? true : chunks_.quiesce(flight.device, flight.stream);
}

std::string FlightCopier::failure(const Flight& flight, Status status) const {
  return "copy " + std::to_string(flight.hop + 1) + " of " + flight.run->name() + ": " +
         (flight.remote_why.empty() ? tools_.driver.describe(status) : flight.remote_why);
}

void FlightCopier::bring_back(const Flight& flight) {
  const Request& request = flight.transfer->request;
  if (!flight.last() || !flight.stage || !request.dst.host()) return;
  tools_.staging.copy(request.parts, flight.range, flight.stage.at(), Staging::Way::kOut);
}

}  // namespace glake::transfer
