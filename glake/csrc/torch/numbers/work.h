// One op as work of its stream. CPU kernels compute it on aliases of its tensors, when the stream
// reaches it, and again at each replay of a graph that captured it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "alias.h"
#include "generators.h"

namespace glake::numbers {

using torch::jit::Stack;
// Computes an op that has no CPU kernel of its name. It takes arguments off the stack and puts
// results onto it. For an undefined result the CUDA tensor stays as it is.
using Rule = void (*)(Stack*);

constexpr int kAssert = 710, kLaunchFailure = 719;  // CUresult: device-side assert, failure

// The thread that computes may be in the middle of any other work. While a Plain lives, the
// thread's autograd, autocast, Python modes, and included or excluded dispatch keys do not affect
// CPU kernels.
class Plain {
 public:
  Plain()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set |
                  c10::functorch_transforms_ks | c10::python_ks |
                  c10::DispatchKeySet(c10::DispatchKey::Functionalize)),
        observed_(false) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  at::NoGradGuard no_grad_;
  at::RecordFunctionGuard observed_;
};

struct Work {
  explicit Work(c10::OperatorHandle which) : op(std::move(which)) {}

  c10::OperatorHandle op;
  Rule rule = nullptr;
  bool wide = false;  // computed in float if its tensors are half or bfloat16
  Stack arguments;    // with aliases
  Stack targets;      // where the results go; None: the result is an argument, written in place
  bool random = false;
  std::shared_ptr<at::Generator> draws;  // nullptr: the CPU's default generator
  at::Generator replayed;                // of CUDA: its twin at the replay draws instead
  std::shared_ptr<torch::CapturedTraceback> issued;
  std::function<void(Stack)> take;  // gets the results of an op that is computed first
  // Gets what such an op says of its arguments. A GPU says it at the call, too.
  std::function<void(std::exception_ptr)> refuse;
};

// The first op whose computation failed. It is kept until a caller can be told.
struct Failure {
  std::string op, what;
  int code = 0;
  std::shared_ptr<torch::CapturedTraceback> issued;
};

struct Failures {
  std::mutex mutex;
  std::unique_ptr<Failure> first;
  std::string told;
  static Failures& all() {
    static auto* kept = new Failures;
    return *kept;
  }
};

// "file:line in function" of the innermost frame that is not PyTorch's or glake's. Takes the GIL.
inline std::string where(const std::shared_ptr<torch::CapturedTraceback>& issued) {
  if (issued == nullptr) return "(no Python frame)";
  const torch::SymbolizedTracebacks found = torch::symbolize({issued.get()});
  for (const uint64_t at : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(at);
    const bool library = frame.filename.find("/torch/") != std::string::npos ||
                         frame.filename.find("<frozen") != std::string::npos;
    if (library || frame.filename.empty()) continue;
    return frame.filename + ":" + std::to_string(frame.lineno) + " in " + frame.funcname;
  }
  return "(issued by a thread of PyTorch, such as autograd's)";
}

inline bool is_reduced(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 || type == at::kComplexHalf;
}

inline bool has_reduced(const Stack& stack) {
  bool found = false;
  for (const c10::IValue& each : stack) {
    each_tensor(each, [&](const at::Tensor& tensor) { found = found || is_reduced(tensor); });
  }
  return found;
}

inline void call(const Work& work, Stack* stack) {
  if (work.rule != nullptr) {
    work.rule(stack);
  } else {
    work.op.callBoxed(stack);
  }
}

// Computes in float: tensors of half (complex too) and bfloat16 are widened, and what is written is
// rounded back.
inline void call_wide(const Work& work, Stack* stack) {
  std::vector<std::pair<at::Tensor, at::Tensor>> back;
  const auto& arguments = work.op.schema().arguments();
  for (size_t i = 0; i < stack->size(); ++i) {
    const bool written = is_written(arguments[i]);
    (*stack)[i] = changed((*stack)[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !is_reduced(tensor)) return tensor;
      at::Tensor wider = tensor.to(tensor.is_complex() ? at::kComplexFloat : at::kFloat);
      if (written) back.emplace_back(tensor, wider);
      return wider;
    });
  }
  call(work, stack);
  for (auto& [to, from] : back) to.copy_(from);
}

inline Stack results_of(const Work& work) {
  Stack stack = work.arguments;
  const bool reduced = has_reduced(stack);
  if (reduced && work.wide) {
    call_wide(work, &stack);
    return stack;
  }
  try {
    call(work, &stack);
  } catch (const c10::IndexError&) {
    throw;
  } catch (const c10::Error&) {  // the CPU has no kernel for these types
    if (!reduced) throw;
    stack = work.arguments;
    call_wide(work, &stack);
  }
  return stack;
}

// Copies a result into its target. `first`: it is the main result. The other results are kept for
// the backward pass. Of these, the CPU may make one that CUDA does not make, or the reverse
// (statistics of an evaluation).
inline void land(const at::Tensor& target, const at::Tensor& result, bool first) {
  if (!target.defined() || !result.defined() || target.numel() == 0) return;
  if (!first && result.numel() == 0) {
    target.zero_();
    return;
  }
  TORCH_CHECK(result.dim() == 0 || target.sizes() == result.sizes(),
              "the CPU's result has the shape ", result.sizes(), ", the CUDA op's has ",
              target.sizes());
  target.copy_(result);
}

inline void land(const c10::IValue& target, const c10::IValue& result, bool first) {
  if (target.isTensor() && result.isTensor()) {
    land(target.toTensor(), result.toTensor(), first);
  } else if (target.isTensorList() && result.isTensorList()) {
    const auto to = target.toTensorVector(), from = result.toTensorVector();
    TORCH_CHECK(to.size() == from.size(), "the CPU makes ", from.size(), " results, CUDA ",
                to.size());
    for (size_t i = 0; i < to.size(); ++i) land(to[i], from[i], true);
  }
}

inline void run(Work* work) {
  const Plain plain;
  at::init_num_threads();
  const bool replayed = work->random && work->replayed.defined();
  const Drawing drawing(replayed       ? Twins::all().present(work->replayed)
                        : work->random ? work->draws
                                       : nullptr);
  Stack results = results_of(*work);
  if (work->take) {
    work->take(std::move(results));
    return;
  }
  for (size_t i = 0; i < work->targets.size(); ++i) land(work->targets[i], results.at(i), i == 0);
}

inline int failed(const Work& work, const std::string& what, int code) {
  Failures& failures = Failures::all();
  std::lock_guard<std::mutex> lock(failures.mutex);
  if (failures.first == nullptr) {
    failures.first = std::make_unique<Failure>(
        Failure{c10::toString(work.op.operator_name()), what, code, work.issued});
  }
  return code;
}

// The driver calls this (simcuda/compute.h).
inline int compute(void* data) {
  auto* work = static_cast<Work*>(data);
  try {
    run(work);
    return 0;
  } catch (const c10::IndexError& error) {  // an assertion of the kernel on a GPU
    return failed(*work, error.what_without_backtrace(), kAssert);
  } catch (const c10::NotImplementedError& error) {
    return failed(*work, error.what_without_backtrace(), kLaunchFailure);
  } catch (const c10::Error& error) {
    if (work->refuse) {
      work->refuse(std::current_exception());
      return 0;
    }
    const bool asserts = work->op.operator_name().name.find("_assert_async") != std::string::npos;
    return failed(*work, error.what_without_backtrace(), asserts ? kAssert : kLaunchFailure);
  } catch (const std::exception& error) {
    return failed(*work, error.what(), kLaunchFailure);
  }
}

}  // namespace glake::numbers
