#include "transfer/run/work_streams.h"

namespace glake::transfer {

Status WorkStreams::next(int device, const Hop& hop, unsigned flows, bool alone,
                         StreamHandle* stream) {
  Way& way = ways_[{device, hop.from.gpu, hop.from.node, hop.to.gpu, hop.to.node}];
  way.turn %= flows;
  StreamHandle& mine = way.streams[alone ? 0 : way.turn];
  if (mine == 0) {
    Status s = driver_.create_stream(&mine);
    if (!s.ok()) {
      mine = 0;
      return s;
    }
  }
  ++way.turn;
  *stream = mine;
  return {};
}

Status WorkStreams::event(int device, LentEvent* event) {
  std::vector<EventId>& spare = spare_[device];
  EventId id = 0;
  if (spare.empty()) {
    spare.reserve(++made_[device]);  // then giving the event back cannot fail
    Status s = driver_.create_event(device, &id);
    if (!s.ok()) {
      --made_[device];
      return s;
    }
  } else {
    id = spare.back();
    spare.pop_back();
  }
  *event = LentEvent(this, device, id);
  return {};
}

void WorkStreams::abandon(StreamHandle stream) {
  for (auto& [key, way] : ways_) {
    for (StreamHandle& mine : way.streams) {
      if (mine == stream && mine != 0) driver_.destroy_stream(std::exchange(mine, 0));
    }
  }
}

bool WorkStreams::close() noexcept {
  bool all = true;
  for (auto& [key, way] : ways_) {
    for (StreamHandle& mine : way.streams) {
      if (mine != 0 && !driver_.destroy_stream(mine).ok()) all = false;
      mine = 0;
    }
  }
  for (auto& [device, events] : spare_) {
    for (; !events.empty(); events.pop_back()) {
      if (!driver_.destroy_event(events.back()).ok()) all = false;
    }
  }
  return all;
}

}  // namespace glake::transfer
