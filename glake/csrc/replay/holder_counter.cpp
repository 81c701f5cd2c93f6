#include "holder_counter.h"

namespace glake::replay {

void HolderCounter::event(const ParsedEvent& event) {
  if (done()) return;
  ++events_;
  if (event.op == Op::kAlloc) {
    if (event.index >= of_index_.size()) of_index_.resize(event.index + size_t{1});
    Held& held = *by_tag_.try_emplace(std::string(event.tag)).first;
    of_index_[event.index] = &held;
    ++held.second.count;
    held.second.bytes += event.bytes;
  } else if (event.op == Op::kFree) {
    Held& held = *of_index_[event.index];
    held.second.bytes -= event.bytes;
    // A tag without a block is removed, so that the table is bounded by the live blocks.
    if (--held.second.count == 0) by_tag_.erase(by_tag_.find(held.first));
  }
}

}  // namespace glake::replay
