// The ops of torch.nn.SyncBatchNorm, which have no CPU kernels: batch norms whose statistics are
// gathered from several processes. Statistics have the type of `mean`, which is float for half.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <vector>

namespace glake::numbers {

// All dimensions but that of the channels.
inline std::vector<int64_t> but_channels(const at::Tensor& tensor) {
  std::vector<int64_t> made;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (i != 1) made.push_back(i);
  }
  return made;
}

// One number of each channel, so that it applies to all of `like`.
inline at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[1] = values.numel();
  return values.reshape(sizes);
}

inline bool is_given(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

// (input, eps) -> mean, one over the deviation
inline void batch_norm_stats(Stack* stack) {
  const at::Tensor input = (*stack)[0].toTensor();
  const at::Tensor wide = input.to(at::promote_types(input.scalar_type(), at::kFloat));
  auto [variance, mean] = at::var_mean(wide, but_channels(wide), /*unbiased=*/false);
  *stack = {mean, (variance + (*stack)[1].toDouble()).rsqrt()};
}

// (input, weight, bias, mean, invstd, eps)
inline void batch_norm_elemt(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor input = s[0].toTensor(), mean = s[3].toTensor();
  at::Tensor made =
      (input.to(mean.scalar_type()) - by_channel(mean, input)) * by_channel(s[4].toTensor(), input);
  if (is_given(s[1])) made = made * by_channel(s[1].toTensor(), input);
  if (is_given(s[2])) made = made + by_channel(s[2].toTensor(), input);
  *stack = {made.to(input.scalar_type())};
}

// (input, mean, invstd, running_mean, running_var, momentum, eps, counts): a row and a count of
// each process -> mean, one over the deviation, of all together
inline void gather(Stack* stack, const at::Tensor& counts) {
  const auto& s = *stack;
  const at::Tensor means = s[1].toTensor(), inverse = s[2].toTensor();
  const double momentum = s[5].toDouble(), eps = s[6].toDouble();
  const at::Tensor weights = counts.to(means.scalar_type()).reshape({-1, 1});
  const at::Tensor total = weights.sum();
  const at::Tensor mean = (means * weights).sum(0) / total;
  const at::Tensor variances = inverse.pow(-2) - eps;
  const at::Tensor squares = ((variances + (means - mean).pow(2)) * weights).sum(0);
  if (is_given(s[3])) s[3].toTensor().mul_(1 - momentum).add_(mean, momentum);
  if (is_given(s[4])) s[4].toTensor().mul_(1 - momentum).add_(squares / (total - 1), momentum);
  *stack = {mean, (squares / total + eps).rsqrt()};
}

inline void batch_norm_gather_stats_with_counts(Stack* stack) {
  gather(stack, (*stack)[7].toTensor());
}

// The last argument is the one count of all processes.
inline void batch_norm_gather_stats(Stack* stack) {
  const at::Tensor means = (*stack)[1].toTensor();
  gather(stack, at::full({means.size(0)}, (*stack)[7].toInt(), means.options()));
}

// (grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g)
//   -> sum_dy, sum_dy_xmu, gradients of weight and bias
inline void batch_norm_backward_reduce(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor mean = s[2].toTensor();
  const at::Tensor grad = s[0].toTensor().to(mean.scalar_type());
  const at::Tensor input = s[1].toTensor().to(mean.scalar_type());
  const at::Tensor sum = grad.sum(but_channels(grad));
  const at::Tensor product = (grad * (input - by_channel(mean, input))).sum(but_channels(grad));
  const at::ScalarType type = is_given(s[4]) ? s[4].toTensor().scalar_type() : sum.scalar_type();
  at::Tensor of_weight, of_bias;
  if (s[6].toBool()) of_weight = (product * s[3].toTensor()).to(type);
  if (s[7].toBool()) of_bias = sum.to(type);
  const bool both = s[5].toBool();
  *stack = {both ? sum : at::Tensor(), both ? product : at::Tensor(), of_weight, of_bias};
}

// (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
inline void batch_norm_backward_elemt(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor input = s[1].toTensor(), mean = s[2].toTensor(), inverse = s[3].toTensor();
  const at::ScalarType type = mean.scalar_type();
  const at::Tensor total = s[7].toTensor().sum().to(type);
  const at::Tensor slope = inverse.pow(2) * s[6].toTensor() / total;
  at::Tensor scale = inverse;
  if (is_given(s[4])) scale = scale * s[4].toTensor().to(type);
  const at::Tensor made = (s[0].toTensor().to(type) - by_channel(s[5].toTensor() / total, input) -
                           (input.to(type) - by_channel(mean, input)) * by_channel(slope, input)) *
                          by_channel(scale, input);
  *stack = {made.to(input.scalar_type())};
}

}  // namespace glake::numbers
