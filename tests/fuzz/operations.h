// Reads bytes as calls of a World. The first four bytes say what the machine is, and each later
// four are one call. Any bytes mean something, so that a fuzzer can change them as it likes.
#pragma once

#include <array>

#include "world.h"

namespace fuzz {

struct Bytes4 {
  uint8_t kind, a, b, c;
  unsigned wide() const { return b * 256u + c; }
};

// Chooses sizes that the allocator handles differently: for thread caches, the small arena, the
// large arena, whole granules, and sizes next to these.
inline size_t size_of(Bytes4 x) {
  const size_t wide = x.wide();
  switch (x.a % 16) {
    case 0:
    case 1:
    case 2:
      return 1 + wide % 4096;
    case 3:
    case 4:
      return 1 + wide * 16;
    case 5:
      return kMiB - 512 + wide % 1024;
    case 6:
    case 7:
      return (1 + x.b % 6u) * kGranule;
    case 8:
      return (1 + x.b % 4u) * kGranule + 512 - x.c % 3u * 512;
    case 9:
      return (1 + x.b % 16u) * kMiB;
    default:
      return kMiB + wide * 96;
  }
}

inline int stream_of(Bytes4 x) { return x.a / 16; }
inline int device_of(Bytes4 x) { return x.c % 8 == 7; }

constexpr const char* kFaults[] = {"cuMemCreate",         "cuMemMap",
                                   "cuMemSetAccess",      "cuMemUnmap",
                                   "cuMemRelease",        "cuMemAddressReserve",
                                   "cuMemAddressFree",    "cuEventCreate",
                                   "cuEventRecord",       "cuEventQuery",
                                   "cuEventSynchronize",  "cuStreamWaitEvent",
                                   "cuStreamIsCapturing", "cuCtxSynchronize",
                                   "cuCtxGetCurrent",     "cuThreadExchangeStreamCaptureMode",
                                   "cuMemAlloc",          "cuMemFree",
                                   "cuMemHostAlloc",      "cuMemFreeHost"};
constexpr int kCodes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE,
                          CUDA_ERROR_NOT_SUPPORTED};
constexpr int kTimes[] = {1, 1, 2, -1};

struct Verb {
  int weight;  // of 256
  void (*act)(World& w, Bytes4 x);
};

inline const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all = {
      {50, [](World& w, Bytes4 x) { w.get(size_of(x), stream_of(x), device_of(x)); }},
      {4, [](World& w, Bytes4 x) { w.virtual_back(x.a, x.b, x.c); }},
      {1, [](World& w, Bytes4 x) { w.virtual_reserve(x.a); }},
      {2, [](World& w, Bytes4 x) { w.virtual_alias(x.a % 16, x.b % 16, x.a / 16, x.b / 16, x.c); }},
      {54, [](World& w, Bytes4 x) { w.drop(static_cast<int>(x.wide())); }},
      {3, [](World& w, Bytes4 x) { w.virtual_unback(x.a, x.b, x.c); }},
      {1, [](World& w, Bytes4 x) { w.virtual_free(x.a); }},
      {6, [](World& w, Bytes4 x) { w.drop_every(2 + x.a % 3, x.b); }},
      {4, [](World& w, Bytes4 x) { w.fill(size_of(x) + kMiB, stream_of(x), device_of(x)); }},
      {14, [](World& w, Bytes4 x) { w.record(static_cast<int>(x.wide()), x.a); }},
      {8, [](World& w, Bytes4 x) { w.rewrite(static_cast<int>(x.wide())); }},
      {4, [](World& w, Bytes4 x) { w.free_wrongly(x.a, x.a % 4 == 0 ? 0 : x.wide() * 97); }},
      {6, [](World& w, Bytes4) { w.new_stream(); }},
      {2, [](World& w, Bytes4 x) { w.end_stream(x.a); }},
      {6, [](World& w, Bytes4 x) { w.wait_stream(x.a); }},
      {2, [](World& w, Bytes4 x) { w.begin_capture(x.a, x.b); }},
      {5, [](World& w, Bytes4 x) { w.capture_get(size_of(x), x.c % 2); }},
      {8,
       [](World& w, Bytes4 x) { w.contiguous(size_of(x), stream_of(x), device_of(x), x.c % 2); }},
      {1, [](World& w, Bytes4 x) { w.set_kind(x.a % 8 < 4 ? 0 : x.a % 3); }},
      {5, [](World& w, Bytes4 x) { w.pin(static_cast<int>(x.wide())); }},
      {4, [](World& w, Bytes4 x) { w.unpin(x.a); }},
      {1, [](World& w, Bytes4) { w.pin_wrongly(); }},
      {4, [](World& w, Bytes4 x) { w.pool_get_at(x.c, size_of(x), stream_of(x), x.b % 2); }},
      {4, [](World& w, Bytes4 x) { w.host_get(1 + x.wide() * (x.a % 4 == 0 ? 16 : 1)); }},
      {3, [](World& w, Bytes4 x) { w.host_drop(x.a); }},
      {3, [](World& w, Bytes4 x) { w.host_record(x.a, x.b); }},
      {1, [](World& w, Bytes4) { w.host_empty_cache(); }},
      {1, [](World& w, Bytes4 x) { w.history(x.a, x.b); }},
      {4, [](World& w, Bytes4) { w.end_capture(); }},
      {6, [](World& w, Bytes4 x) { w.on_thread(x.a % 8 < 4 ? 0 : x.a); }},
      {2, [](World& w, Bytes4 x) { w.end_thread(x.a); }},
      {3, [](World& w, Bytes4 x) { w.empty_cache(device_of(x)); }},
      {1, [](World& w, Bytes4 x) { w.peer(x.a % 2, x.b % 2); }},
      {2, [](World& w, Bytes4 x) { w.step(device_of(x)); }},
      {1, [](World& w, Bytes4 x) { w.reset_peaks(device_of(x)); }},
      {2, [](World& w, Bytes4 x) { w.trace(x.a % 2); }},
      {1, [](World& w, Bytes4) { w.shutdown(); }},
      {8, [](World& w, Bytes4 x) { w.pool_get(size_of(x), stream_of(x), x.c % 2); }},
      {3, [](World& w, Bytes4 x) { w.pool_users(x.a % 2, x.b % 3 != 0); }},
      {1, [](World& w, Bytes4 x) { w.pool_flags(x.a % 2, x.b % 4); }},
      {2, [](World& w, Bytes4 x) { w.pool_empty_cache(x.a % 2); }},
      {2, [](World& w, Bytes4 x) { w.checkpoint(x.a % 2); }},
      {2, [](World& w, Bytes4) { w.restore(); }},
      {1, [](World& w, Bytes4 x) { w.limit(x.a); }},
      {4,
       [](World& w, Bytes4 x) {
         w.fail(kFaults[x.a % std::size(kFaults)], 1 + x.b % 8, kCodes[x.c % 4],
                kTimes[x.c / 4 % 4]);
       }},
      {4, [](World& w, Bytes4) { w.fail_no_more(); }},
  };
  return all;
}

inline const Verb& verb(uint8_t kind) {
  static const std::array<uint8_t, 256> table = [] {
    std::array<uint8_t, 256> t{};
    size_t at = 0;
    for (size_t v = 0; v < verbs().size(); ++v) {
      for (int i = 0; i < verbs()[v].weight; ++i) t.at(at++) = static_cast<uint8_t>(v);
    }
    CHECK_TEXT(at == 256, "weights add up to 256");
    return t;
  }();
  return verbs()[table[kind]];
}

inline Setup setup_of(Bytes4 x) {
  constexpr int kLimits[] = {8, 14, 24, 32};
  Setup s;
  s.policy = x.kind % 2 == 0 ? "balanced" : "compact";
  s.bytes = x.kind / 2 % 3 == 0;
  s.devices = x.kind / 8 % 4 == 0 ? 2 : 1;
  s.limit_mib = kLimits[x.a % 4];
  s.view_budget = x.b % 4 == 0 ? 1 : x.b % 4 * 3;
  s.seed = x.c;
  if (x.kind / 32 == 0) {
    s.debug = "guard,poison";
    s.bytes = 1;
  }
  if (x.kind / 32 == 1) s.contiguous = "3MiB";
  return s;
}

inline World*& current() {
  static World* world = nullptr;
  return world;
}

// Plays the input from start to end; returns how many calls it had.
inline size_t play(const uint8_t* data, size_t size) {
  constexpr size_t kUnit = sizeof(Bytes4);
  auto at = [&](size_t i) {
    Bytes4 x;
    std::memcpy(&x, data + i * kUnit, kUnit);
    return x;
  };
  size_t units = size / kUnit;
  if (units == 0) return 0;
  World world(setup_of(at(0)));
  current() = &world;
  for (size_t i = 1; i < units; ++i) verb(at(i).kind).act(world, at(i));
  world.finish();
  current() = nullptr;
  return units - 1;
}

}  // namespace fuzz
