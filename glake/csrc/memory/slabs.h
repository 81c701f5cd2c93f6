// Records, allocated in slabs, so that each costs no more than its own size. They are never moved
// or given back.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/tuning.h"

namespace glake {

template <typename Record>
class Slabs {
 public:
  Record* make() {
    if (used_ == kRecords || slabs_.empty()) {
      slabs_.push_back(std::make_unique<Record[]>(kRecords));
      used_ = 0;
    }
    return &slabs_.back()[used_++];
  }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& slab : slabs_) {
      const size_t end = slab == slabs_.back() ? used_ : kRecords;
      for (size_t i = 0; i < end; ++i) visit(slab[i]);
    }
  }

 private:
  static constexpr size_t kRecords = Tuning::kSlabRecords;
  std::vector<std::unique_ptr<Record[]>> slabs_;
  size_t used_ = 0;  // records of the last slab
};

}  // namespace glake
