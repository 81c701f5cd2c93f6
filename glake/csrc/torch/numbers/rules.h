// CUDA ops whose CPU counterpart has another name.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>

#include "attention.h"
#include "rnn.h"
#include "sync_batch_norm.h"
#include "work.h"

namespace glake::numbers {

inline at::Tensor optional_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// mm.dtype, bmm.dtype: products of half or bfloat16, in float.
inline void product(Stack* stack, at::Tensor (*compute)(const at::Tensor&, const at::Tensor&)) {
  const auto type = (*stack)[2].toScalarType();
  at::Tensor made = compute((*stack)[0].toTensor().to(type), (*stack)[1].toTensor().to(type));
  *stack = {c10::IValue(std::move(made))};
}

inline void mm_dtype(Stack* stack) {
  product(stack, [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); });
}

inline void bmm_dtype(Stack* stack) {
  product(stack, [](const at::Tensor& a, const at::Tensor& b) { return at::bmm(a, b); });
}

inline void addmm_dtype(Stack* stack) {
  const auto& s = *stack;
  const auto type = s[3].toScalarType();
  at::Tensor made = at::addmm(s[0].toTensor().to(type), s[1].toTensor().to(type),
                              s[2].toTensor().to(type), s[4].toScalar(), s[5].toScalar());
  *stack = {c10::IValue(std::move(made))};
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps)
//   -> output, save_mean, save_var (one over the deviation), reserve (only cuDNN reads it)
inline void cudnn_batch_norm(Stack* stack) {
  const auto& s = *stack;
  auto [output, mean, deviation] =
      at::native_batch_norm(s[0].toTensor(), s[1].toTensor(), optional_of(s[2]), optional_of(s[3]),
                            optional_of(s[4]), s[5].toBool(), s[6].toDouble(), s[7].toDouble());
  const bool training = s[5].toBool();
  *stack = {output, training ? mean : at::Tensor(), training ? deviation : at::Tensor(),
            at::Tensor()};
}

// (input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon, reserve)
inline void cudnn_batch_norm_backward(Stack* stack) {
  const auto& s = *stack;
  auto [input, weight, bias] = at::native_batch_norm_backward(
      s[1].toTensor(), s[0].toTensor(), s[2].toTensor(), optional_of(s[3]), optional_of(s[4]),
      optional_of(s[5]), optional_of(s[6]), true, s[7].toDouble(), {true, true, true});
  *stack = {input, weight, bias};
}

// (grad_out, input, normalized_shape, rstd, weight, output_mask) -> gradients of input, of weight
inline void rms_norm_backward(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor grad = s[0].toTensor(), input = s[1].toTensor(), rstd = s[3].toTensor();
  const auto normalized = static_cast<int64_t>(s[2].toIntVector().size());
  const at::Tensor weight = optional_of(s[4]);
  const auto mask = s[5].toBoolList();
  std::vector<int64_t> inner, outer;
  for (int64_t i = 0; i < input.dim(); ++i) {
    (i < input.dim() - normalized ? outer : inner).push_back(i);
  }
  const at::Tensor normal = input * rstd;
  const at::Tensor scaled = weight.defined() ? grad * weight : grad;
  at::Tensor of_input, of_weight;
  if (mask[0]) of_input = (scaled - normal * (scaled * normal).mean(inner, true)) * rstd;
  if (mask[1] && weight.defined()) {
    of_weight = outer.empty() ? grad * normal : (grad * normal).sum(outer);
  }
  *stack = {of_input, of_weight};
}

// (grad_output, self, buffer). CUDA does not keep what the CPU keeps in the buffer.
inline void log_sigmoid_backward(Stack* stack) {
  const at::Tensor grad = (*stack)[0].toTensor(), input = (*stack)[1].toTensor();
  const at::Tensor buffer = std::get<1>(at::log_sigmoid_forward(input));
  *stack = {at::log_sigmoid_backward(grad, input, buffer)};
}

// (self, dim, half_to_float). On CUDA a softmax of half may give float. The CPU has no such kernel.
inline void softmax(Stack* stack, at::Tensor (*compute)(const at::Tensor&, int64_t, bool)) {
  at::Tensor input = (*stack)[0].toTensor();
  if ((*stack)[2].toBool()) input = input.to(at::kFloat);
  *stack = {compute(input, (*stack)[1].toInt(), false)};
}

inline void plain_softmax(Stack* stack) { softmax(stack, &at::_softmax); }
inline void log_softmax(Stack* stack) { softmax(stack, &at::_log_softmax); }

// (grad_output, output, dim, input_dtype). The gradient of such a softmax is of half again.
inline void softmax_backward(Stack* stack,
                             at::Tensor (*compute)(const at::Tensor&, const at::Tensor&, int64_t,
                                                   at::ScalarType)) {
  const at::Tensor grad = (*stack)[0].toTensor(), output = (*stack)[1].toTensor();
  const at::Tensor made = compute(grad, output, (*stack)[2].toInt(), grad.scalar_type());
  *stack = {made.to((*stack)[3].toScalarType())};
}

inline void plain_softmax_backward(Stack* stack) {
  softmax_backward(stack, &at::_softmax_backward_data);
}
inline void log_softmax_backward(Stack* stack) {
  softmax_backward(stack, &at::_log_softmax_backward_data);
}

inline void baddbmm_dtype(Stack* stack) {
  const auto& s = *stack;
  const auto type = s[3].toScalarType();
  at::Tensor made = at::baddbmm(s[0].toTensor().to(type), s[1].toTensor().to(type),
                                s[2].toTensor().to(type), s[4].toScalar(), s[5].toScalar());
  *stack = {c10::IValue(std::move(made))};
}

// cuDNN samples in one way: bilinear (0), with zeros outside (0), between the corners' centres.
inline void grid_sampler(Stack* stack) {
  *stack = {at::grid_sampler_2d((*stack)[0].toTensor(), (*stack)[1].toTensor(), 0, 0,
                                /*align_corners=*/true)};
}

// (self, grid, grad_output)
inline void grid_sampler_backward(Stack* stack) {
  const auto& s = *stack;
  auto [of_self, of_grid] =
      at::grid_sampler_2d_backward(s[2].toTensor(), s[0].toTensor(), s[1].toTensor(), 0, 0,
                                   /*align_corners=*/true, {true, true});
  *stack = {of_self, of_grid};
}

// The same op with an out= argument at the end.
template <Rule rule>
void into_last(Stack* stack) {
  at::Tensor into = stack->back().toTensor();
  rule(stack);
  into.copy_((*stack)[0].toTensor());
  *stack = {into};
}

// By name and overload.
inline const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> made = {
      {"aten::mm.dtype", mm_dtype},
      {"aten::bmm.dtype", bmm_dtype},
      {"aten::addmm.dtype", addmm_dtype},
      {"aten::baddbmm.dtype", baddbmm_dtype},
      {"aten::cudnn_grid_sampler", grid_sampler},
      {"aten::cudnn_grid_sampler_backward", grid_sampler_backward},
      {"aten::batch_norm_stats", batch_norm_stats},
      {"aten::batch_norm_elemt", batch_norm_elemt},
      {"aten::batch_norm_elemt.out", into_last<batch_norm_elemt>},
      {"aten::batch_norm_gather_stats", batch_norm_gather_stats},
      {"aten::batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts},
      {"aten::batch_norm_backward_reduce", batch_norm_backward_reduce},
      {"aten::batch_norm_backward_elemt", batch_norm_backward_elemt},
      {"aten::cudnn_batch_norm", cudnn_batch_norm},
      {"aten::cudnn_batch_norm_backward", cudnn_batch_norm_backward},
      {"aten::_fused_rms_norm_backward", rms_norm_backward},
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
      {"aten::_thnn_fused_gru_cell", gru_cell},
      {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
      {"aten::log_sigmoid_backward", log_sigmoid_backward},
      {"aten::log_sigmoid_backward.grad_input", into_last<log_sigmoid_backward>},
      {"aten::_softmax", plain_softmax},
      {"aten::_softmax.out", into_last<plain_softmax>},
      {"aten::_softmax_backward_data", plain_softmax_backward},
      {"aten::_softmax_backward_data.out", into_last<plain_softmax_backward>},
      {"aten::_log_softmax", log_softmax},
      {"aten::_log_softmax.out", into_last<log_softmax>},
      {"aten::_log_softmax_backward_data", log_softmax_backward},
      {"aten::_log_softmax_backward_data.out", into_last<log_softmax_backward>},
      {"aten::_scaled_dot_product_efficient_attention", efficient_attention},
      {"aten::_scaled_dot_product_efficient_attention_backward", efficient_attention_backward},
      {"aten::_scaled_dot_product_flash_attention", flash_attention},
      {"aten::_scaled_dot_product_flash_attention_backward", flash_attention_backward},
      {"aten::_scaled_dot_product_cudnn_attention", cudnn_attention},
      {"aten::_scaled_dot_product_cudnn_attention_backward", cudnn_attention_backward},
  };
  return made;
}

}  // namespace glake::numbers
