// The C interface of limits, and of statistics as values.
#include <algorithm>
#include <cstring>

#include "capi/capi_call.h"
#include "process/process.h"
#include "process/region_calls.h"

using namespace glake::capi;
using glake::Process;

namespace {

// Fills as much as the caller's struct has room for. What this library does not have becomes 0.
template <typename Struct>
void give(const Struct& values, Struct* to, size_t size) {
  std::memset(to, 0, size);
  std::memcpy(to, &values, std::min(size, sizeof values));
}

}  // namespace

extern "C" {

int glake_get_stats(int device, glake_device_stats* stats, size_t size) {
  return api_call([&] {
    require(stats != nullptr && size != 0, "glake_get_stats needs a place and its size");
    give(Process::instance().device(device).report().values(), stats, size);
  });
}

int glake_get_host_stats(glake_host_stats_values* stats, size_t size) {
  return api_call([&] {
    require(stats != nullptr && size != 0, "glake_get_host_stats needs a place and its size");
    Process& process = Process::instance();
    glake::RegionCalls(process).drop_freed();
    give(process.host().values(), stats, size);
  });
}

int glake_reset_accumulated_stats(int device) {
  return api_call([&] { Process::instance().device(device).report().reset_accumulated(); });
}

int glake_set_limit_fraction(int device, double fraction) {
  return api_call([&] { Process::instance().device(device).limits().set_fraction(fraction); });
}

double glake_limit_fraction(int device) {
  double fraction = 0;
  int code = api_call([&] { fraction = Process::instance().device(device).limits().fraction(); });
  return code == GLAKE_OK ? fraction : -code;
}

int glake_set_headroom(int device, size_t bytes, size_t* free_bytes) {
  return api_call([&] {
    const glake::Bytes free = Process::instance().set_headroom(device, bytes);
    if (free_bytes != nullptr) *free_bytes = free;
  });
}

int glake_headroom(int device, size_t* bytes) {
  return api_call([&] {
    require(bytes != nullptr, "glake_headroom needs a place for the size");
    *bytes = Process::instance().headroom(device);
  });
}

int glake_claim_outside(int device, int64_t bytes) {
  return api_call([&] { Process::instance().device(device).reclaim().claim_outside(bytes); });
}

int glake_memory_info(int device, size_t* free_bytes, size_t* total_bytes) {
  return api_call([&] {
    glake::Bytes free = 0, total = 0;
    Process::instance().device(device).memory_info(&free, &total);
    if (free_bytes != nullptr) *free_bytes = free;
    if (total_bytes != nullptr) *total_bytes = total;
  });
}

int glake_largest_free(int device, size_t* bytes) {
  return api_call([&] {
    require(bytes != nullptr, "glake_largest_free needs a place for the size");
    *bytes = Process::instance().device(device).report().largest_free();
  });
}

}  // extern "C"
