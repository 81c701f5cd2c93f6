// Memory mode: the shapes of ops' results, where the CUDA kernel does not give them.
#pragma once

#include <algorithm>
#include <vector>

#include "perform.h"

namespace glake::numbers {
namespace {

// Results with more elements than this are data. Only their size is computed. A guess.
constexpr int64_t kMostElements = int64_t{1} << 19;

// Computes the op at the top of the stack if its result is small. Else makes `elements` elements
// without bytes.
void made_or_sized(Stack* stack, int64_t elements, at::Tensor (*make)(const Stack&)) {
  at::Tensor made =
      elements <= kMostElements
          ? make(*stack)
          : at::empty({elements}, at::TensorOptions().device(at::kMeta).dtype(at::kLong));
  *stack = {c10::IValue(std::move(made))};
}

// (repeats, output_size)
void repeat_lengths(Stack* stack) {
  made_or_sized(stack, (*stack)[0].toTensor().sum().item<int64_t>(), [](const Stack& given) {
    return at::repeat_interleave(given[0].toTensor(), given[1].toOptional<int64_t>());
  });
}

// repeat_interleave with more lengths than memory mode follows. The CUDA kernel would ask whether
// all are positive. Here the result has the given size, and without one it is empty, as for zeros.
void repeat_unknown(Stack* stack) {
  const at::Tensor repeats = (*stack)[0].toTensor();
  const int64_t elements = (*stack)[1].toOptional<int64_t>().value_or(0);
  *stack = {c10::IValue(at::empty({elements}, repeats.options()))};
}

// (self, weights, minlength). With weights the result has their type, and is computed.
void bin_counts(Stack* stack) {
  const at::Tensor self = (*stack)[0].toTensor();
  const bool weighted = (*stack)[1].isTensor() && (*stack)[1].toTensor().defined();
  const int64_t most = self.numel() == 0 || weighted ? -1 : self.max().item<int64_t>();
  made_or_sized(stack, std::max(most + 1, (*stack)[2].toInt()), [](const Stack& given) {
    return at::bincount(given[0].toTensor(), given[1].toOptional<at::Tensor>(), given[2].toInt());
  });
}

// Rules by name for ops whose result may be far larger than what they read.
inline Rule sizing_rule(const std::string& name) {
  if (name == "repeat_interleave") return repeat_lengths;
  return name == "bincount" ? bin_counts : nullptr;
}

// (self, b, rcond, driver, solution, residuals, rank, singular_values). It has no meta kernel. With
// the driver `gels`, the only one that CUDA has, the last two are empty.
void least_squares(Stack* stack) {
  const at::Tensor a = (*stack)[0].toTensor(), b = (*stack)[1].toTensor();
  const auto batch_of = [](const at::Tensor& tensor, int64_t behind) {
    return tensor.sizes().slice(0, static_cast<size_t>(tensor.dim() - behind));
  };
  const bool vector = b.dim() == 1 || (a.dim() - 1 == b.dim() && b.sizes() == batch_of(a, 1));
  const at::Tensor columns = vector ? b.unsqueeze(-1) : b;
  std::vector<int64_t> batch = at::infer_size(batch_of(a, 2), batch_of(columns, 2));
  const int64_t rows = a.size(-2), unknowns = a.size(-1);
  std::vector<int64_t> solution = batch, residuals = batch;
  solution.push_back(unknowns);
  if (!vector) solution.push_back(columns.size(-1));
  residuals.push_back(columns.size(-1));
  if (rows <= unknowns) residuals = {0};
  at::Tensor made[] = {at::empty(solution, b.options()), at::empty(residuals, b.options()),
                       at::empty({0}, b.options().dtype(at::kLong)),
                       at::empty({0}, b.options().dtype(at::toRealValueType(b.scalar_type())))};
  stack->assign(std::begin(made), std::end(made));
}

// (self) or (self, a, tau). These have no meta kernel.
void reflectors(Stack* stack) {
  const at::Tensor self = (*stack)[0].toTensor();
  std::vector<int64_t> scales = self.sizes().vec();
  scales.pop_back();
  scales.back() = std::min(self.size(-2), self.size(-1));
  *stack = {c10::IValue(at::empty(self.sizes(), self.options())),
            c10::IValue(at::empty(scales, self.options()))};
}

// For an op that asks for a library function that no stand-in has. The op is not run. Its results
// are allocated by its rule for shapes.
void allocate(const Wrapped& op, const Stack& arguments, Stack* results) {
  const c10::Device device = device_of(arguments);
  Stack made;
  try {
    const Plain plain;
    for (const c10::IValue& value : arguments) {
      made.push_back(value.isDevice() ? c10::IValue(c10::Device(c10::kMeta))
                                      : changed(value, [](const at::Tensor& tensor) {
                                          return tensor.defined() ? tensor.to(at::kMeta) : tensor;
                                        }));
    }
    if (op.name == "linalg_lstsq") {
      least_squares(&made);
    } else if (op.name == "geqrf") {
      reflectors(&made);
    } else {
      op.op.callBoxed(&made);
    }
  } catch (const std::exception&) {
    refuse(op,
           " needs a library function that no stand-in has, and glake has no rule for its results' "
           "shapes");
  }
  const auto& returns = op.op.schema().returns();
  const auto& schema = op.op.schema().arguments();
  size_t next = 0;  // the argument of the next in-place result
  results->clear();
  for (size_t i = 0; i < made.size(); ++i) {
    if (returns[i].alias_info() == nullptr) {
      results->push_back(changed(made[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
      }));
      continue;
    }
    while (next < schema.size() && !is_written(schema[next])) ++next;
    const at::Tensor into = arguments.at(next++).toTensor();
    if (into.sizes() != made[i].toTensor().sizes()) into.resize_(made[i].toTensor().sizes());
    results->emplace_back(into);
  }
}

}  // namespace
}  // namespace glake::numbers
