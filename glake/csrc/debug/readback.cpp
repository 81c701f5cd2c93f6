#include "debug/readback.h"

#include "base/tuning.h"

namespace glake {

Readback::Slab* Readback::take(Bytes n, char** place) {
  if (filling_ == nullptr || filling_->used + n > Tuning::kReadbackSlab) {
    if (idle_.empty()) {
      void* base = nullptr;
      if (slabs_.size() == Tuning::kReadbackSlabs ||
          !driver_.allocate_host(Tuning::kReadbackSlab, &base).ok())
        return nullptr;
      slabs_.push_back(std::make_unique<Slab>());
      slabs_.back()->base = static_cast<char*>(base);
      idle_.push_back(slabs_.back().get());
    }
    Slab* left = filling_;
    filling_ = idle_.back();
    idle_.pop_back();
    if (left != nullptr && left->copies == 0) {
      left->used = 0;
      idle_.push_back(left);
    }
  }
  *place = filling_->base + filling_->used;
  filling_->used += n;
  ++filling_->copies;
  return filling_;
}

void Readback::done(Slab* slab) {
  if (--slab->copies != 0) return;
  slab->used = 0;
  if (slab != filling_) idle_.push_back(slab);
}

Status Readback::close() {
  filling_ = nullptr;
  idle_.clear();
  while (!slabs_.empty()) {
    Status s = driver_.free_host(slabs_.back()->base);
    if (!s.ok()) return s;
    slabs_.pop_back();
  }
  return {};
}

}  // namespace glake
