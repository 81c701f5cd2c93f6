// CPU tensors over the bytes of CUDA tensors. This works because the simulated driver keeps device
// memory readable at the device's addresses.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <unordered_map>
#include <vector>

#include "simcuda/compute.h"

namespace glake::numbers {

struct Extent {
  uint64_t address = 0;
  size_t bytes = 0;
};

// The bytes from the first to the last that a tensor's strides reach. The tensor must have
// elements.
inline Extent extent_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto base = reinterpret_cast<uint64_t>(tensor.storage().data());
  return {base + static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize(),
          (static_cast<size_t>(last) + 1) * tensor.itemsize()};
}

// The aliases of one op's arguments. Each tensor has one alias, and each CUDA storage has one CPU
// storage, because kernels ask whether an output is also an input.
class Aliases {
 public:
  at::Tensor of(const at::Tensor& tensor, bool written) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    const auto known = tensors_.find(tensor.unsafeGetTensorImpl());
    if (known == tensors_.end() || written) note_piece(tensor, written);
    if (known != tensors_.end()) return known->second;
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        storage_of(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    at::Tensor made = at::Tensor::wrap_tensor_impl(std::move(impl));
    if (tensor.is_conj()) made._set_conj(true);
    if (tensor.is_neg()) made._set_neg(true);
    tensors_[tensor.unsafeGetTensorImpl()] = made;
    kept_.push_back(tensor);
    return made;
  }

  const std::vector<simcuda_touched>& pieces() const { return pieces_; }
  // The CPU's storage for each storage of CUDA.
  const std::unordered_map<c10::StorageImpl*, c10::Storage>& storages() const { return storages_; }

 private:
  c10::Storage storage_of(const at::Tensor& tensor) {
    c10::StorageImpl* theirs = tensor.storage().unsafeGetStorageImpl();
    auto [at, fresh] = storages_.try_emplace(theirs);
    if (fresh) {
      c10::DataPtr bytes(theirs->mutable_data(), c10::Device(c10::kCPU));
      at->second = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                         theirs->nbytes(), std::move(bytes),
                                                         /*allocator=*/nullptr,
                                                         /*resizable=*/false);
    }
    return at->second;
  }

  void note_piece(const at::Tensor& tensor, bool written) {
    if (tensor.numel() == 0) return;
    const Extent extent = extent_of(tensor);
    pieces_.push_back({extent.address, extent.bytes, written ? 1 : 0});
  }

  std::unordered_map<c10::TensorImpl*, at::Tensor> tensors_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
  std::vector<at::Tensor> kept_;  // keeps each address above from being another tensor's meanwhile
  std::vector<simcuda_touched> pieces_;
};

// Applies `change` to every tensor in a value. Lists become new lists.
template <class Change>
c10::IValue changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& each : value.toTensorVector()) made.push_back(change(each));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      made.push_back(each.has_value() ? std::optional<at::Tensor>(change(*each)) : std::nullopt);
    }
    return made;
  }
  return value;
}

template <class See>
void each_tensor(const c10::IValue& value, const See& see) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) see(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) {
      if (each.defined()) see(each);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      if (each.has_value() && each->defined()) see(*each);
    }
  }
}

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace glake::numbers
