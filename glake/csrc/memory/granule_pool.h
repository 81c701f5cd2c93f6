// Physical memory: which granule lies at home where, and how often views alias it.
#pragma once

#include <atomic>
#include <vector>

#include "driver/driver.h"
#include "memory/arena.h"
#include "memory/view_space.h"

namespace glake {

class GranulePool {
 public:
  // `physical` counts the granules of all of the device's heaps; `grants` are the devices every
  // mapping is accessible from.
  GranulePool(Driver& driver, DeferredReleases& deferred, Refusals& refusals, int device,
              std::atomic<uint64_t>& physical, std::vector<int>& grants)
      : driver_(driver),
        deferred_(deferred),
        refusals_(refusals),
        device_(device),
        grants_(grants),
        physical_(physical) {}

  void add(const Arena& arena);

  // Maps granules at home: those owed to the driver first, new ones then. All or nothing: what a
  // refusal leaves behind is undone, or owed. In the second case `settled` runs once nothing is
  // owed of it. Or `kept` runs: its argument is how many granules, from the first on, could not be
  // unmapped, and are in use instead. Driver calls; under slow alone.
  Status back(const Arena& arena, Address begin, Granules n, const std::function<void()>& settled,
              const std::function<void(Granules)>& kept);
  // How many granules the driver had when it last refused back(): fewer than were asked for. Where
  // it did not say at which granule it stopped, had_at_most() is true, and it had this many or
  // fewer. refused() is what it said.
  Granules had() const { return had_; }
  bool had_at_most() const { return had_at_most_; }
  const std::string& refused() const { return refused_; }
  // Unmaps and releases granules no view aliases. A refused unmap changes nothing; handles whose
  // release is refused are owed.
  Status unback(const Arena& arena, Address begin, Granules n);

  // Of a paused heap's home granules (heap/pause.h), one after the other: memory for one, from what
  // is owed first; mapping it; and giving up the memory of granules that nothing maps.
  Status create(const Arena& arena, uint64_t g);
  Status map(const Arena& arena, uint64_t g);
  void release(const Arena& arena, uint64_t g, Granules n);

  Handle handle(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].handle; }
  uint32_t& aliases(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].aliases; }
  uint32_t aliases(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].aliases; }

  // How many pins keep a granule where it is; see pins.h.
  uint32_t& pins(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].pins; }
  uint32_t pins(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].pins; }

  // Stamps granules for the length of one search; new_stamp() clears every stamp.
  void new_stamp() { ++stamp_; }
  void stamp(const Arena& arena, uint64_t g, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) homes_[arena.id()][g + i].stamp = stamp_;
  }
  bool stamped(const Arena& arena, uint64_t g) const {
    return homes_[arena.id()][g].stamp == stamp_;
  }

  // A granule of which a view's block holds only the start or the end is used through two
  // addresses. Until a stress test on hardware says otherwise, both users must be of one stream.
  struct Edge {
    StreamId stream = 0;
    uint32_t users = 0;
  };
  Edge& edge(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].edge; }
  const Edge& edge(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].edge; }

  // Granules behind this heap.
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
