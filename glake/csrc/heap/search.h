// Finds memory that is already mapped: the best fit at home, a whole idle view, a stretch inside a
// view. Callers hold the hot lock. The only driver calls are stream waits, where waiting is
// allowed.
#pragma once

#include "heap/availability.h"

namespace glake {

class Search {
 public:
  explicit Search(Heap& heap) : heap_(heap), device_(heap.device), available_(heap) {}

  // Tries the best fit in the arena of the size class, then an idle view. Neither needs a wait.
  Found hit(const Request& r);
  // The place of the request's counterpart, if it is free again. It may cost a wait, as it did
  // then.
  Found repeat(const Request& r, Address place);
  Found fit(Arena& arena, const Request& r, Wait wait);
  Found idle_view(const Request& r, Wait wait);
  Found run_in_view(const Request& r, Wait wait);

 private:
  struct Place {
    Span* head = nullptr;
    Address begin = 0;
  };
  Place ready_place(Arena& arena, const Request& r, bool ask, Span** waits);
  Found fit_between(Arena& arena, const Request& r);
  int64_t offset_in_view(const View& view, const Request& r, Wait wait, Tickets* pending);
  bool waits_spent(const Request& r);

  Heap& heap_;
  Device& device_;
  Availability available_;
};

}  // namespace glake
