#include "heap/snapshot_walk.h"

#include <mutex>
#include <unordered_set>

#include "memory/fair_mutex.h"
#include "watch/watch.h"

namespace glake {

namespace {

// Makes runs of neighbouring blocks.
class Runs {
 public:
  Runs(Snapshot& out, bool large, glake_pool pool, bool paused)
      : out_(out), large_(large), pool_(pool), paused_(paused) {}

  void add(BlockShot block) {
    if (open_ == nullptr || open_->address + open_->bytes != block.address) start(block);
    bool idle = block.requested == 0;
    SegmentShot& run = *open_;
    run.bytes += block.bytes;
    bool merges = idle && !run.blocks.empty() && run.blocks.back().requested == 0;
    if (merges) {
      run.blocks.back().bytes += block.bytes;
    } else {
      run.blocks.push_back(std::move(block));
    }
  }
  void cut() { open_ = nullptr; }

 private:
  void start(const BlockShot& block) {
    out_.emplace_back();
    open_ = &out_.back();
    open_->address = block.address;
    open_->large = large_;
    open_->pool = pool_;
    open_->paused = paused_;
  }
  Snapshot& out_;
  bool large_;
  glake_pool pool_;
  bool paused_;
  SegmentShot* open_ = nullptr;  // the last one of out_
};

}  // namespace

Snapshot SnapshotWalk::take() {
  Snapshot out;
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  std::vector<std::unique_lock<SpinLock>> still;  // private pools have no caches
  for (auto& cache : device_.caches) still.emplace_back(cache->lock());
  SpanOwners owners;
  device_.blocks.for_each([&](const Block& b) {
    for (const Span* p = b.pieces; p != nullptr; p = p->piece_next) owners[p] = &b;
  });
  for (const Heap* heap : device_.heaps.started()) walk(*heap, owners, &out);
  walk_contiguous(&out);
  return out;
}

void SnapshotWalk::walk(const Heap& heap, const SpanOwners& owners, Snapshot* all) {
  Snapshot& out = *all;
  std::unordered_set<const Block*> waiting(heap.kept_blocks.begin(), heap.kept_blocks.end());
  for (const PendingFree& freed : heap.pending_frees) waiting.insert(freed.block);
  std::vector<const Block*> stitched;
  PoolId id = heap.pool_id();
  glake_pool pool{id.first, id.second};
  const bool paused_now = heap.is_paused();
  for (const Arena* arena : {heap.small.get(), heap.large.get()}) {
    Runs runs(out, arena == heap.large.get(), pool, paused_now);
    for (const Span* s = arena->first_span(); s != nullptr; s = s->next) {
      auto owner = owners.find(s);
      bool nobodys = s->state == SpanState::kBusy && owner == owners.end();
      if (s->state == SpanState::kAbsent || nobodys) {
        runs.cut();  // no granule is behind it, or only one that a refused undo still owes
      } else if (s->state == SpanState::kFree) {
        BlockShot idle;
        idle.address = s->begin;
        idle.bytes = s->size;
        runs.add(std::move(idle));
      } else if (owner->second->view == nullptr) {
        runs.add(shot_of(*owner->second, waiting.count(owner->second) != 0));
      } else {
        runs.cut();
        if (s == owner->second->pieces) stitched.push_back(owner->second);
      }
    }
  }
  for (const Block* b : stitched) {
    SegmentShot segment;
    segment.address = b->ptr;
    segment.bytes = b->size;
    segment.large = true;
    segment.pool = pool;
    segment.paused = paused_now;
    segment.blocks.push_back(shot_of(*b, waiting.count(b) != 0));
    out.push_back(std::move(segment));
  }
}

// The contiguous pool: a segment for each allocation, live or cached.
void SnapshotWalk::walk_contiguous(Snapshot* all) const {
  device_.contiguous.for_each([&](const Allocation& c) {
    SegmentShot segment;
    segment.address = c.base;
    segment.bytes = c.bytes;
    segment.large = true;
    segment.kind = c.kind;
    Bytes used = 0;
    if (c.live) {
      segment.stream = c.block->stream;
      segment.blocks.push_back(shot_of(*c.block, false));
      used = c.block->size;
    }
    if (used != c.bytes) {
      BlockShot idle;
      idle.address = c.base + used;
      idle.bytes = c.bytes - used;
      segment.blocks.push_back(std::move(idle));
    }
    all->push_back(std::move(segment));
  });
}

BlockShot SnapshotWalk::shot_of(const Block& b, bool waits) {
  BlockShot shot;
  shot.address = b.ptr;
  shot.bytes = b.size;
  shot.requested = b.requested;
  shot.stream = b.stream;
  const BlockState state = b.state.load();
  if (state == BlockState::kLive || state == BlockState::kPage) {
    shot.state = GLAKE_ACTIVE;
  } else if (waits) {
    shot.state = GLAKE_AWAITING_FREE;
  }
  if (shot.state == GLAKE_INACTIVE) {  // kept by a thread's cache for its next request
    shot.requested = 0;
    return shot;
  }
  Note note = Watch::instance().note(b.ptr);
  if (note.requested != 0) shot.requested = note.requested;
  shot.tag = note.tag;
  shot.context = std::move(note.context);
  return shot;
}

}  // namespace glake
