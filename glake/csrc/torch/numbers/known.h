// Memory mode: GPU memory is phantom and has no bytes, but a few are known (simcuda/known.h): what
// the host copied there, lengths, masks and the like. An op all of whose arguments are small is
// computed from them, by the CPU's kernel and at its place in the stream; of any other what it
// writes is no longer known, and reads as zero. So facts that a script sends through a GPU return
// as they would, and nothing else is computed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "perform.h"
#include "shapes.h"

namespace glake::numbers {
namespace {

// Guesses. Numbers that are followed are few, those that are data many; ids and masks are of a
// whole batch, and Python objects travel as bytes.
constexpr size_t kMostOfFloats = size_t{64} << 10, kMostOfIntegers = size_t{4} << 20,
                 kMostOfBytes = size_t{16} << 20;
constexpr size_t kMostTensors = 4096, kMostRuns = 4096;
constexpr uint64_t kLine = 64;  // bytes; elements lie as far from a line's start as on the GPU

// What an op reads and writes: the stretches of memory that its tensors' elements lie in.
struct Pieces {
  std::vector<simcuda_followed> list;
  std::vector<uint64_t> bases;  // of each, its storage's first address
};

// What follows an op in its stream.
struct Known {
  struct Home {  // where aliases of the memory at `base` find their bytes while they are computed
    std::vector<c10::Storage> aliases;
    uint64_t base = 0, first = 0, end = 0;
    std::vector<char> bytes;
    char* at(uint64_t address) { return bytes.data() + (address - first); }
  };
  std::unique_ptr<Work> work;  // nullptr: nothing to compute
  std::vector<Home> homes;
  std::vector<simcuda_followed> pieces;
  std::vector<size_t> home_of;  // of each piece; empty: nothing to compute
  int device = 0;
  bool zeros = false;  // what is not known counts as zero
  bool check = false;  // what is not known passes it
  bool moves = false;  // each byte written is one that was read, where the types are one
  char* at(size_t piece) { return homes[home_of[piece]].at(pieces[piece].address); }
};

void settle_homes(Known* known) {
  for (Known::Home& home : known->homes) {
    home.bytes.assign(home.end - home.first, 0);
    char* const base = home.bytes.data() - (home.first - home.base);
    for (c10::Storage& alias : home.aliases) {
      alias.set_data_ptr_noswap(c10::DataPtr(base, c10::Device(c10::kCPU)));
    }
  }
}

// Brings the bytes that are read; of each piece, whether it is known.
std::vector<bool> bring(Known* known) {
  settle_homes(known);
  std::vector<bool> found;
  for (size_t i = 0; i < known->pieces.size(); ++i) {
    const simcuda_followed& piece = known->pieces[i];
    found.push_back(piece.read != 0 &&
                    driver().known_read(piece.address, known->at(i), piece.bytes) == piece.bytes);
  }
  return found;
}

bool compute(Known* known) {
  try {
    run(known->work.get());
    return true;
  } catch (const std::exception&) {  // the CPU refuses what the GPU, that has run, did not
    return false;
  }
}

void tell(const Known& known, uint64_t address, size_t bytes, const char* from) {
  driver().known_write(known.device, address, from, bytes);
}

// Of an op that moves bytes some are known: where it takes them is seen by moving marks the same
// way.
bool move_marked(Known* known, const std::vector<bool>& found) {
  if (!compute(known)) return false;
  std::vector<std::vector<char>> made(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const simcuda_followed& piece = known->pieces[i];
    if (piece.write != 0) made[i].assign(known->at(i), known->at(i) + piece.bytes);
  }
  settle_homes(known);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i]) std::memset(known->at(i), 0xff, known->pieces[i].bytes);
  }
  if (!compute(known)) return false;
  for (size_t i = 0; i < found.size(); ++i) {
    const simcuda_followed& piece = known->pieces[i];
    const char* marks = known->at(i);
    for (size_t at = 0, end = 0; piece.write != 0 && at < piece.bytes; at = end) {
      while (end < piece.bytes && marks[end] == marks[at]) ++end;
      tell(*known, piece.address + at, end - at, marks[at] == '\xff' ? &made[i][at] : nullptr);
    }
  }
  return true;
}

// What the driver calls (simcuda/compute.h).
int compute_known(void* data) {
  auto* known = static_cast<Known*>(data);
  bool computed = false, told = false;
  if (known->work != nullptr) {
    const std::vector<bool> found = bring(known);
    const auto of_reads = [&](bool wanted) {
      size_t count = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        count += known->pieces[i].read != 0 && found[i] == wanted ? 1 : 0;
      }
      return count;
    };
    if (known->zeros || of_reads(false) == 0) {
      computed = compute(known);
    } else if (known->moves && of_reads(true) != 0) {
      told = move_marked(known, found);
    }
  }
  for (size_t i = 0; i < known->pieces.size(); ++i) {
    const simcuda_followed& piece = known->pieces[i];
    if (told || piece.write == 0) continue;
    if (known->check && !computed) {
      tell(*known, piece.address, piece.bytes, std::vector<char>(piece.bytes, 1).data());
      continue;
    }
    tell(*known, piece.address, piece.bytes, computed ? known->at(i) : nullptr);
  }
  for (Known::Home& home : known->homes) home.bytes = {};  // a graph keeps the work
  return 0;
}

void enqueue_known(std::unique_ptr<Known> known, const c10::Stream& stream) {
  known->device = stream.device_index();
  const int makes = known->work == nullptr && !known->check ? SIMCUDA_MAKES_NOTHING
                    : known->moves || known->check          ? SIMCUDA_MAKES_OF_ANY
                                                            : SIMCUDA_MAKES_OF_ALL;
  const simcuda_followed* pieces = known->pieces.data();
  const size_t count = known->pieces.size();
  const simcuda_computed given = {&compute_known,
                                  [](void* data) { delete static_cast<Known*>(data); },
                                  known.release(),
                                  nullptr,
                                  0,
                                  makes,
                                  pieces,
                                  count};
  const int result = driver().compute(handle_of(stream), &given);
  TORCH_CHECK(result == 0, "the simulated driver refused work of an op (CUresult ", result,
              "): ", last_message());
}

size_t most_of(at::ScalarType type) {
  if (type == at::kByte) return kMostOfBytes;
  return at::isIntegralType(type, /*includeBool=*/true) ? kMostOfIntegers : kMostOfFloats;
}

bool is_small(const Stack& stack) {
  size_t tensors = 0;
  bool small = true;
  for (const c10::IValue& value : stack) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      small = small && tensor.has_storage();
      if (!small || !tensor.is_cuda() || tensor.numel() == 0) return;
      const size_t bytes = std::max<size_t>(tensor.nbytes(), extent_of(tensor).bytes);
      small = bytes <= most_of(tensor.scalar_type());
      ++tensors;
    });
  }
  return small && tensors <= kMostTensors;
}

// The stretches of memory that a tensor's elements lie in; one from the first to the last where
// they are many.
template <class See>
void each_run(const at::Tensor& tensor, const See& see) {
  const Extent whole = extent_of(tensor);
  if (whole.bytes == tensor.nbytes()) {  // as most are
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

void note(const c10::IValue& value, bool read, bool written, Pieces* pieces) {
  if (!read && !written) return;
  each_tensor(value, [&](const at::Tensor& tensor) {
    if (!tensor.is_cuda() || !tensor.has_storage() || tensor.numel() == 0) return;
    const auto base = reinterpret_cast<uint64_t>(tensor.storage().data());
    each_run(tensor, [&](const Extent& run) {
      pieces->list.push_back({run.address, run.bytes, read ? 1 : 0, written ? 1 : 0});
      pieces->bases.push_back(base);
    });
  });
}

// reads: they count too, as the op may be computed.
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
    note(arguments[i], reads && read, written, pieces);
  }
}

// Those that are no argument.
void note_results(const Wrapped& op, const Stack& results, Pieces* pieces) {
  const auto& returns = op.op.schema().returns();
  for (size_t i = 0; i < results.size(); ++i) {
    if (returns[i].alias_info() == nullptr) note(results[i], false, true, pieces);
  }
}

// What to compute with, of pieces that are few.
void find_homes(const Pieces& pieces, Known* known) {
  std::unordered_map<uint64_t, size_t> by_base;
  for (size_t i = 0; i < pieces.list.size(); ++i) {
    const simcuda_followed& piece = pieces.list[i];
    const auto [found, fresh] = by_base.try_emplace(pieces.bases[i], known->homes.size());
    if (fresh) known->homes.push_back({{}, pieces.bases[i], piece.address, piece.address, {}});
    Known::Home& home = known->homes[found->second];
    home.first = std::min(home.first, piece.address) / kLine * kLine;
    home.end = std::max(home.end, piece.address + piece.bytes);
    known->home_of.push_back(found->second);
  }
}

// Small views may lie at both ends of a large storage.
bool is_compact(const Known& known) {
  return std::all_of(known.homes.begin(), known.homes.end(), [](const Known::Home& home) {
    return home.end - home.first <= 2 * kMostOfBytes;
  });
}

void give_homes(const Aliases& aliases, Known* known) {
  std::unordered_map<uint64_t, Known::Home*> by_base;
  for (Known::Home& home : known->homes) by_base[home.base] = &home;
  for (const auto& [theirs, alias] : aliases.storages()) {
    const auto found = by_base.find(reinterpret_cast<uint64_t>(theirs->data()));
    if (found != by_base.end()) found->second->aliases.push_back(alias);
  }
}

// What the op has done is told at its place in the stream: not where it reads nothing known and
// writes where nothing is, as most ops of a job do.
void follow(const Wrapped& op, const Stack& arguments, const Stack& results, bool computed) {
  computed = computed && is_small(results);
  Pieces pieces;
  note_arguments(op, arguments, computed, &pieces);
  note_results(op, results, &pieces);
  if (pieces.list.empty()) return;
  const c10::Stream stream = current_stream(device_of(arguments.empty() ? results : arguments));
  const int ahead = driver().known_ahead(handle_of(stream), pieces.list.data(), pieces.list.size());
  const bool moves = op.name == "cat";
  const bool check = op.check && is_small(results);
  computed = computed && (ahead & (moves ? SIMCUDA_ANY_READ : SIMCUDA_ALL_READ)) != 0;
  if (!computed && !check && (ahead & SIMCUDA_ANY_WRITTEN) == 0) return;
  auto known = std::make_unique<Known>();
  if (computed) find_homes(pieces, known.get());
  if (computed && is_compact(*known)) {
    Aliases aliases;
    known->work = work_of(op, on_the_cpu(op, arguments, &aliases), {});
    add_targets(op, results, &aliases, known->work.get());
    known->moves = moves;
    give_homes(aliases, known.get());
  }
  known->check = check;
  known->pieces = std::move(pieces.list);
  enqueue_known(std::move(known), stream);
}

// What the CUDA kernel allocates besides its results, which are as if nothing were known. That of
// repeat_interleave allocates little, and takes zeros for negative numbers of repeats.
void take_workspace(const Wrapped& op, c10::DispatchKeySet keys, const Stack& arguments) {
  const auto& schema = op.op.schema().arguments();
  if (!op.shapes || op.name == "repeat_interleave") return;
  if (std::any_of(schema.begin(), schema.end(), is_written)) return;
  Stack frame = arguments;
  call_native(op, keys, &frame);
}

// An op whose results have a shape that depends on numbers waits for its stream on a GPU too. If it
// has such a shape, what is not known of small arguments counts as zero; other ops are not
// computed.
bool find_known(const Wrapped& op, c10::DispatchKeySet keys, const Stack& arguments,
                Stack* results) {
  const c10::Device device = device_of(arguments);
  const c10::Stream stream = current_stream(device);
  if (driver().capturing(handle_of(stream)) != 0) return false;  // the CUDA kernel says why not
  Pieces pieces;
  note_arguments(op, arguments, true, &pieces);
  const int ahead = driver().known_ahead(handle_of(stream), pieces.list.data(), pieces.list.size());
  if (!op.shapes && (ahead & SIMCUDA_ALL_READ) == 0) return false;
  auto known = std::make_unique<Known>();
  find_homes(pieces, known.get());
  if (!is_compact(*known)) return false;
  Aliases aliases;
  Stack given = on_the_cpu(op, arguments, &aliases);
  const Written written = own_outputs(op, arguments, &given);
  auto found = std::make_shared<std::optional<Stack>>();
  known->work = work_of(op, std::move(given), {});
  known->work->take = [found](Stack made) { *found = std::move(made); };
  known->pieces = std::move(pieces.list);
  for (simcuda_followed& piece : known->pieces)
    piece.write = 0;  // on_the_gpu() copies what comes out
  known->zeros = op.shapes;
  if (const Rule sizing = sizing_rule(op.name); sizing != nullptr) known->work->rule = sizing;
  give_homes(aliases, known.get());
  enqueue_known(std::move(known), stream);
  take_workspace(op, keys, arguments);
  guard().synchronizeStream(stream);
  if (!found->has_value()) return false;
  for (const c10::IValue& value : **found) {
    results->push_back(changed(
        value, [&](const at::Tensor& tensor) { return on_the_gpu(tensor, written, device); }));
  }
  return true;
}

// Masks among indices become the places they are true at, as CUDA's kernels do it too: only they
// are to be known, and what is indexed may be large.
void find_masks(Stack* arguments) {
  c10::List<std::optional<at::Tensor>> found;
  const auto add = [&](const at::Tensor& index) {
    const bool mask = index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    if (!mask || !index.is_cuda() || index.dim() == 0) {
      found.push_back(index);
      return;
    }
    const at::Tensor places = index.nonzero();
    for (int64_t i = 0; i < index.dim(); ++i) found.push_back(places.select(1, i));
  };
  for (const std::optional<at::Tensor> each : (*arguments)[1].toOptionalTensorList()) {
    if (each.has_value() && each->defined()) {
      add(*each);
    } else {
      found.push_back(each);
    }
  }
  (*arguments)[1] = std::move(found);
}

void perform_known(const Wrapped& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto count = static_cast<std::ptrdiff_t>(op.op.schema().arguments().size());
  Stack arguments(stack->end() - count, stack->end());
  // What is known of a sparse tensor is nobody's here: its kernels may write all that is known.
  if (Cover::depth() > 0 || !all_strided(arguments)) {
    op.native.callBoxed(op.op, keys, stack);
    return;
  }
  stack->erase(stack->end() - count, stack->end());
  const c10::DeviceGuard current(device_of(arguments));  // the NULL stream is its own
  if (op.name == "masked_select" && !is_small(arguments)) {
    const auto both = at::broadcast_tensors({arguments[0].toTensor(), arguments[1].toTensor()});
    const at::Tensor made = at::index(both[0], {both[1]});
    if (arguments.size() == 3) arguments[2].toTensor().resize_(made.sizes()).copy_(made);
    stack->push_back(arguments.size() == 3 ? arguments[2] : c10::IValue(made));
    return;
  }
  if (op.masks) find_masks(&arguments);
  const bool computed = op.followed && !draws(op, arguments) && is_small(arguments);
  Stack results;
  if (!computed || !op.first || !find_known(op, keys, arguments, &results)) {
    results = arguments;
    if (op.name == "repeat_interleave") {
      repeat_unknown(&results);
    } else if (op.asks || !call_native(op, keys, &results)) {
      allocate(op, arguments, &results);
    }
    follow(op, arguments, results, computed);
  }
  for (c10::IValue& value : results) stack->push_back(std::move(value));
}

}  // namespace
}  // namespace glake::numbers
