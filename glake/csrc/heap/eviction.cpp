#include "heap/eviction.h"

#include "base/tuning.h"
#include "heap/pieces.h"

namespace glake {

bool Eviction::idle(const View& view) const {
  bool used = view.live != 0 || view.pins != 0 || view.owed || !heap_.rule.may_unmap();
  return !used && !view.tickets_full && device_.clock.complete(view.tickets);
}

bool Eviction::ask_idle(const View& view) {
  if (view.live == 0 && heap_.rule.may_unmap()) {
    for (Ticket t : view.tickets) device_.clock.ask(t);
  }
  return idle(view);
}

bool Eviction::evict(View* view, HotGuard& hot) {
  if (!idle(*view)) return false;
  std::unique_ptr<View> owner = heap_.views.remove(view);
  hot.unlock();
  Status s =
      device_.refusals.note("cuMemUnmap", device_.driver.unmap(view->base, view->length.bytes()));
  hot.lock();
  if (!s.ok()) {
    device_.refusals.keep(view->length);
    heap_.views.add(std::move(owner));
    return false;
  }
  Pieces(heap_).add_aliases(view->runs, -1);
  heap_.view_space->give(view->base, view->capacity);
  ++device_.stats.evictions;
  return true;
}

// Views with pending work are kept while the budget is exceeded by less than half; beyond that the
// host waits for them.
void Eviction::make_room(Granules n, HotGuard& hot) {
  if (!heap_.rule.may_unmap()) return;
  Granules budget{static_cast<uint64_t>(static_cast<double>(device_.memory.limit().count) *
                                        device_.options.view_budget)};
  if (!(budget < heap_.views.mapped() + n)) return;
  for (View* view : heap_.views.oldest()) {
    ++device_.stats.views_walked;
    if (!(budget < heap_.views.mapped() + n)) return;
    if (view->live != 0 || view->pins != 0) continue;
    bool over =
        budget.count + budget.count / Tuning::kViewsOver < heap_.views.mapped().count + n.count;
    if (!ask_idle(*view) && over) device_.clock.wait_host(view->tickets);
    evict(view, hot);
  }
}

}  // namespace glake
