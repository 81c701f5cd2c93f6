// The cells of recurrent networks, by their published formulas. PyTorch's CUDA build computes each
// in one kernel. Only this file reads what they keep for the backward pass.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <vector>

#include "work.h"

namespace glake::numbers {

inline at::Tensor given_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

inline at::Tensor with_bias(const at::Tensor& gates, const c10::IValue& bias) {
  const at::Tensor given = given_or_none(bias);
  return given.defined() ? gates + given : gates;
}

// (input_gates, hidden_gates, cx, input_bias, hidden_bias) -> hy, cy, the four gates
inline void lstm_cell(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor cx = s[2].toTensor();
  const at::Tensor sum = with_bias(s[0].toTensor(), s[3]) + with_bias(s[1].toTensor(), s[4]);
  const auto gates = sum.chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh();
  const at::Tensor out = gates[3].sigmoid(), cy = forget * cx + in * cell;
  *stack = {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

// (grad_hy, grad_cy, cx, cy, gates, has_bias) -> gradients of the gates, of cx, of a bias
inline void lstm_cell_backward(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor cx = s[2].toTensor(), cy = s[3].toTensor().tanh();
  const auto gates = s[4].toTensor().chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::Tensor of_hy = given_or_none(s[0]), of_cy = given_or_none(s[1]);
  const at::Tensor hy = of_hy.defined() ? of_hy : at::zeros_like(cy);
  at::Tensor through = hy * out * (1 - cy * cy);
  if (of_cy.defined()) through = through + of_cy;
  const at::Tensor of_gates =
      at::cat({through * cell * in * (1 - in), through * cx * forget * (1 - forget),
               through * in * (1 - cell * cell), hy * cy * out * (1 - out)},
              1);
  const at::Tensor of_bias = s[5].toBool() ? of_gates.sum(0) : at::Tensor();
  *stack = {of_gates, through * forget, of_bias};
}

// (input_gates, hidden_gates, hx, input_bias, hidden_bias) -> hy, {reset, update, new, hx, hidden}
inline void gru_cell(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor hx = s[2].toTensor();
  const auto from_input = with_bias(s[0].toTensor(), s[3]).chunk(3, 1);
  const auto from_hidden = with_bias(s[1].toTensor(), s[4]).chunk(3, 1);
  const at::Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const at::Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const at::Tensor made = (from_input[2] + reset * from_hidden[2]).tanh();
  *stack = {made + update * (hx - made), at::cat({reset, update, made, hx, from_hidden[2]}, 1)};
}

// (grad_hy, kept, has_bias) -> gradients of the input's gates, the hidden gates, hx, both biases
inline void gru_cell_backward(Stack* stack) {
  const auto& s = *stack;
  const at::Tensor grad = s[0].toTensor();
  const auto kept = s[1].toTensor().chunk(5, 1);
  const at::Tensor &reset = kept[0], &update = kept[1], &made = kept[2], &hx = kept[3];
  const at::Tensor of_made = grad * (1 - update) * (1 - made * made);
  const at::Tensor of_reset = of_made * kept[4] * reset * (1 - reset);
  const at::Tensor of_update = grad * (hx - made) * update * (1 - update);
  const at::Tensor of_input = at::cat({of_reset, of_update, of_made}, 1);
  const at::Tensor of_hidden = at::cat({of_reset, of_update, of_made * reset}, 1);
  const bool biased = s[2].toBool();
  *stack = {of_input, of_hidden, grad * update, biased ? of_input.sum(0) : at::Tensor(),
            biased ? of_hidden.sum(0) : at::Tensor()};
}

}  // namespace glake::numbers
