#include "heap/pins.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

namespace glake {
namespace {

template <typename T>
bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

void PinTable::pin(const Block& block, Address ptr, const std::vector<Arena*>& arenas,
                   PinOwner owner) {
  Pin next;
  if (block.allocation != nullptr) next.allocations.push_back(block.allocation);
  if (block.view != nullptr) next.views.push_back(block.view);
  for (const Span* p = block.pieces; p != nullptr; p = p->piece_next) {
    Arena* arena = nullptr;
    for (Arena* a : arenas) arena = a->contains(p->begin) ? a : arena;
    uint64_t last = arena->granule_of(p->end() - 1);
    for (uint64_t g = arena->granule_of(p->begin); g <= last; ++g)
      next.granules.emplace_back(arena, g);
  }
  Pin& pin = pins_[ptr];
  // Most often the pointer has no pin yet, or pins the same block again. If it is the pointer of a
  // later block, only the granules that are not in the pin yet are added.
  std::vector<std::pair<Arena*, uint64_t>> fresh;
  std::sort(next.granules.begin(), next.granules.end());
  std::set_difference(next.granules.begin(), next.granules.end(), pin.granules.begin(),
                      pin.granules.end(), std::back_inserter(fresh));
  next.granules.swap(fresh);
  for (auto& [arena, g] : next.granules) pinned_ += granules_.pins(*arena, g)++ == 0 ? 1 : 0;
  size_t middle = pin.granules.size();
  pin.granules.insert(pin.granules.end(), next.granules.begin(), next.granules.end());
  std::inplace_merge(pin.granules.begin(),
                     pin.granules.begin() + static_cast<std::ptrdiff_t>(middle),
                     pin.granules.end());
  for (View* v : next.views) {
    if (has(pin.views, v)) continue;
    pin.views.push_back(v);
    ++v->pins;
  }
  for (Allocation* c : next.allocations) {
    if (has(pin.allocations, c)) continue;
    pin.allocations.push_back(c);
    ++c->pins;
  }
  ++index(pin, owner);
}

bool PinTable::unpin(Address ptr, PinOwner owner) {
  auto found = pins_.find(ptr);
  if (found == pins_.end() || index(found->second, owner) == 0) return false;
  Pin& pin = found->second;
  --index(pin, owner);
  if (pin.counts[0] + pin.counts[1] != 0) return true;
  for (auto& [arena, g] : pin.granules) pinned_ -= --granules_.pins(*arena, g) == 0 ? 1 : 0;
  for (View* v : pin.views) --v->pins;
  for (Allocation* c : pin.allocations) --c->pins;
  pins_.erase(found);
  return true;
}

uint64_t PinTable::count(PinOwner owner) const {
  uint64_t sum = 0;
  for (const auto& [ptr, pin] : pins_) sum += pin.counts[owner == PinOwner::kCaller ? 0 : 1];
  return sum;
}

std::string PinTable::check() const {
  std::map<std::pair<Arena*, uint64_t>, uint32_t> counted;
  std::map<const View*, uint32_t> views;
  for (const auto& [ptr, pin] : pins_) {
    if (pin.counts[0] + pin.counts[1] == 0) return "a pin nobody holds is kept";
    for (const auto& granule : pin.granules) ++counted[granule];
    for (const View* v : pin.views) ++views[v];
  }
  if (counted.size() != pinned_) return "pinned granules are miscounted";
  for (const auto& [granule, n] : counted) {
    if (granules_.pins(*granule.first, granule.second) != n) return "a granule's pins are wrong";
    if (granules_.handle(*granule.first, granule.second) == 0) return "a pinned granule is gone";
  }
  for (const auto& [view, n] : views) {
    if (view->pins != n) return "a view's pins are wrong";
  }
  return "";
}

}  // namespace glake
