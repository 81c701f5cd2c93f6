// Dry runs (docs/dry-run.md): the CUDA build of PyTorch over glake's stand-ins. In numbers mode
// PyTorch's CPU kernels compute every aten op on CUDA tensors on the same bytes. In memory mode
// only small ops are computed, from known bytes (numbers/known.h).
//
// Each op's CUDA kernel is wrapped. The wrapper calls the kernel as it is: it allocates, launches
// and copies. The simulator counts and orders all of that and moves no byte (Cover). Then the op
// itself becomes work of the stream. This work calls the CPU's kernel of the same name, on CPU
// tensors that alias the arguments' and the results' device memory. So memory behaves as on a GPU.
// Whoever waits for the stream, or replays a graph, gets right numbers, in every thread and without
// a dispatch mode of Python.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "numbers/kinds.h"
#include "numbers/known.h"
#include "numbers/perform.h"
#include "numbers/sparse.h"

namespace glake::numbers {
namespace {

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// How each op is handled, by name and overload.
std::map<std::string, std::string>& kinds() {
  static auto* kept = new std::map<std::string, std::string>;
  return *kept;
}

// Whether the op keeps its CUDA kernel. Views, metadata and allocation need no numbers, and an op
// without tensors has no numbers to compute.
bool is_native(const c10::OperatorHandle& op, const std::string& name) {
  if (kNative.count(name) != 0) return true;
  const c10::FunctionSchema& schema = op.schema();
  const auto& arguments = schema.arguments();
  if (std::any_of(arguments.begin(), arguments.end(), is_written)) return false;
  const auto& returns = schema.returns();
  return (returns.empty() && name != "_assert_async") ||
         std::any_of(returns.begin(), returns.end(),
                     [](const c10::Argument& each) { return each.alias_info() != nullptr; });
}

Wrapped wrapped(const c10::OperatorHandle& op, const std::string& name) {
  Wrapped made{op, name, op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)};
  const auto& arguments = op.schema().arguments();
  const auto rule = rules().find(c10::toString(op.operator_name()));
  if (rule != rules().end()) made.rule = rule->second;
  made.wide = kWide.count(name) != 0;
  made.first = kFirst.count(name) != 0;
  made.index = name == "index";
  made.overwrites = kOverwrites.count(name) != 0;
  made.shapes = kShapes.count(name) != 0;
  made.masks = kMasks.count(name) != 0;
  if (const auto keeps = kKeeps.find(name); keeps != kKeeps.end()) made.keeps = keeps->second;
  const auto moves = kMoves.find(name);
  const auto is = [&](const char* text) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const c10::Argument& each) { return each.name() == text; });
  };
  // These overloads do not only move bytes: they write a value from the host, or a sum.
  if (moves != kMoves.end() && !is("value") && !is("reduce")) {
    made.moves = true;
    made.places = moves->second;
  }
  made.check = kChecks.count(name) != 0;
  made.reduces = name == "all";
  made.chooses = kChoosing.count(name) != 0 && op.schema().arguments().size() > 1;
  made.asks = kAsking.count(name) != 0;
  made.computable =
      made.rule != nullptr || op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  const auto& tags = op.getTags();
  made.random = std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator") {
      made.generator_at = static_cast<int>(i);
      made.random = true;
    }
    if (arguments[i].name() == "beta" && arguments[0].name() == "self") {
      made.beta_at = static_cast<int>(i);
    }
    if (arguments[i].name() == "dropout_p") made.dropout_at = static_cast<int>(i);
  }
  made.followed =
      made.computable && kTrusting.count(name) == 0 && name.find("_backward") == std::string::npos;
  // A backward pass draws no new numbers.
  if (name.size() > 9 && name.compare(name.size() - 9, 9, "_backward") == 0) made.random = false;
  return made;
}

void wrap(const c10::OperatorHandle& op) {
  const c10::OperatorName& full = op.operator_name();
  const std::string name = full.name.substr(std::strlen("aten::"));
  Perform how = performing();
  if (name == "copy_") how = &perform_copy;
  if (name == "_local_scalar_dense") how = &perform_read;
  const bool asks_for_cudnn = name == "cudnn_is_acceptable" || name == "_use_cudnn_ctc_loss" ||
                              name == "_use_miopen_ctc_loss";
  if (asks_for_cudnn && how == &perform) how = &without_cudnn;
  if (how == performing() && is_native(op, name)) {
    kinds()[c10::toString(full)] = "native";
    return;
  }
  Wrapped made = wrapped(op, name);
  const bool asked = how == &perform_read || how == &without_cudnn;
  kinds()[c10::toString(full)] = asked              ? "native"
                                 : !made.computable ? "not computable"
                                 : made.rule        ? "rule"
                                 : made.first       ? "computed first"
                                                    : "computed";
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;  // for good
  kept->push_back(c10::Dispatcher::singleton().registerImpl(
      full, c10::DispatchKey::CUDA,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(made), how)),
      std::nullopt, nullptr, "glake's numbers"));
}

// `known`: memory mode (numbers/known.h), else numbers mode.
void install(bool known) {
  static bool done = false;
  if (done) return;
  if (known) {
    TORCH_CHECK(driver().phantom() != 0, "what is known is followed in phantom memory: set ",
                "GLAKE_SIM_PHANTOM=1");
    performing() = &perform_known;
  } else {
    const int result = driver().numbers(1);
    TORCH_CHECK(result == 0, last_message());
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorName> names =
      dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA);
  for (const char* whole : kWhole) names.emplace_back(std::string("aten::") + whole, "");
  for (const std::string& check : kChecks) {
    if (known) names.emplace_back("aten::" + check, "");
  }
  Silent silent;
  // Hides the warning that kernels are replaced.
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  for (const c10::OperatorName& name : names) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (op.has_value() && kinds().count(c10::toString(name)) == 0) wrap(*op);
  }
  if (known) wrap_coalesce();
  done = true;
}

std::string kinds_json() {
  std::string text = "{";
  for (const auto& [name, kind] : kinds()) {
    text += (text.size() > 1 ? ", \"" : "\"") + name + "\": \"" + kind + "\"";
  }
  return text + "}";
}

size_t answer(const std::string& text, char* out, size_t capacity) {
  if (out != nullptr && capacity > 0) {
    const size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(out, text.data(), length);
    out[length] = 0;
  }
  return text.size();
}

}  // namespace
}  // namespace glake::numbers

#define GLAKE_NUMBERS_API extern "C" __attribute__((visibility("default")))

// Gives the empty string, or the reason why it cannot be installed, as snprintf does. `known`: for
// phantom memory.
GLAKE_NUMBERS_API size_t glake_numbers_install(int known, char* error, size_t capacity) {
  try {
    glake::numbers::install(known != 0);
  } catch (const c10::Error& refused) {
    return glake::numbers::answer(refused.what_without_backtrace(), error, capacity);
  }
  return glake::numbers::answer("", error, capacity);
}

// Gives {name and overload: how it is handled} of each op with a CUDA kernel, as JSON.
GLAKE_NUMBERS_API size_t glake_numbers_ops(char* json, size_t capacity) {
  return glake::numbers::answer(glake::numbers::kinds_json(), json, capacity);
}

// torch.manual_seed was called.
GLAKE_NUMBERS_API void glake_numbers_reseeded() { glake::numbers::Twins::all().reseeded(); }

// A graph is about to be replayed. 1: captures draw random numbers, so call
// glake_numbers_replayed() after it.
GLAKE_NUMBERS_API int glake_numbers_before_replay() {
  return glake::numbers::Twins::all().before_replay() ? 1 : 0;
}

// Waits for the replay, because draws are made in the order of the program. Its failure is told by
// the next call, as that of any graph.
GLAKE_NUMBERS_API void glake_numbers_replayed() {
  const c10::Stream stream = glake::numbers::current_stream(glake::numbers::guard().getDevice());
  try {
    glake::numbers::guard().synchronizeStream(stream);
  } catch (const c10::Error&) {
  }
  glake::numbers::Twins::all().replayed();
}

// Returns once autograd's thread of each GPU has freed what its last backward() used. backward()
// returns a moment before that. An object that such a thread frees while Python ends would end the
// process by std::terminate (https://github.com/pytorch/pytorch/issues/190489). Gives the empty
// string, or the reason why autograd cannot be asked.
GLAKE_NUMBERS_API size_t glake_numbers_let_autograd_end(char* error, size_t capacity) {
  try {
    const c10::AutoGradMode with_gradients(true);
    for (c10::DeviceIndex i = 0; i < glake::numbers::guard().deviceCount(); ++i) {
      // Each thread works in order. Nothing is allocated and no kernel launched for no elements.
      const auto options = at::TensorOptions().device(c10::Device(c10::kCUDA, i));
      const at::Tensor nothing = at::empty({0}, options).requires_grad_();
      nothing.view({0}).backward(at::empty({0}, options));
    }
  } catch (const c10::Error& refused) {
    return glake::numbers::answer(refused.what_without_backtrace(), error, capacity);
  }
  return glake::numbers::answer("", error, capacity);
}

// Gives the failure that nobody was told of; the empty string: there is none.
GLAKE_NUMBERS_API size_t glake_numbers_failure(char* text, size_t capacity) {
  try {
    glake::numbers::check_failures();
  } catch (const c10::Error& failed) {
    return glake::numbers::answer(failed.what_without_backtrace(), text, capacity);
  }
  return glake::numbers::answer("", text, capacity);
}
