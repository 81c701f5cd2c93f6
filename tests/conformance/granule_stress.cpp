// Tries many times what stitching relies on. One granule is mapped at several addresses, and
// several streams write different bytes of it at once. Mappings change beside running work.
//
//   granule_stress [LIBRARY [ROUNDS]]     (default libsimcuda.so, 24)
//
// Bytes are written by kernels where the driver runs them, else by memsets. Exits 1 if a byte is
// wrong, 2 if the driver cannot be opened.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>

#include "cuda_table.h"
#include "kernels.h"

CudaTable cu;
size_t granule = size_t{2} << 20;

CUmemAllocationProp device_memory(int device, bool exportable) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

namespace {

constexpr unsigned kBlocks = 64;
constexpr size_t kChunk = 4097;  // bytes of one memset, no multiple of a line, sector or page
int rounds = 24;
kernels::Kernels kernel;
bool has_kernels = false;

// Sets every other byte, or with memsets every other chunk: the even ones for `which` 0, the odd
// ones for 1.
void stamp_half(CUstream stream, CUdeviceptr base, size_t which, unsigned value) {
  if (has_kernels) {
    OK(kernel.stamp_bytes(stream, kBlocks, base, which, 2, granule / 2, value));
    return;
  }
  for (size_t at = which * kChunk; at < granule; at += 2 * kChunk) {
    const size_t bytes = std::min(kChunk, granule - at);
    OK(cu.cuMemsetD8Async(base + at, static_cast<unsigned char>(value), bytes, stream));
  }
}

size_t half_of(size_t at) { return has_kernels ? at % 2 : at / kChunk % 2; }

// Maps one handle at `count` addresses, each with access.
struct Views {
  Views(const Memory& memory, int count) {
    for (int i = 0; i < count; ++i) {
      at.push_back(std::make_unique<Range>(granule));
      at.back()->map(0, memory);
      at.back()->grant(0, granule);
    }
  }
  CUdeviceptr operator[](size_t i) const { return at[i]->base; }
  std::vector<std::unique_ptr<Range>> at;
};

void check_two_streams_in_one_granule() {
  Memory memory;
  Views views(memory, 3);
  Stream even, odd, reader;
  Event even_done, odd_done;
  Pinned host(granule);
  for (int round = 0; round < rounds; ++round) {
    const auto first = static_cast<unsigned char>(1 + round % 127),
               second = static_cast<unsigned char>(128 + round % 127);
    stamp_half(even, views[0], 0, first);
    stamp_half(odd, views[1], 1, second);
    OK(cu.cuEventRecord(even_done, even));
    OK(cu.cuEventRecord(odd_done, odd));
    OK(cu.cuStreamWaitEvent(reader, even_done, 0));
    OK(cu.cuStreamWaitEvent(reader, odd_done, 0));
    OK(cu.cuMemcpyDtoHAsync(host.at, views[2], granule, reader));
    OK(cu.cuStreamSynchronize(reader));
    for (size_t i = 0; i < granule; ++i) {
      if (host.bytes()[i] != (half_of(i) == 0 ? first : second)) {
        throw Failed{"round " + std::to_string(round) + ", byte " + std::to_string(i) + " is " +
                     std::to_string(host.bytes()[i])};
      }
    }
  }
}

// Bytes are written through one address and read through the other, in stream order, without a
// synchronisation in between.
void check_order_through_two_addresses() {
  Memory memory, copy_memory;
  Views views(memory, 2), copy(copy_memory, 1);
  Stream stream;
  Pinned host(granule);
  for (int round = 0; round < rounds; ++round) {
    const auto value = static_cast<unsigned char>(1 + round % 255);
    const size_t to = static_cast<size_t>(round) % 2, from = 1 - to;
    OK(cu.cuMemsetD8Async(views[to], value, granule, stream));
    OK(cu.cuMemcpyDtoDAsync(copy[0], views[from], granule, stream));
    OK(cu.cuMemsetD8Async(views[to], 0, granule, stream));
    OK(cu.cuMemcpyDtoHAsync(host.at, copy[0], granule, stream));
    OK(cu.cuStreamSynchronize(stream));
    TRUE(host.bytes()[0] == value && host.bytes()[granule - 1] == value);
    TRUE(std::memcmp(host.bytes(), host.bytes() + 1, granule - 1) == 0);
  }
}

// Kernels read, change and write back bytes, in turn through either address. A cache that kept a
// line under the other address would lose an addition.
void check_read_modify_write_in_turn() {
  SKIP_UNLESS(has_kernels, "the driver runs no kernels");
  Memory memory;
  Views views(memory, 2);
  Stream streams[2];
  Event done[2];
  Pinned host(granule);
  OK(cu.cuMemsetD32Async(views[0], 0, granule / 4, streams[0]));
  OK(cu.cuEventRecord(done[0], streams[0]));
  for (int round = 0; round < 4 * rounds; ++round) {
    // Two rounds of three run on stream 0, the third on stream 1. Events order the rounds.
    const int on = round % 3 == 2 ? 1 : 0, before = round % 3 == 0 ? 1 : 0;
    if (round % 3 != 1 && round > 0) OK(cu.cuStreamWaitEvent(streams[on], done[before], 0));
    if (round == 0) OK(cu.cuStreamWaitEvent(streams[1], done[0], 0));
    OK(kernel.add_one(streams[on], kBlocks, views[static_cast<size_t>(round) % 2], granule / 16));
    OK(cu.cuEventRecord(done[on], streams[on]));
  }
  OK(cu.cuCtxSynchronize());
  OK(cu.cuMemcpyDtoH(host.at, views[1], granule));
  const auto* words = static_cast<const unsigned*>(host.at);
  for (size_t i = 0; i < granule / 4; ++i) TRUE(words[i] == 4u * static_cast<unsigned>(rounds));
}

// Work goes on without pause in one half of a range. Meanwhile the other half is unmapped, mapped
// to another handle, granted and used.
void check_remapping_beside_running_work() {
  constexpr size_t kParts = 8;
  Memory busy_memory(kParts * granule), one, two;
  Range range((kParts + 1) * granule);
  range.map(0, busy_memory);
  range.grant(0, kParts * granule);
  Stream busy, other;
  Pinned host(granule);
  for (int round = 0; round < rounds; ++round) {
    const auto value = static_cast<unsigned char>(1 + round % 200);
    for (int i = 0; i < 8; ++i) {
      OK(cu.cuMemsetD8Async(range.base, value, kParts * granule, busy));
      if (has_kernels) {
        OK(kernel.add_one(busy, kBlocks, range.base, kParts * granule / 16));
      }
    }
    range.map(kParts * granule, round % 2 == 0 ? one : two);
    range.grant(kParts * granule, granule);
    OK(cu.cuMemsetD8Async(range.base + kParts * granule, value, granule, other));
    OK(cu.cuMemcpyDtoHAsync(host.at, range.base + kParts * granule, granule, other));
    OK(cu.cuStreamSynchronize(other));
    TRUE(host.bytes()[0] == value && host.bytes()[granule - 1] == value);
    range.unmap(kParts * granule, granule);
    OK(cu.cuStreamSynchronize(busy));
    const unsigned word = value * 0x01010101u + (has_kernels ? 1 : 0);
    TRUE(word_at(range.base) == word && word_at(range.base + kParts * granule - 4) == word);
  }
}

// Streams write views of random granules in random order. The views are then unmapped and built
// again. Each granule keeps what its last writer wrote.
void check_restitching() {
  constexpr size_t kGranules = 16, kLength = 8;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<unsigned> holds(kGranules, 0);
  Range home(kGranules * granule);
  for (size_t i = 0; i < kGranules; ++i) {
    memory.push_back(std::make_unique<Memory>());
    home.map(i * granule, *memory.back());
  }
  home.grant(0, kGranules * granule);
  Stream stream;
  OK(cu.cuMemsetD32Async(home.base, 0, kGranules * granule / 4, stream));
  std::mt19937 random(7);
  std::vector<size_t> order(kGranules);
  for (size_t i = 0; i < kGranules; ++i) order[i] = i;
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    Range view(kLength * granule);
    for (size_t i = 0; i < kLength; ++i) view.map(i * granule, *memory[order[i]]);
    view.grant(0, kLength * granule);
    const auto word = static_cast<unsigned>(round + 1);
    OK(cu.cuMemsetD32Async(view.base, word, kLength * granule / 4, stream));
    for (size_t i = 0; i < kLength; ++i) holds[order[i]] = word;
    OK(cu.cuStreamSynchronize(stream));
    for (size_t i = 0; i < kGranules; ++i) {
      const CUdeviceptr at = home.base + i * granule;
      TRUE(word_at(at) == holds[i] && word_at(at + granule - 4) == holds[i]);
    }
  }
}

const std::vector<Check> kChecks = {
    {"two streams write one granule's bytes", check_two_streams_in_one_granule},
    {"stream order holds between two addresses", check_order_through_two_addresses},
    {"kernels add through two addresses in turn", check_read_modify_write_in_turn},
    {"remapping beside running work", check_remapping_beside_running_work},
    {"stitching the same granules anew", check_restitching},
};

}  // namespace

int main(int argc, char** argv) {
  const char* library = argc > 1 && argv[1][0] != '-' ? argv[1] : "libsimcuda.so";
  if (argc > 2 && argv[2][0] != '-' && argv[1][0] != '-') rounds = std::max(1, std::atoi(argv[2]));
  setenv("GLAKE_SIM_MEMORY", "256MiB", 0);
  const std::string missing = cu.open(library);
  CUcontext context = nullptr;
  if (!missing.empty() || cu.cuInit(0) != CUDA_SUCCESS ||
      cu.cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cu.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    std::printf("%s: %s\n", library, missing.empty() ? "no device" : missing.c_str());
    return 2;
  }
  has_kernels = kernel.open(library);
  if (has_kernels && kernel.status() != CUDA_SUCCESS) {
    std::printf("the kernels could not be loaded: %s\n", name_of(kernel.status()).c_str());
    return 2;
  }
  if (!test::Choice(argc, argv).list)
    std::printf("%d rounds, %s\n", rounds, has_kernels ? "kernels" : "memsets");
  const int failed = run_checks(argc, argv, kChecks);
  cu.cuDevicePrimaryCtxRelease(0);
  return failed == 0 ? 0 : 1;
}
