// Memory mode: what an op reads and writes.
#pragma once

#include <algorithm>
#include <vector>

#include "perform.h"

namespace glake::numbers {
namespace {

constexpr size_t kMostRuns = 4096;  // of one tensor: a guess

// What a piece is to an op that moves bytes and reads the piece. kMoved: the op moves these bytes.
// kPlaces: they say where the moved bytes go.
constexpr int kMoved = 1, kPlaces = 2;

// What an op reads and writes: the stretches of memory with its tensors' elements.
struct Pieces {
  std::vector<simcuda_followed> list;
  std::vector<uint64_t> bases;  // for each, the first address of its storage
};

// Visits the stretches of memory with a tensor's elements. If there are many, visits one stretch
// from the first element to the last.
template <class See>
void each_run(const at::Tensor& tensor, const See& see) {
  const Extent whole = extent_of(tensor);
  if (whole.bytes == tensor.nbytes()) {  // true for most tensors
    see(whole);
    return;
  }
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, size; the inner ones first
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) > 0)
      steps.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(steps.begin(), steps.end());
  size_t inner = 0, count = 1;
  int64_t run = 1;
  for (; inner < steps.size() && steps[inner].first <= run; ++inner) {
    run += steps[inner].first * (steps[inner].second - 1);
  }
  for (size_t i = inner; i < steps.size(); ++i) count *= static_cast<size_t>(steps[i].second);
  if (count > kMostRuns) {
    see(whole);
    return;
  }
  std::vector<Extent> runs = {{whole.address, static_cast<size_t>(run) * tensor.itemsize()}};
  for (size_t i = inner; i < steps.size(); ++i) {
    const size_t before = runs.size();
    for (int64_t step = 1; step < steps[i].second; ++step) {
      const uint64_t offset = static_cast<uint64_t>(step * steps[i].first) * tensor.itemsize();
      for (size_t j = 0; j < before; ++j) {
        runs.push_back({runs[j].address + offset, runs[j].bytes});
      }
    }
  }
  for (const Extent& each : runs) see(each);
}

void note(const c10::IValue& value, int read, int written, Pieces* pieces) {
  if (read == 0 && written == 0) return;
  each_tensor(value, [&](const at::Tensor& tensor) {
    if (!tensor.is_cuda() || !tensor.has_storage() || tensor.numel() == 0) return;
    const auto base = reinterpret_cast<uint64_t>(tensor.storage().data());
    each_run(tensor, [&](const Extent& run) {
      pieces->list.push_back({run.address, run.bytes, read, written});
      pieces->bases.push_back(base);
    });
  });
}

// Adds what the op writes among its arguments. `reads`: also adds what it reads, because it may be
// computed.
void note_arguments(const Wrapped& op, const Stack& arguments, bool reads, Pieces* pieces) {
  const auto& schema = op.op.schema().arguments();
  // "If beta is 0, then the content of self will be ignored" (torch.addmm).
  const bool ignored =
      op.beta_at >= 0 && arguments[static_cast<size_t>(op.beta_at)].toScalar().equal(0);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() && !arguments[i].isList()) continue;
    // The running statistics of batch norms are written, which not all of their schemas say.
    const bool written = is_written(schema[i]) || schema[i].name().rfind("running_", 0) == 0;
    const bool unread = schema[i].is_out() || op.overwrites;
    const bool read = !(written && unread) && !(ignored && i == 0);
    const bool keeps = written && schema[i].name() == op.keeps;
    const int how = !(reads && read)                            ? 0
                    : op.moves && schema[i].name() == op.places ? kPlaces
                                                                : kMoved;
    note(arguments[i], how, keeps ? SIMCUDA_KEEPS : written ? 1 : 0, pieces);
  }
}

// Adds results that are not arguments.
void note_results(const Wrapped& op, const Stack& results, Pieces* pieces) {
  const auto& returns = op.op.schema().returns();
  for (size_t i = 0; i < results.size(); ++i) {
    if (returns[i].alias_info() == nullptr) note(results[i], 0, 1, pieces);
  }
}

}  // namespace
}  // namespace glake::numbers
