// Records, allocated in slabs, so that each costs no more than its own size. They are never moved
// or given back. Once there are many, a slab is a huge page.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "base/tuning.h"
#include "memory/huge_pages.h"

namespace glake {

template <typename Record>
class Slabs {
 public:
  Slabs() = default;
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;
  ~Slabs() {
    for_each([](Record& record) { record.~Record(); });
  }

  // Throws std::bad_alloc, and changes nothing then.
  Record* make() {
    if (slabs_.empty() || used_ == slabs_.back().room) add();
    return new (&slabs_.back().records()[used_++]) Record();
  }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slab& slab : slabs_) {
      const size_t end = &slab == &slabs_.back() ? used_ : slab.room;
      for (size_t i = 0; i < end; ++i) visit(slab.records()[i]);
    }
  }

 private:
  struct Unmap {
    bool huge;
    void operator()(void* memory) const {
      if (huge) return HugePages::unmap(memory);
      ::operator delete(memory, std::align_val_t{alignof(Record)});
    }
  };
  struct Slab {
    std::unique_ptr<void, Unmap> memory;
    size_t room;  // in records
    Record* records() const { return static_cast<Record*>(memory.get()); }
  };

  void add() {
    constexpr Bytes kSlab = Tuning::kSlabRecords * sizeof(Record);
    const bool huge = slabs_.size() * kSlab >= Tuning::kHugeSlabsFrom;
    void* memory =
        huge ? HugePages::map() : ::operator new(kSlab, std::align_val_t{alignof(Record)});
    std::unique_ptr<void, Unmap> owner(memory, Unmap{huge});
    slabs_.push_back({std::move(owner), (huge ? HugePages::kBytes : kSlab) / sizeof(Record)});
    used_ = 0;
  }

  std::vector<Slab> slabs_;
  size_t used_ = 0;  // records of the last slab
};

}  // namespace glake
