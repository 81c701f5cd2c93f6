// The C interface of virtual ranges: addresses whose pages are backed with memory one by one.
#include <algorithm>
#include <cstring>

#include "capi/capi_call.h"
#include "process/virtual_calls.h"

using namespace glake::capi;
using glake::Process;
using glake::VirtualCalls;

extern "C" {

void* glake_virtual_reserve(size_t bytes, int device) {
  void* result = nullptr;
  api_call([&] {
    require(bytes != 0 && bytes <= glake::kMostSize,
            "a virtual range has from 1 byte to 64 TiB of addresses");
    result = VirtualCalls(Process::instance()).reserve(bytes, device);
  });
  return result;
}

int glake_virtual_back(void* range, size_t offset, size_t bytes, void* stream) {
  return api_call([&] {
    VirtualCalls(Process::instance()).back(range, offset, bytes, glake::stream_of(stream));
  });
}

int glake_virtual_unback(void* range, size_t offset, size_t bytes, void* stream) {
  return api_call([&] {
    VirtualCalls(Process::instance()).unback(range, offset, bytes, glake::stream_of(stream));
  });
}

int glake_virtual_alias(void* range, size_t offset, void* from, size_t from_offset, size_t bytes,
                        void* stream) {
  return api_call([&] {
    VirtualCalls(Process::instance())
        .alias(range, offset, from, from_offset, bytes, glake::stream_of(stream));
  });
}

int glake_virtual_free(void* range) {
  return api_call([&] {
    if (range == nullptr) return;
    VirtualCalls(Process::instance()).end(range);
  });
}

int glake_virtual_info(void* range, size_t offset, size_t bytes, glake_virtual* info, size_t size) {
  return api_call([&] {
    require(info != nullptr, "glake_virtual_info needs a place for the figures");
    const glake::VirtualInfo found = VirtualCalls(Process::instance()).info(range, offset, bytes);
    const glake_virtual figures{found.bytes, found.backed, found.shared, found.mapped};
    std::memset(info, 0, size);
    std::memcpy(info, &figures, std::min(size, sizeof figures));
  });
}

}  // extern "C"
