// Memory mode. GPU memory is phantom and has no bytes, but a few bytes are known
// (simcuda/driver/known.h): what the host copied there, lengths, masks and the like. If all of an
// op's arguments are small, the CPU's kernel computes it from the known bytes, at the op's place in
// the stream. What any other op writes is no longer known, and reads as zero. So facts that a
// script sends through a GPU come back right, and nothing else is computed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "assumed.h"
#include "perform.h"
#include "pieces.h"
#include "shapes.h"

namespace glake::numbers {
namespace {

// The most bytes of one tensor, and the most tensors of one op, that are followed. All three are
// guesses. Floats with more bytes are data. Integers may be the ids and masks of a whole batch, or
// a Python object that is sent as bytes.
constexpr size_t kMostOfFloats = size_t{64} << 10, kMostOfIntegers = size_t{16} << 20;
constexpr size_t kMostTensors = 4096;
constexpr uint64_t kLine = 64;  // bytes; an element's distance from a line's start is as on the GPU

// The work that follows an op in its stream.
struct Known {
  // Where aliases of the memory at `base` find their bytes while they are computed.
  struct Home {
    std::vector<c10::Storage> aliases;
    uint64_t base = 0, first = 0, end = 0;
    std::vector<char> bytes;
    char* at(uint64_t address) { return bytes.data() + (address - first); }
  };
  std::unique_ptr<Work> work;  // nullptr: nothing to compute
  std::vector<Home> homes;
  std::vector<simcuda_followed> pieces;
  std::vector<size_t> home_of;  // of each piece; empty: nothing to compute
  Assumed assumed;              // what it writes if it is not computed
  int device = 0;
  bool zeros = false;  // unknown bytes count as zero
  bool moves = false;  // each byte written is one that was read, if the types are the same
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

// Fetches the bytes that are read. Returns how many of each piece are known.
std::vector<size_t> bring(Known* known) {
  settle_homes(known);
  std::vector<size_t> found;
  for (size_t i = 0; i < known->pieces.size(); ++i) {
    const simcuda_followed& piece = known->pieces[i];
    found.push_back(
        piece.read == 0 ? 0 : driver().known_read(piece.address, known->at(i), piece.bytes));
  }
  return found;
}

// Fills a piece with marks: 0xff for each known byte, 0 for each other one. The driver writes only
// known bytes, so a byte is known if it comes out the same over two different fillings.
void mark(Known* known, size_t which) {
  const simcuda_followed& piece = known->pieces[which];
  std::vector<char> other(piece.bytes, 1);
  char* const at = known->at(which);
  std::memset(at, 0, piece.bytes);
  driver().known_read(piece.address, at, piece.bytes);
  driver().known_read(piece.address, other.data(), piece.bytes);
  for (size_t i = 0; i < piece.bytes; ++i) at[i] = at[i] == other[i] ? '\xff' : 0;
}

bool compute(Known* known) {
  try {
    run(known->work.get());
    return true;
  } catch (const std::exception&) {
    // The CPU's kernel refuses arguments that the CUDA kernel has accepted.
    return false;
  }
}

void tell(const Known& known, uint64_t address, size_t bytes, const char* from) {
  driver().known_write(known.device, address, from, bytes);
}

// For an op that moves bytes, of which some are known. Marks are moved in the same way, and show
// where the op takes the known ones.
bool move_marked(Known* known) {
  if (!compute(known)) return false;
  const size_t count = known->pieces.size();
  std::vector<std::vector<char>> made(count);
  for (size_t i = 0; i < count; ++i) {
    const simcuda_followed& piece = known->pieces[i];
    if (piece.write != 0) made[i].assign(known->at(i), known->at(i) + piece.bytes);
  }
  bring(known);
  for (size_t i = 0; i < count; ++i) {
    if (known->pieces[i].read == kMoved) mark(known, i);
  }
  if (!compute(known)) return false;
  for (size_t i = 0; i < count; ++i) {
    const simcuda_followed& piece = known->pieces[i];
    const char* marks = known->at(i);
    for (size_t at = 0, end = 0; piece.write != 0 && at < piece.bytes; at = end) {
      while (end < piece.bytes && marks[end] == marks[at]) ++end;
      tell(*known, piece.address + at, end - at, marks[at] == '\xff' ? &made[i][at] : nullptr);
    }
  }
  return true;
}

// The driver calls this (simcuda/compute.h).
int compute_known(void* data) {
  auto* known = static_cast<Known*>(data);
  bool computed = false, told = false;
  if (known->work != nullptr) {
    const std::vector<size_t> found = bring(known);
    bool all = true, any = false, places = true;
    for (size_t i = 0; i < found.size(); ++i) {
      const simcuda_followed& piece = known->pieces[i];
      const bool whole = piece.read == 0 || found[i] == piece.bytes;
      all = all && whole;
      any = any || found[i] != 0;
      if (piece.read == kPlaces) places = places && whole;
    }
    if (known->zeros || all) {
      computed = compute(known);
    } else if (known->moves && places && any) {
      told = move_marked(known);
    }
  }
  for (size_t i = 0; i < known->pieces.size(); ++i) {
    const simcuda_followed& piece = known->pieces[i];
    if (told || piece.write == 0) continue;
    if (piece.write == SIMCUDA_KEEPS && !computed) continue;
    const bool assumed = known->assumed.address == piece.address;
    const char* otherwise = assumed ? known->assumed.bytes.data() : nullptr;
    tell(*known, piece.address, piece.bytes, computed ? known->at(i) : otherwise);
  }
  for (Known::Home& home : known->homes) home.bytes = {};  // a graph keeps the work
  return 0;
}

void enqueue_known(std::unique_ptr<Known> known, const c10::Stream& stream) {
  known->device = stream.device_index();
  const bool assumes = known->assumed.address != 0;
  const int makes = known->work == nullptr && !assumes ? SIMCUDA_MAKES_NOTHING
                    : known->moves || assumes          ? SIMCUDA_MAKES_OF_ANY
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

// Makes one home for each storage. It spans all pieces of that storage.
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

// False if a home would be too large: two small views may lie at the two ends of a large storage.
bool is_compact(const Known& known) {
  return std::all_of(known.homes.begin(), known.homes.end(), [](const Known::Home& home) {
    return home.end - home.first <= 2 * kMostOfIntegers;
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

// Reports what the op has done at its place in the stream. It reports nothing if the op reads
// nothing known and writes where nothing is known, as most ops of a job do.
void follow(const Wrapped& op, const Stack& arguments, const Stack& results, bool computed) {
  computed = computed && is_small(results);
  Pieces pieces;
  note_arguments(op, arguments, computed, &pieces);
  note_results(op, results, &pieces);
  if (pieces.list.empty()) return;
  const c10::Stream stream = current_stream(device_of(arguments.empty() ? results : arguments));
  const int ahead = driver().known_ahead(handle_of(stream), pieces.list.data(), pieces.list.size());
  bool moves = op.moves;
  // With `accumulate` the op adds.
  if (op.name == "_index_put_impl_" && arguments[3].toBool()) moves = false;
  Assumed assumed = assume(op, arguments, results);
  computed = computed && (ahead & (moves ? SIMCUDA_ANY_READ : SIMCUDA_ALL_READ)) != 0;
  const bool assumes = assumed.address != 0;
  if (!computed && !assumes && (ahead & SIMCUDA_ANY_WRITTEN) == 0) return;
  auto known = std::make_unique<Known>();
  if (computed) find_homes(pieces, known.get());
  if (computed && is_compact(*known)) {
    Aliases aliases;
    known->work = work_of(op, on_the_cpu(op, arguments, &aliases), {});
    add_targets(op, results, &aliases, known->work.get());
    known->moves = moves;
    give_homes(aliases, known.get());
  }
  known->assumed = std::move(assumed);
  known->pieces = std::move(pieces.list);
  enqueue_known(std::move(known), stream);
}

// Makes the CUDA kernel allocate what it needs besides its results, as if nothing were known. The
// kernel of repeat_interleave is left out. It allocates little, and its check takes the zeros that
// it reads for negative numbers of repeats.
void take_workspace(const Wrapped& op, c10::DispatchKeySet keys, const Stack& arguments) {
  const auto& schema = op.op.schema().arguments();
  if (!op.shapes || op.name == "repeat_interleave") return;
  if (std::any_of(schema.begin(), schema.end(), is_written)) return;
  Stack frame = arguments;
  call_native(op, keys, &frame);
}

// An op whose results' shape depends on numbers waits for its stream on a GPU too. Unknown bytes of
// its small arguments count as zero. Other ops with unknown arguments are not computed.
bool find_known(const Wrapped& op, c10::DispatchKeySet keys, const Stack& arguments,
                Stack* results) {
  const c10::Device device = device_of(arguments);
  const c10::Stream stream = current_stream(device);
  // During a capture no op can wait for its stream. The CUDA kernel, which is called next, says so.
  if (driver().capturing(handle_of(stream)) != 0) return false;
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

// Turns masks among the indices into the places where they are true, as CUDA's kernels do. Only the
// masks must be known; what is indexed may be large.
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
  // Sparse tensors are not followed: their kernels may write all that is known.
  if (Cover::depth() > 0 || !all_strided(arguments) || is_spread(op, *stack)) {
    op.native.callBoxed(op.op, keys, stack);
    return;
  }
  stack->erase(stack->end() - count, stack->end());
  // Each device has its own NULL stream.
  const c10::DeviceGuard current(device_of(arguments));
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
