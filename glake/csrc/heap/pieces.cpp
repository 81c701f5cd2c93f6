#include "heap/pieces.h"

#include "watch/watch.h"

namespace glake {

Found Pieces::at_home(Arena& arena, Span* head, Address begin, const Request& r) {
  Span* s = arena.take(head, begin, r.size);
  s->stream = r.stream;
  return {s, nullptr, begin};
}

Found Pieces::on_view(View* view, Bytes offset, const Request& r) {
  Span* first = nullptr;
  Span** link = &first;
  for_each_run(*view, offset, r.size, [&](Arena& arena, Address a, Bytes bytes) {
    uint64_t g = arena.granule_of(a);
    Span* head = a % kGranule == 0 ? arena.extent_at_prefix(g) : arena.extent_at_suffix(g);
    Span* s = arena.take(head, a, bytes);
    s->stream = r.stream;
    *link = s;
    link = &s->piece_next;
    return true;
  });
  use_edges(first, r.stream, 1);
  ++view->live;
  heap_.views.touch(view, heap_.tick);
  show_stitched(first, view->base + offset, r.size, true);
  return {first, view, view->base + offset};
}

Found Pieces::granules(const std::vector<GranuleRun>& runs, const Request& r) {
  Span* first = nullptr;
  Span** link = &first;
  for (const GranuleRun& run : runs) {
    for (uint64_t g = run.granule; g < run.granule + run.count; ++g) {
      Span* s = run.arena->take(run.arena->extent_at_prefix(g), run.arena->granule_at(g), kGranule);
      s->stream = r.stream;
      *link = s;
      link = &s->piece_next;
    }
  }
  return {first, nullptr, first->begin};
}

void Pieces::release(Block* b, const Tickets& tickets) {
  PointerMap::find(b->ptr)->erase(b);
  if (b->view != nullptr) {
    use_edges(b->pieces, b->stream_id, -1);
    if (heap_.paused() == nullptr || heap_.paused()->state == PauseState::kSaving) {
      show_stitched(b->pieces, b->ptr, b->size, false);
    }
    --b->view->live;
    for (Ticket t : tickets) b->view->tickets_full |= !b->view->tickets.add(t);
  }
  give(b->pieces, tickets);
  b->pieces = nullptr;
}

void Pieces::give(Span* pieces, const Tickets& tickets) {
  for (Span* p = pieces; p != nullptr;) {
    Span* next = p->piece_next;
    heap_.arena_of(p->begin).give(p, tickets, heap_.rule.completion());
    p = next;
  }
}

void Pieces::use_edges(Span* pieces, StreamId s, int step) {
  for (Span* p = pieces; p != nullptr; p = p->piece_next) {
    Arena& arena = heap_.arena_of(p->begin);
    auto use = [&](uint64_t g) {
      GranulePool::Edge& edge = heap_.granules.edge(arena, g);
      edge.stream = s;
      edge.users = static_cast<uint32_t>(static_cast<int>(edge.users) + step);
    };
    bool starts_inside = p->begin % kGranule != 0;
    if (starts_inside) use(arena.granule_of(p->begin));
    if (p->end() % kGranule != 0 &&
        !(starts_inside && arena.granule_of(p->begin) == arena.granule_of(p->end()))) {
      use(arena.granule_of(p->end()));
    }
  }
}

void Pieces::add_aliases(const std::vector<GranuleRun>& runs, int step) {
  for (const GranuleRun& run : runs) {
    for (uint64_t i = 0; i < run.count; ++i) {
      uint32_t& aliases = heap_.granules.aliases(*run.arena, run.granule + i);
      aliases = static_cast<uint32_t>(static_cast<int>(aliases) + step);
    }
  }
}

void Pieces::show_stitched(const Span* pieces, Address ptr, Bytes size, bool out) {
  for (const Span* p = pieces; p != nullptr; p = p->piece_next) {
    if (heap_.small->contains(p->begin)) {
      device_.stats.reserved_bytes.move(!out, static_cast<int64_t>(p->size));
    }
  }
  if (!Watch::recording()) return;
  if (!out) Watch::event(GLAKE_SEGMENT_UNMAP, device_.number, ptr, size);
  for (const Span* p = pieces; p != nullptr; p = p->piece_next) {
    Watch::event(out ? GLAKE_SEGMENT_UNMAP : GLAKE_SEGMENT_MAP, device_.number, p->begin, p->size);
  }
  if (out) Watch::event(GLAKE_SEGMENT_MAP, device_.number, ptr, size);
}

}  // namespace glake
