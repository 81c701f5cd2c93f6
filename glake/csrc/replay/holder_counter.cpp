#include "holder_counter.h"

namespace glake::replay {

void HolderCounter::event(const ParsedEvent& event) {
  if (done()) return;
  ++events_;
  if (event.op == Op::kAlloc) {
    if (event.slot >= of_slot_.size()) of_slot_.resize(event.slot + size_t{1});
    Held& held = *by_tag_.try_emplace(std::string(event.tag)).first;
    of_slot_[event.slot] = &held;
    ++held.second.count;
    held.second.bytes += event.bytes;
  } else if (event.op == Op::kFree) {
    Held& held = *of_slot_[event.slot];
    held.second.bytes -= event.bytes;
    // A tag without a block is removed, so that the table is bounded by the live blocks.
    if (--held.second.count == 0) by_tag_.erase(by_tag_.find(held.first));
  }
}

}  // namespace glake::replay
