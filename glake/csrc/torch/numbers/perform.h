// What replaces an op. Its CUDA kernel is called for everything but its numbers. The CPU's kernel,
// which computes the numbers, is enqueued.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "driver.h"
#include "rules.h"
#include "work.h"

namespace glake::numbers {
namespace {

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl made(c10::kCUDA);
  return made;
}

c10::Stream current_stream(c10::Device device) { return guard().getStream(device); }

// Reports what failed in a stream since the last call, with its line. It throws an exception, or
// prints to stderr as GPUs do where the GPU would have raised an assertion.
void check_failures() {
  Failures& failures = Failures::all();
  std::unique_ptr<Failure> found;
  {
    std::lock_guard<std::mutex> lock(failures.mutex);
    TORCH_CHECK(failures.told.empty(), failures.told);
    found = std::move(failures.first);
  }
  if (found == nullptr) return;
  const std::string text = found->op + " at " + where(found->issued) + ": " + found->what;
  if (found->code == kAssert) {
    std::fprintf(stderr, "glake: device-side assert of %s\n", text.c_str());
    return;
  }
  std::lock_guard<std::mutex> lock(failures.mutex);
  failures.told = "numbers cannot be computed by " + text;
  TORCH_CHECK(false, failures.told);
}

// A wrapped op.
struct Wrapped {
  c10::OperatorHandle op;
  std::string name;  // without "aten::" and overload
  c10::SafeKernelFunction native;
  Rule rule = nullptr;
  bool wide = false, first = false, index = false, random = false, computable = true;
  // For memory mode (known.h).
  bool overwrites = false, shapes = false, masks = false, followed = false, check = false,
       asks = false, chooses = false, reduces = false;
  bool moves = false;
  std::string places = "", keeps = "";  // names of arguments, as in kMoves and kKeeps
  int dropout_at = -1, generator_at = -1, beta_at = -1;
};

c10::Device device_of(const Stack& arguments) {
  std::optional<c10::Device> found;
  for (const c10::IValue& value : arguments) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (!found.has_value() && tensor.is_cuda()) found = tensor.device();
    });
    if (!found.has_value() && value.isDevice() && value.toDevice().is_cuda()) {
      found = value.toDevice();
    }
  }
  return found.has_value() && found->has_index() ? *found : guard().getDevice();
}

bool draws(const Wrapped& op, const Stack& arguments) {
  if (!op.random) return false;
  return op.dropout_at < 0 || arguments[static_cast<size_t>(op.dropout_at)].toDouble() > 0;
}

at::Generator generator_of(const Wrapped& op, const Stack& arguments, c10::Device device) {
  if (op.generator_at >= 0 && arguments[static_cast<size_t>(op.generator_at)].isGenerator()) {
    return arguments[static_cast<size_t>(op.generator_at)].toGenerator();
  }
  return at::globalContext().defaultGenerator(device);
}

// The op's arguments as the CPU kernel takes them. Tensors of the CPU stay as they are now.
Stack on_the_cpu(const Wrapped& op, const Stack& arguments, Aliases* aliases) {
  Stack made;
  const auto& schema = op.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool written = is_written(schema[i]);
    if (arguments[i].isGenerator()) {
      made.emplace_back(at::detail::getDefaultCPUGenerator());
    } else if (arguments[i].isDevice()) {
      made.emplace_back(c10::Device(c10::kCPU));
    } else {
      made.push_back(changed(arguments[i], [&](const at::Tensor& tensor) -> at::Tensor {
        if (!tensor.defined() || tensor.is_cuda()) return aliases->of(tensor, written);
        if (written || !tensor.device().is_cpu()) return tensor;
        at::Tensor copy = tensor.clone();
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
          copy.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
        return copy;
      }));
    }
  }
  return made;
}

// The generator from which a random op draws. `own` is as in Twins. `replayed`, if defined, is the
// CUDA generator of an op that is captured: each replay asks for its twin.
struct Draw {
  bool random = false;
  std::shared_ptr<at::Generator> own;
  at::Generator replayed;
};

std::unique_ptr<Work> work_of(const Wrapped& op, Stack arguments, const Draw& draw) {
  auto work = std::make_unique<Work>(op.op);
  work->rule = op.rule;
  work->wide = op.wide;
  work->random = draw.random;
  work->draws = draw.own;
  work->replayed = draw.replayed;
  work->arguments = std::move(arguments);
  return work;
}

void enqueue(std::unique_ptr<Work> work, const Aliases& aliases, const c10::Stream& stream) {
  work->issued = torch::CapturedTraceback::gather(true, false, false);
  const auto& pieces = aliases.pieces();
  const simcuda_computed given = {
      &compute,       [](void* data) { delete static_cast<Work*>(data); },
      work.release(), pieces.data(),
      pieces.size(),  SIMCUDA_MAKES_NOTHING,
      nullptr,        0};
  const int result = driver().compute(handle_of(stream), &given);
  TORCH_CHECK(result == 0, "the simulated driver refused work of an op (CUresult ", result,
              "): ", last_message());
}

// The CUDA tensors that an op which is computed first writes into, each with the tensor that the
// CPU's kernel gets for it. They differ, because an out= argument may change its shape, and an
// alias cannot.
using Written = std::vector<std::pair<at::Tensor, at::Tensor>>;

Written own_outputs(const Wrapped& op, const Stack& arguments, Stack* given) {
  Written made;
  const auto& schema = op.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_written(schema[i]) || !arguments[i].isTensor()) continue;
    at::Tensor cpu = (*given)[i].toTensor();
    if (schema[i].kwarg_only()) {  // out=: its values are not read
      cpu = at::empty({0}, cpu.options());
      (*given)[i] = cpu;
    }
    made.emplace_back(arguments[i].toTensor(), cpu);
  }
  return made;
}

at::Tensor on_the_gpu(const at::Tensor& tensor, const Written& written, c10::Device device) {
  if (!tensor.defined()) return tensor;
  for (const auto& [cuda, cpu] : written) {
    if (!tensor.is_same(cpu)) continue;
    if (cuda.data_ptr() == cpu.data_ptr() && cuda.numel() != 0) return cuda;  // in place
    if (cuda.sizes() != cpu.sizes()) cuda.resize_(cpu.sizes());
    if (cuda.numel() != 0) cuda.copy_(cpu);
    return cuda;
  }
  at::Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(),
                                      tensor.options().device(device).pinned_memory(false));
  if (tensor.numel() != 0 && !tensor.is_meta()) made.copy_(tensor);
  return made;
}

// Computes the op at once, behind all the stream's work. Its results say what to allocate.
void find_first(const Wrapped& op, const Stack& arguments, const Draw& draw, Stack* results) {
  const c10::Device device = device_of(arguments);
  const c10::Stream stream = current_stream(device);
  Aliases aliases;
  Stack given = on_the_cpu(op, arguments, &aliases);
  const Written written = own_outputs(op, arguments, &given);
  auto found = std::make_shared<std::optional<Stack>>();
  auto work = work_of(op, std::move(given), draw);
  work->take = [found](Stack made) { *found = std::move(made); };
  auto refused = std::make_shared<std::exception_ptr>();
  work->refuse = [refused](std::exception_ptr why) { *refused = std::move(why); };
  enqueue(std::move(work), aliases, stream);
  guard().synchronizeStream(stream);
  check_failures();
  if (*refused) std::rethrow_exception(*refused);
  TORCH_CHECK(found->has_value(), op.op.operator_name(), " was not computed");
  for (const c10::IValue& value : **found) {
    results->push_back(changed(
        value, [&](const at::Tensor& tensor) { return on_the_gpu(tensor, written, device); }));
  }
}

// Calls the CUDA kernel for everything but its numbers. False: the op asked for a function that no
// stand-in has.
bool call_native(const Wrapped& op, c10::DispatchKeySet keys, Stack* frame) {
  Cover cover;
  try {
    op.native.callBoxed(op.op, keys, frame);
    return true;
  } catch (const std::exception&) {
    if (cover.end() == 0) throw;
  }
  return false;
}

void add_targets(const Wrapped& op, const Stack& results, Aliases* aliases, Work* work) {
  const auto& returns = op.op.schema().returns();
  for (size_t i = 0; i < results.size(); ++i) {
    const bool in_place = returns[i].alias_info() != nullptr;
    work->targets.push_back(in_place ? c10::IValue()
                                     : changed(results[i], [&](const at::Tensor& tensor) {
                                         return aliases->of(tensor, true);
                                       }));
  }
}

void enqueue_op(const Wrapped& op, const Stack& arguments, const Stack& results, const Draw& draw) {
  Aliases aliases;
  auto work = work_of(op, on_the_cpu(op, arguments, &aliases), draw);
  add_targets(op, results, &aliases, work.get());
  enqueue(std::move(work), aliases, current_stream(device_of(arguments)));
}

bool needs_finding(const Wrapped& op, const Stack& arguments) {
  if (op.first) return true;
  if (!op.index) return false;
  bool masks = false;
  each_tensor(arguments[1], [&](const at::Tensor& tensor) {
    masks = masks || tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  });
  return masks;
}

[[noreturn]] void refuse(const Wrapped& op, const char* why) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "numbers cannot be computed: ", op.op.operator_name(), " at ",
                              where(torch::CapturedTraceback::gather(true, false, false)), why,
                              " (glake's docs/dry-run.md)");
}

// A tensor that is not one stretch of memory (sparse, nested) cannot be aliased.
bool all_strided(const Stack& stack) {
  bool all = true;
  for (const c10::IValue& value : stack) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      all = all && (!tensor.defined() || tensor.has_storage());
    });
  }
  return all;
}

// Whether the tensors of the op's lists are on several devices. CUDA's code then calls another op
// for each of them, on its own device and stream (or on the CPU), so each of these is computed.
bool is_spread(const Wrapped& op, const Stack& stack) {
  if (op.name.rfind("_foreach_", 0) != 0) return false;
  std::optional<c10::Device> first;
  bool spread = false;
  for (auto value = stack.end() - static_cast<std::ptrdiff_t>(op.op.schema().arguments().size());
       value != stack.end(); ++value) {
    if (!value->isTensorList()) continue;
    each_tensor(*value, [&](const at::Tensor& tensor) {
      if (!first.has_value()) first = tensor.device();
      spread = spread || tensor.device() != *first;
    });
  }
  return spread;
}

void perform(const Wrapped& op, c10::DispatchKeySet keys, Stack* stack) {
  // The first: it is a part of an op that is computed as a whole.
  if (Cover::depth() > 0 || is_spread(op, *stack)) {
    op.native.callBoxed(op.op, keys, stack);
    return;
  }
  check_failures();
  if (!op.computable) refuse(op, " has a CUDA kernel and no CPU kernel that does the same");
  const auto count = static_cast<std::ptrdiff_t>(op.op.schema().arguments().size());
  const Stack arguments(stack->end() - count, stack->end());
  stack->erase(stack->end() - count, stack->end());
  if (!all_strided(arguments)) refuse(op, " takes a sparse or nested tensor");
  Stack results;
  Draw draw{draws(op, arguments), nullptr, {}};
  const c10::Device device = device_of(arguments);
  // CUDA's kernels do the same, because each device has its own NULL stream.
  const c10::DeviceGuard current(device);
  const c10::Stream stream = current_stream(device);
  const bool capturing = draw.random && driver().capturing(handle_of(stream)) != 0;
  at::Generator generator;
  if (draw.random) {
    generator = generator_of(op, arguments, device);
    if (capturing) {
      draw.replayed = generator;
      Twins::all().captured(generator);
    } else {
      draw.own = Twins::all().before(generator);
    }
  }
  Stack frame = arguments;
  if (!needs_finding(op, arguments) && call_native(op, keys, &frame)) {
    if (!all_strided(frame)) refuse(op, " makes a sparse or nested tensor");
    enqueue_op(op, arguments, frame, draw);
    results = std::move(frame);
  } else {
    find_first(op, arguments, draw, &results);
  }
  if (draw.random && !capturing) {
    Twins::all().drawn(generator);
    // Draws are made in the order of the program, on the CPU as on the GPU.
    guard().synchronizeStream(stream);
  }
  for (c10::IValue& value : results) stack->push_back(std::move(value));
}

using Perform = void (*)(const Wrapped&, c10::DispatchKeySet, Stack*);

// What replaces most ops: perform or perform_known.
Perform& performing() {
  static Perform chosen = &perform;
  return chosen;
}

// copy_: the driver's copy serves between host and device, and within or between devices without
// conversion. A copy between two devices that a kernel would convert goes over a tensor with the
// target's type and order.
void perform_copy(const Wrapped& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t at = stack->size() - 3;
  const at::Tensor to = (*stack)[at].toTensor(), from = (*stack)[at + 1].toTensor();
  if (Cover::depth() == 0 && to.is_cuda() && from.is_cuda()) {
    const bool plain = to.scalar_type() == from.scalar_type() && to.is_contiguous() &&
                       from.is_contiguous() && to.is_conj() == from.is_conj() &&
                       to.is_neg() == from.is_neg() && to.sizes() == from.sizes();
    if (!plain && (to.device() == from.device() || performing() != &perform)) {
      performing()(op, keys, stack);
      return;
    }
    if (!plain) {
      const at::Tensor ready =
          from.resolve_conj().resolve_neg().to(to.scalar_type()).expand_as(to).contiguous();
      const at::Tensor landed = at::empty(to.sizes(), to.options());
      landed.copy_(ready, (*stack)[at + 2].toBool());
      to.copy_(landed);
      stack->resize(at);
      stack->emplace_back(to);
      return;
    }
  }
  op.native.callBoxed(op.op, keys, stack);
}

// Reads a scalar back. At this point the host learns of work that failed.
void perform_read(const Wrapped& op, c10::DispatchKeySet keys, Stack* stack) {
  try {
    op.native.callBoxed(op.op, keys, stack);
  } catch (const std::exception&) {
    check_failures();
    throw;
  }
}

// Answers false to whether cuDNN serves. Recurrent networks ask cudnn_is_acceptable: without cuDNN
// they are made of products and cells, which are computed. The CTC loss asks questions of its own.
inline void without_cudnn(const Wrapped& op, c10::DispatchKeySet, Stack* stack) {
  stack->resize(stack->size() - op.op.schema().arguments().size());
  stack->emplace_back(false);
}

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(Wrapped op, Perform perform) : op_(std::move(op)), perform_(perform) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
    perform_(op_, keys, stack);
  }

 private:
  Wrapped op_;
  Perform perform_;
};

}  // namespace
}  // namespace glake::numbers
