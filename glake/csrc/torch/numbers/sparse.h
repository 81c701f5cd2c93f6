// Memory mode: how many entries a sparse tensor keeps when it is coalesced.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "known.h"

namespace glake::numbers {
namespace {

c10::OperatorHandle coalesce_op() {
  return c10::Dispatcher::singleton().findSchemaOrThrow("aten::_coalesce", "");
}

// CUDA's kernel, which glake's coalesce() replaces.
const c10::SafeKernelFunction& coalesce_native() {
  static const c10::SafeKernelFunction native =
      coalesce_op().getComputedKernelForDispatchKey(c10::DispatchKey::SparseCUDA);
  return native;
}

bool is_known(const at::Tensor& tensor) {
  if (!is_small({c10::IValue(tensor)})) return false;
  Pieces pieces;
  note(c10::IValue(tensor), kMoved, 0, &pieces);
  const c10::Stream stream = current_stream(tensor.device());
  const int ahead = driver().known_ahead(handle_of(stream), pieces.list.data(), pieces.list.size());
  return (ahead & SIMCUDA_ALL_READ) != 0;
}

// Entries at the same known place become one. A place that is not known is assumed to differ from
// all others, which gives the largest possible result.
at::Tensor coalesce(const at::Tensor& self) {
  const c10::DeviceGuard current(self.device());
  {
    const Cover cover;  // covers what the kernel allocates
    Stack frame = {c10::IValue(self)};
    coalesce_native().callBoxed(coalesce_op(), self.key_set(), &frame);
  }
  at::Tensor places = self._indices(), values = self._values();
  if (is_known(places)) {
    at::Tensor entry_of, counts;
    const at::Tensor given = values;
    std::tie(places, entry_of, counts) =
        at::unique_dim(places, 1, /*sorted=*/true, /*return_inverse=*/true);
    std::vector<int64_t> sizes = given.sizes().vec();
    sizes[0] = places.size(1);
    values = at::zeros(sizes, given.options()).index_add_(0, entry_of, given);
  } else {
    places = places.clone();
    values = values.clone();
  }
  return at::_sparse_coo_tensor_unsafe(places, values, self.sizes(), self.options())
      ._coalesced_(true);
}

void wrap_coalesce() {
  coalesce_native();
  static auto* kept = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerImpl(
      {"aten::_coalesce", ""}, c10::DispatchKey::SparseCUDA,
      c10::KernelFunction::makeFromUnboxedRuntimeFunction(&coalesce), std::nullopt, nullptr,
      "glake's numbers"));
  (void)kept;
}

}  // namespace
}  // namespace glake::numbers
