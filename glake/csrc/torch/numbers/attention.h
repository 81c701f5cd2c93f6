// CUDA's fused attentions, computed as scaled_dot_product_attention computes the same arguments on
// the CPU: by its flash kernel. With dropout, and for what that kernel does not take, they are
// plain products.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/stack.h>

#include <cmath>
#include <map>
#include <mutex>

namespace glake::numbers {

using torch::jit::Stack;

struct Attention {
  at::Tensor query, key, value;
  std::optional<at::Tensor> bias;
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale;

  int64_t groups() const { return query.size(1) / key.size(1); }
  // The same attention with as many heads of keys and values as of queries.
  Attention ungrouped() const {
    Attention made = *this;
    if (groups() == 1) return made;
    made.key = key.repeat_interleave(groups(), 1);
    made.value = value.repeat_interleave(groups(), 1);
    return made;
  }
  bool by_flash() const {
    constexpr int64_t kFlash = 1;  // SDPBackend
    if (dropout != 0) return false;
    try {
      return at::_fused_sdp_choice(query, key, value, bias, dropout, causal, scale) == kFlash;
    } catch (const c10::Error&) {  // the script allows only backends that the CPU does not have
      return false;
    }
  }
};

// The states from which dropout drew, for forward passes whose backward passes may come. The CUDA
// tensor that holds the seed on a GPU has the number of its state here.
class Seeds {
 public:
  at::Tensor keep() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> drawing(generator.mutex());
    std::lock_guard<std::mutex> lock(mutex_);
    states_[++last_] = generator.get_state();
    if (states_.size() > kMost) states_.erase(states_.begin());
    return at::scalar_tensor(last_, at::kLong);
  }
  at::Generator at(const at::Tensor& seed) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = states_.find(seed.reshape({-1})[0].item<int64_t>());
    TORCH_CHECK(found != states_.end(), "the dropout of this attention was drawn more than ", kMost,
                " attentions ago, and is forgotten");
    at::Generator made = at::detail::createCPUGenerator();
    made.set_state(found->second);
    return made;
  }
  static Seeds& all() {
    static auto* kept = new Seeds;
    return *kept;
  }

 private:
  // Each state has 5 KB. A guess: more than the attentions of one step.
  static constexpr size_t kMost = 4096;
  std::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, at::Tensor> states_;
};

struct Products {
  at::Tensor query, key, weights;  // scaled, scaled, after softmax
  double factor = 1;
};

// Computes the same as _scaled_dot_product_attention_math.
inline Products products(const Attention& a) {
  Products made;
  const double scale = a.scale.value_or(1.0 / std::sqrt(static_cast<double>(a.query.size(-1))));
  made.factor = std::sqrt(std::abs(scale));
  made.query = a.query * (scale < 0 ? -made.factor : made.factor);
  made.key = a.key * made.factor;
  at::Tensor scores = at::matmul(made.query, made.key.transpose(-2, -1));
  std::optional<at::Tensor> bias = a.bias;
  if (a.causal) {
    bias = at::ones({a.query.size(-2), a.key.size(-2)}, at::kBool).tril();
  }
  if (bias.has_value() && bias->scalar_type() == at::kBool) {
    bias = at::zeros(bias->sizes(), a.query.options())
               .masked_fill_(bias->logical_not(), -std::numeric_limits<double>::infinity());
  }
  if (bias.has_value()) scores.add_(*bias);
  made.weights = at::_safe_softmax(scores, -1);
  return made;
}

// Elements of 0 or 1 / (1 - p), as at::dropout draws them.
inline at::Tensor noise_of(const at::Tensor& weights, double p,
                           std::optional<at::Generator> generator) {
  return at::empty_like(weights).bernoulli_(1 - p, generator).div_(1 - p);
}

inline at::Tensor attend(const Attention& given) {
  if (given.by_flash()) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        given.query, given.key, given.value, 0, given.causal, given.bias, given.scale));
  }
  const Attention a = given.ungrouped();
  at::Tensor weights = products(a).weights;
  if (a.dropout > 0) weights = weights * noise_of(weights, a.dropout, std::nullopt);
  return at::matmul(weights, a.value);
}

struct Gradients {
  at::Tensor query, key, value, bias;
};

inline Gradients by_flash_backward(const Attention& a, const at::Tensor& grad) {
  const auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      a.query, a.key, a.value, 0, a.causal, a.bias, a.scale);
  auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, a.query, a.key, a.value, output, sums, 0, a.causal, a.bias, a.scale);
  return {query, key, value, at::Tensor()};
}

inline Gradients attend_backward(const Attention& given, const at::Tensor& grad,
                                 const at::Tensor& seed, bool of_bias) {
  if (!of_bias && given.by_flash()) return by_flash_backward(given, grad);
  const Attention a = given.ungrouped();
  const Products p = products(a);
  at::Tensor dropped = p.weights, of_weights = at::matmul(grad, a.value.transpose(-2, -1));
  if (a.dropout > 0) {
    const at::Tensor noise = noise_of(p.weights, a.dropout, Seeds::all().at(seed));
    dropped = p.weights * noise;
    of_weights = of_weights * noise;
  }
  Gradients made;
  made.value = at::matmul(dropped.transpose(-2, -1), grad);
  const at::Tensor of_scores =
      at::_softmax_backward_data(of_weights, p.weights, -1, p.weights.scalar_type());
  const double scale = a.scale.value_or(1);
  made.query = at::matmul(of_scores, p.key) * (scale < 0 ? -p.factor : p.factor);
  made.key = at::matmul(p.query.transpose(-2, -1), of_scores).transpose(-2, -1) * p.factor;
  if (of_bias) made.bias = of_scores.sum_to_size(a.bias->sizes());
  if (given.groups() != 1) {
    const std::vector<int64_t> split = {given.key.size(1), given.groups()};
    made.key = made.key.unflatten(1, split).sum(2);
    made.value = made.value.unflatten(1, split).sum(2);
  }
  return made;
}

inline std::optional<at::Tensor> bias_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
  return value.toTensor();
}

inline std::optional<double> scale_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble());
}

// The results of a forward pass: its output, and at `seed_at` the number of its dropout's state.
inline void finish(Stack* stack, const Attention& a, size_t results, size_t seed_at) {
  const at::Tensor seed = a.dropout > 0 ? Seeds::all().keep() : at::Tensor();
  Stack made(results);
  made[0] = attend(a);
  if (seed.defined()) made[seed_at] = seed;
  *stack = std::move(made);
}

inline void efficient_attention(Stack* stack) {
  const Stack& s = *stack;
  const Attention a{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), bias_of(s[3]),
                    s[5].toDouble(), s[6].toBool(),   scale_of(s[7])};
  finish(stack, a, 4, 2);
}

inline void efficient_attention_backward(Stack* stack) {
  const Stack& s = *stack;
  const Attention a{s[1].toTensor(), s[2].toTensor(), s[3].toTensor(), bias_of(s[4]),
                    s[9].toDouble(), s[11].toBool(),  scale_of(s[12])};
  const bool of_bias = a.bias.has_value() && s[10].toBoolList().get(3);
  const Gradients made = attend_backward(a, s[0].toTensor(), s[7].toTensor(), of_bias);
  *stack = {made.query, made.key, made.value, made.bias};
}

inline void flash_attention(Stack* stack) {
  const Stack& s = *stack;
  const Attention a{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), std::nullopt,
                    s[3].toDouble(), s[4].toBool(),   scale_of(s[6])};
  finish(stack, a, 9, 6);
}

inline void flash_attention_backward(Stack* stack) {
  const Stack& s = *stack;
  const Attention a{s[1].toTensor(),  s[2].toTensor(), s[3].toTensor(), std::nullopt,
                    s[10].toDouble(), s[11].toBool(),  scale_of(s[14])};
  const Gradients made = attend_backward(a, s[0].toTensor(), s[12].toTensor(), false);
  *stack = {made.query, made.key, made.value};
}

inline void cudnn_attention(Stack* stack) {
  const Stack& s = *stack;
  const Attention a{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), bias_of(s[3]),
                    s[5].toDouble(), s[6].toBool(),   scale_of(s[8])};
  finish(stack, a, 9, 6);
}

inline void cudnn_attention_backward(Stack* stack) {
  const Stack& s = *stack;
  const Attention a{s[1].toTensor(),  s[2].toTensor(), s[3].toTensor(), bias_of(s[8]),
                    s[13].toDouble(), s[14].toBool(),  scale_of(s[15])};
  const Gradients made = attend_backward(a, s[0].toTensor(), s[6].toTensor(), false);
  *stack = {made.query, made.key, made.value};
}

}  // namespace glake::numbers
