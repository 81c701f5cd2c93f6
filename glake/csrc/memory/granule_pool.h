// Physical memory: at which home address each granule lies, and how many views alias it.
#pragma once

#include <atomic>
#include <vector>

#include "driver/driver.h"
#include "memory/arena.h"
#include "memory/view_space.h"

namespace glake {

class GranulePool {
 public:
  // `physical` counts the granules of all of the device's heaps. `grants` are the devices from
  // which every mapping is accessible.
  GranulePool(Driver& driver, DeferredReleases& deferred, Refusals& refusals, int device,
              std::atomic<uint64_t>& physical, std::vector<int>& grants)
      : driver_(driver),
        deferred_(deferred),
        refusals_(refusals),
        device_(device),
        grants_(grants),
        physical_(physical) {}

  void add(const Arena& arena);

  // Maps granules at home: first those that are owed to the driver, then new ones. It does all or
  // nothing. After a refusal it undoes what it has done, and what cannot be undone is owed.
  // `settled` runs once nothing of this is owed any more. If granules at the beginning stay mapped
  // and are used after all, `kept` runs instead, with their number. It makes driver calls, so it is
  // called with the slow lock held and the hot lock released.
  Status back(const Arena& arena, Address begin, Granules n, const std::function<void()>& settled,
              const std::function<void(Granules)>& kept);
  // How many granules the driver had when it last refused back(), which was fewer than it was asked
  // for. had_at_most() is true if the driver did not say at which granule it stopped: it then had
  // this many or fewer. refused() is the driver's text.
  Granules had() const { return had_; }
  bool had_at_most() const { return had_at_most_; }
  const std::string& refused() const { return refused_; }
  // Unmaps and releases granules that no view aliases. If an unmap is refused, nothing changes. If
  // the release of a handle is refused, the handle is owed.
  Status unback(const Arena& arena, Address begin, Granules n);

  // These work on one home granule of a paused heap at a time (heap/pause.h). create() takes memory
  // for it, owed memory first, and map() maps it. release() gives up the memory of granules that
  // nothing maps.
  Status create(const Arena& arena, uint64_t g);
  Status map(const Arena& arena, uint64_t g);
  void release(const Arena& arena, uint64_t g, Granules n);

  Handle handle(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].handle; }
  uint32_t& aliases(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].aliases; }
  uint32_t aliases(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].aliases; }

  // How many pins keep a granule where it is; see pins.h.
  uint32_t& pins(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].pins; }
  uint32_t pins(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].pins; }

  // Stamps granules for the length of one search. new_stamp() makes all older stamps void.
  void new_stamp() { ++stamp_; }
  void stamp(const Arena& arena, uint64_t g, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) homes_[arena.id()][g + i].stamp = stamp_;
  }
  bool stamped(const Arena& arena, uint64_t g) const {
    return homes_[arena.id()][g].stamp == stamp_;
  }

  // A granule is used through two addresses if a view's block holds only its start or its end.
  // Both users must be of one stream, until a stress test on hardware shows that this is not
  // needed.
  struct Edge {
    StreamId stream = 0;
    uint32_t users = 0;
  };
  Edge& edge(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].edge; }
  const Edge& edge(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].edge; }

  // How many granules this heap has.
  Granules own() const { return {own_.load()}; }
  const std::vector<int>& grants() const { return grants_; }
  void grant(int peer) { grants_.push_back(peer); }

 private:
  struct Granule {
    Handle handle = 0;
    uint32_t aliases = 0;
    uint32_t pins = 0;
    Edge edge;
    uint32_t stamp = 0;
  };
  Status build(uint64_t first, std::vector<Granule>& home, Address begin, Granules n,
               uint64_t* created, uint64_t* mapped);
  Status refused(const char* call, Granules had, Status s);
  Status refused_by_headroom(Granules had);
  Driver& driver_;
  DeferredReleases& deferred_;
  Refusals& refusals_;
  int device_;
  std::vector<int>& grants_;
  std::vector<std::vector<Granule>> homes_;
  std::atomic<uint64_t>& physical_;
  std::atomic<uint64_t> own_{0};
  uint32_t stamp_ = 1;
  Granules had_{0};
  bool had_at_most_ = false;
  std::string refused_;
};

}  // namespace glake
