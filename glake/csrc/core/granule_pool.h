// Physical memory: which granule lies at home where, and how often views alias it.
#pragma once

#include <atomic>
#include <vector>

#include "core/address_space.h"
#include "core/arena.h"
#include "driver/driver.h"

namespace glake {

class GranulePool {
 public:
  // `physical` counts the granules of all of the device's heaps; `grants` are the devices every
  // mapping is accessible from.
  GranulePool(Driver& driver, DebtBook& debts, int device, std::atomic<uint64_t>& physical,
              std::vector<int>& grants)
      : driver_(driver), debts_(debts), device_(device), grants_(grants), physical_(physical) {}

  void add(const Arena& arena);

  // Creates granules and maps them at home. All or nothing: what a refusal leaves behind is undone,
  // or owed (then `settled` runs once it is paid). Driver calls; no lock of ours is needed.
  Status back(const Arena& arena, Address begin, Granules n, bool* owed,
              const std::function<void()>& settled);
  // Unmaps and releases granules no view aliases. A refused unmap changes nothing; handles whose
  // release is refused are owed.
  Status unback(const Arena& arena, Address begin, Granules n);

  Handle handle(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].handle; }
  uint32_t& aliases(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].aliases; }
  uint32_t aliases(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].aliases; }

  // How many pins keep a granule where it is; see pins.h.
  uint32_t& pins(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].pins; }
  uint32_t pins(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].pins; }

  // Marks granules for the length of one search; new_mark() clears every mark.
  void new_mark() { ++mark_; }
  void mark(const Arena& arena, uint64_t g, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) homes_[arena.id()][g + i].mark = mark_;
  }
  bool marked(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].mark == mark_; }

  // A granule of which a view's block holds only the start or the end is used through two
  // addresses. Until a stress test on hardware says otherwise, both users must be of one stream.
  struct Edge {
    StreamId stream = 0;
    uint32_t users = 0;
  };
  Edge& edge(const Arena& arena, uint64_t g) { return homes_[arena.id()][g].edge; }
  const Edge& edge(const Arena& arena, uint64_t g) const { return homes_[arena.id()][g].edge; }

  // Granules of the device held from the driver, debts included; and those behind this heap.
  Granules physical() const { return {physical_.load() + debts_.handles()}; }
  Granules own() const { return {own_.load()}; }
  const std::vector<int>& grants() const { return grants_; }
  void grant(int peer) { grants_.push_back(peer); }

 private:
  struct Granule {
    Handle handle = 0;
    uint32_t aliases = 0;
    uint32_t pins = 0;
    Edge edge;
    uint32_t mark = 0;
  };
  Driver& driver_;
  DebtBook& debts_;
  int device_;
  std::vector<int>& grants_;
  std::vector<std::vector<Granule>> homes_;
  std::atomic<uint64_t>& physical_;
  std::atomic<uint64_t> own_{0};
  uint32_t mark_ = 1;
};

}  // namespace glake
