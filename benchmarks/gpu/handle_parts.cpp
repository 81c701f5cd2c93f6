// What a driver does with a part of a memory handle, or of a mapping. CUDA's documents ask for
// offset 0 and do not say what else fails. If a part could be mapped, memory could be created in
// large handles, in a fifth of the time, and could still be stitched.
//
//   handle_parts [LIBRARY]     (default libsimcuda.so)
//
// Prints JSON: {"rows": [{call, case, outcome}]}. The outcome is the CUresult's name.
#include <functional>

#include "measure.h"

using namespace measure;

namespace {

constexpr size_t kHandle = 8 * kMiB, kHalf = kHandle / 2;

// A handle of kHandle bytes and a reserved range of twice its size, with nothing mapped.
class Space {
 public:
  Space() {
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    OK(cu.cuMemCreate(&handle_, kHandle, &prop_, 0));
    OK(cu.cuMemAddressReserve(&base_, 2 * kHandle, 0, 0, 0));
  }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;
  ~Space() {
    cu.cuMemUnmap(base_, 2 * kHandle);  // halves that are mapped separately are unmapped below
    for (size_t at = 0; at < 2 * kHandle; at += kHalf) cu.cuMemUnmap(base_ + at, kHalf);
    cu.cuMemAddressFree(base_, 2 * kHandle);
    cu.cuMemRelease(handle_);
  }
  CUresult map(size_t at, size_t bytes, size_t offset) {
    return cu.cuMemMap(base_ + at, bytes, offset, handle_, 0);
  }
  CUresult grant(size_t at, size_t bytes) {
    CUmemAccessDesc access{};
    access.location = prop_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cu.cuMemSetAccess(base_ + at, bytes, &access, 1);
  }
  CUresult unmap(size_t at, size_t bytes) { return cu.cuMemUnmap(base_ + at, bytes); }

 private:
  CUmemAllocationProp prop_{};
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr base_ = 0;
};

struct Case {
  const char *call, *what;
  std::function<CUresult(Space&)> ask;
};

const Case kCases[] = {
    {"cuMemMap", "the first half, at offset 0", [](Space& it) { return it.map(0, kHalf, 0); }},
    {"cuMemMap", "the second half, at its offset",
     [](Space& it) { return it.map(0, kHalf, kHalf); }},
    {"cuMemMap", "the first half, at a second address",
     [](Space& it) {
       const CUresult first = it.map(0, kHalf, 0);
       return first == CUDA_SUCCESS ? it.map(kHandle, kHalf, 0) : first;
     }},
    {"cuMemSetAccess", "half of a mapping",
     [](Space& it) {
       OK(it.map(0, kHandle, 0));
       return it.grant(0, kHalf);
     }},
    {"cuMemUnmap", "half of a mapping",
     [](Space& it) {
       OK(it.map(0, kHandle, 0));
       OK(it.grant(0, kHandle));
       return it.unmap(0, kHalf);
     }},
    {"cuMemUnmap", "a mapping and the hole behind it",
     [](Space& it) {
       OK(it.map(0, kHandle, 0));
       return it.unmap(0, 2 * kHandle);
     }},
};

}  // namespace

int main(int argc, char** argv) {
  const char* library = argc > 1 ? argv[1] : "libsimcuda.so";
  measure::open(library);
  std::printf("{\"program\": \"handle_parts\", \"library\": \"%s\", \"rows\": [", library);
  const char* comma = "";
  for (const Case& each : kCases) {
    Space space;
    const char* name = nullptr;
    OK(cu.cuGetErrorName(each.ask(space), &name));
    std::printf("%s\n {\"call\": \"%s\", \"case\": \"%s\", \"outcome\": \"%s\"}", comma, each.call,
                each.what, name);
    comma = ",";
  }
  std::printf("\n]}\n");
  return 0;
}
