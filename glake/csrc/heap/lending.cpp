#include "heap/lending.h"

#include <algorithm>

#include "heap/frees.h"
#include "heap/search.h"
#include "heap/slow_path.h"
#include "heap/trim.h"

namespace glake {

bool Lending::reclaim_elsewhere(const Request& r, HotGuard& hot) {
  // What is held above a limit that was lowered must go first.
  Granules want = Granules::ceil(r.size) + device_.memory.above_limit(), got{0};
  std::vector<Heap*> all = device_.heaps.started();
  std::rotate(all.begin(), all.begin() + 1, all.end());  // the device's own last
  for (Heap* heap : all) {
    bool may = heap != &heap_ && heap->gives_back();
    if (may && got < want) got = got + Trim(*heap).shrink(want - got, hot);
  }
  return got.count != 0;
}

Block* Lending::borrow(const Request& r, StreamHandle stream, HotGuard& hot) {
  if (!heap_.may_borrow()) return nullptr;
  for (Heap* heap : device_.heaps.started()) {
    if (heap == &heap_ || !heap->lends()) continue;
    Block* b = nullptr;
    if (heap->rule.whole_only()) {
      b = Frees(*heap).take_whole(r, stream);
    } else {
      Found found = Search(*heap).hit(r);
      if (!found) found = SlowPath(*heap).last_resort(r, hot);
      if (found) b = heap->make_block(r, found, stream);
    }
    if (b == nullptr) continue;
    // The block is not one of the pool's own, so no checkpoint has it.
    heap->pool->blocks.erase(b->ptr);
    ++heap->pool->lent;
    return b;
  }
  return nullptr;
}

}  // namespace glake
