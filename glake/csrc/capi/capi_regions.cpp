// The C interface of regions: pools with a name, which may be paused.
#include <string>

#include "capi/capi_call.h"
#include "process/alloc_hooks.h"
#include "process/region_calls.h"

using namespace glake::capi;
using glake::PoolId;
using glake::Process;

namespace {

PoolId region_of(glake_pool pool) { return {pool.first, pool.second}; }

constexpr size_t kMostName = 200;

// Accepts only names that messages and JSON can show unchanged.
void require_name(const char* name) {
  require(name != nullptr && *name != '\0', "a region needs a name");
  const std::string text = name;
  bool plain = text.size() <= kMostName;
  for (char c : text)
    plain = plain && static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
  require(plain,
          "a region's name has 1 to 200 bytes, no control characters, quotes or backslashes");
}

}  // namespace

extern "C" {

int glake_region_pool(const char* name, glake_pool* pool) {
  return api_call([&] {
    require(pool != nullptr, "glake_region_pool needs a place for the pool");
    require_name(name);
    const PoolId id = glake::RegionBook::instance().pool_of(name);
    *pool = {id.first, id.second};
  });
}

int glake_region_budget(glake_pool region, uint64_t bytes) {
  return api_call([&] { glake::RegionCalls::set_budget(region_of(region), bytes); });
}

int glake_set_pool(glake_pool pool, glake_pool* before) {
  return api_call([&] {
    const PoolId was = Process::instance().kinds().set_pool(region_of(pool));
    if (before != nullptr) *before = {was.first, was.second};
  });
}

int glake_region_pause(int device, glake_pool region, int to, const char* folder) {
  return api_call([&] {
    const bool known =
        to == GLAKE_REGION_HOST || to == GLAKE_REGION_DISK || to == GLAKE_REGION_DISCARD;
    require(known, "a region is paused to GLAKE_REGION_HOST (1), _DISK (2) or _DISCARD (3)");
    const bool named = folder != nullptr && *folder != '\0';
    require(named == (to == GLAKE_REGION_DISK), "GLAKE_REGION_DISK, and only it, needs a folder");
    const glake::PauseTo where{to, named ? folder : ""};
    glake::watched_trim(
        [&] { glake::RegionCalls(Process::instance()).pause(device, region_of(region), where); });
  });
}

int glake_region_resume(int device, glake_pool region, int verify) {
  return api_call([&] {
    glake::watched_trim([&] {
      glake::RegionCalls(Process::instance()).resume(device, region_of(region), verify != 0);
    });
  });
}

size_t glake_regions(char* json, size_t capacity) {
  size_t length = 0;
  api_call(
      [&] { length = copy_out(glake::RegionCalls(Process::instance()).list(), json, capacity); });
  return length;
}

}  // extern "C"
