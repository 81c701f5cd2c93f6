// Memory mode. Says what an op is assumed to make of unknown values, where zeros would take a
// script to code that no real data reaches.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <vector>

#include "kinds.h"
#include "perform.h"

namespace glake::numbers {
namespace {

struct Assumed {
  uint64_t address = 0;  // of one result; 0: nothing is assumed
  std::vector<char> bytes;
};

constexpr int64_t kMostAssumed = int64_t{16} << 20;  // bytes; a guess

Assumed assumed_of(const at::Tensor& result, const at::Tensor& values) {
  Assumed made;
  made.address = reinterpret_cast<uint64_t>(result.data_ptr());
  made.bytes.resize(values.nbytes());
  std::memcpy(made.bytes.data(), values.data_ptr(), made.bytes.size());
  return made;
}

// Results of checks, if they are too large to keep their bytes. They count as all true until
// something is written to them.
class AllTrue {
 public:
  static AllTrue& tensors() {
    static auto* kept = new AllTrue;
    return *kept;
  }
  void add(const at::Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_[next_++ % kept_.size()] = {Weak(tensor.getIntrusivePtr()), version_of(tensor)};
  }
  bool has(const at::Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& each) {
      const auto alive = each.tensor.lock();
      return alive.get() == tensor.unsafeGetTensorImpl() && each.version == version_of(tensor);
    });
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Kept {
    Weak tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    uint32_t version = 0;
  };
  static uint32_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference()
               ? 0
               : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  }
  std::mutex mutex_;
  std::array<Kept, 64> kept_;  // a guess: they are soon reduced
  size_t next_ = 0;
};

// Places along `dim`, each less than `from`. Each row takes the places that follow those of the row
// before.
Assumed in_turn(const at::Tensor& result, int64_t dim, int64_t from) {
  const Plain plain;
  const int64_t each = result.size(dim);
  const at::Tensor rows =
      result.dim() == 1 ? at::zeros({1}, at::kLong) : at::arange(result.numel() / each, at::kLong);
  std::vector<int64_t> others = result.sizes().vec();
  others[static_cast<size_t>(dim)] = 1;
  const at::Tensor chosen = (rows.reshape({-1, 1}) * each + at::arange(each, at::kLong)) % from;
  others.erase(others.begin() + dim);
  others.push_back(each);
  return assumed_of(result, chosen.reshape(others).movedim(-1, dim).contiguous());
}

Assumed assume(const Wrapped& op, const Stack& arguments, const Stack& results) {
  const bool all = op.reduces && AllTrue::tensors().has(arguments[0].toTensor());
  if (!op.check && !op.chooses && !all) return {};
  const size_t which = op.chooses ? results.size() - 1 : 0;  // topk and max return the values first
  const at::Tensor result = results.at(which).toTensor();
  const bool written = op.op.schema().returns()[which].alias_info() != nullptr;
  if (written || result.numel() == 0 || !result.is_contiguous()) return {};
  if (static_cast<int64_t>(result.nbytes()) > kMostAssumed) {
    if (op.check) AllTrue::tensors().add(result);
    return {};
  }
  if (op.check || all) return assumed_of(result, at::ones(result.sizes(), at::kBool));
  const at::Tensor self = arguments[0].toTensor();
  const c10::IValue& given = arguments[op.name == "topk" ? 2 : 1];
  if (self.dim() == 0 || !given.isInt()) return {};
  const int64_t dim = at::maybe_wrap_dim(given.toInt(), self.dim());
  if (self.size(dim) > kMostChoices) return {};
  if (result.dim() == self.dim()) return in_turn(result, dim, self.size(dim));
  return in_turn(result.unsqueeze(dim), dim, self.size(dim));
}

}  // namespace
}  // namespace glake::numbers
