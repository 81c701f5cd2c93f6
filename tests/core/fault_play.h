// A scenario that driver failures interrupt. Its operations may fail while a fault is armed, with
// the right status. glake's statistics must always match the blocks that the scenario holds.
#pragma once

#include <algorithm>
#include <functional>

#include "harness.h"

namespace test {

struct Fault {
  int64_t k = 0;  // 0: none
  int code = 0;
  int64_t times = 1;  // -1: for good
};

class Play {
 public:
  Play(const Options& simulator, const Options& glake, int devices, int streams)
      : devices_(devices) {
    fresh_simulator(simulator);
    configure({{"driver", "sim"}});
    configure(glake);
    if (streams != 0) hold_contexts(streams);
  }

  void arm(const Fault& fault) {
    calls_ = simcuda_calls("*");
    armed_ = fault.k != 0;
    if (armed_) CHECK(simcuda_fail("*", fault.k, fault.code, fault.times) == 0);
  }
  void disarm() {
    armed_ = false;
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  }
  int64_t calls_since_armed() const { return simcuda_calls("*") - calls_; }
  void* stream(int i) const { return i == 0 ? nullptr : streams_[static_cast<size_t>(i - 1)]; }

  // The operations. A block that could not be had is null, and later uses of it do nothing.
  void* get(size_t bytes, int on = 0, int device = 0) {
    void* ptr = glake_malloc(bytes, device, stream(on));
    if (ptr != nullptr) {
      CHECK(reinterpret_cast<uintptr_t>(ptr) % 512 == 0);
      held_.push_back({ptr, bytes, device});
      used_ |= 1 << device;
    } else {
      refused({GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR});
    }
    verify();
    return ptr;
  }
  void* get_from(glake_pool pool, size_t bytes, int on = 0) {
    void* ptr = glake_pool_malloc(bytes, 0, stream(on), pool);
    if (ptr != nullptr) {
      held_.push_back({ptr, bytes, 0});
      used_ |= 1;
    } else {
      refused({GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR});
    }
    verify();
    return ptr;
  }
  // These two make no driver call, as the device is open.
  void retain(glake_pool pool) { OK(glake_pool_retain(0, pool)); }
  void release(glake_pool pool) { OK(glake_pool_release(0, pool)); }
  void empty_pool(glake_pool pool) {
    if (glake_pool_empty_cache(0, pool) != GLAKE_OK) {
      refused({GLAKE_DRIVER_ERROR, GLAKE_MEMORY_OWED});
    }
    verify();
  }
  // Pauses the region, if the driver does not refuse. After resume() the contents must be the same
  // as before.
  bool pause(glake_pool pool, int to) {
    const int code = glake_region_pause(0, pool, to, to == GLAKE_REGION_DISK ? "/tmp" : nullptr);
    if (code != GLAKE_OK) refused({GLAKE_DRIVER_ERROR, GLAKE_MEMORY_OWED, GLAKE_OUT_OF_MEMORY});
    verify();
    return code == GLAKE_OK || code == GLAKE_MEMORY_OWED;
  }
  bool resume(glake_pool pool, int verified = 1) {
    const int code = glake_region_resume(0, pool, verified);
    if (code != GLAKE_OK) refused({GLAKE_DRIVER_ERROR, GLAKE_OUT_OF_MEMORY});
    verify();
    return code == GLAKE_OK;
  }
  bool armed() const { return armed_; }
  // A contiguous block.
  void* contiguous(size_t bytes) {
    void* ptr = glake_malloc_contiguous(bytes, 0, nullptr, GLAKE_CONTIGUOUS_VMM);
    if (ptr != nullptr) hold({ptr, bytes, 0});
    if (ptr == nullptr) refused({GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR});
    verify();
    return ptr;
  }
  // Virtual ranges (fault_virtual.h). recover() ends those that were not ended.
  void* reserve_range(size_t bytes) {
    void* range = glake_virtual_reserve(bytes, 0);
    if (range == nullptr) refused({GLAKE_DRIVER_ERROR});
    if (range != nullptr) ranges_.emplace_back(static_cast<char*>(range), bytes), used_ |= 1;
    return range;
  }
  void forget_range(void* range) {
    auto same = [range](const auto& each) { return each.first == range; };
    ranges_.erase(std::find_if(ranges_.begin(), ranges_.end(), same));
  }
  void refused_call(std::initializer_list<int> allowed) { refused(allowed); }
  void hold(const Held& held) { held_.push_back(held); }
  glake_checkpoint* checkpoint(glake_pool pool) {
    glake_checkpoint* now = glake_pool_checkpoint(0, pool);
    CHECK(now != nullptr);
    return now;
  }
  void restore(glake_checkpoint* then) {
    int code = glake_pool_restore(
        then, this, [](void* self, void* ptr) { static_cast<Play*>(self)->forget(ptr); },
        [](void* self, void* ptr, size_t bytes, void*) {
          static_cast<Play*>(self)->held_.push_back({ptr, bytes, 0});
        });
    if (code != GLAKE_OK) refused({GLAKE_INVALID_ARGUMENT, GLAKE_DRIVER_ERROR});
    glake_checkpoint_free(then);
    verify();
  }
  // A fault may hit these calls too. recover() ends a capture that could not be ended here.
  void begin_capture(int on) {
    auto* s = static_cast<CUstream>(stream(on));
    if (cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS) captured_ = s;
  }
  void end_capture() {
    CUgraph graph = nullptr;
    if (captured_ == nullptr || cuStreamEndCapture(captured_, &graph) != CUDA_SUCCESS) return;
    captured_ = nullptr;
    graphs_.push_back(graph);
  }
  void forget(void* ptr) {
    for (size_t i = 0; i < held_.size(); ++i) {
      if (held_[i].ptr == ptr) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i--));
    }
  }
  void drop(void* ptr) {
    if (ptr == nullptr) return;
    OK(glake_free(ptr));  // makes no driver call, so no fault can hit it
    forget(ptr);
    verify();
  }
  void record(void* ptr, int on) {
    if (ptr != nullptr) OK(glake_record_stream(ptr, stream(on)));
  }
  // Work on a block, so that unmapping under it is a violation. The fault may hit this call too.
  void touch(void* ptr, size_t bytes, int on) {
    if (ptr == nullptr) return;
    CUresult r = cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), 1, bytes,
                                 static_cast<CUstream>(stream(on)));
    CHECK(armed_ || r == CUDA_SUCCESS);
  }
  void empty_cache(int device = 0) {
    if (glake_empty_cache(device) != GLAKE_OK) {
      refused({GLAKE_DRIVER_ERROR, GLAKE_MEMORY_OWED});
    }
    verify();
  }
  bool peer(int device, int other) {
    bool ok = glake_enable_peer_access(device, other) == GLAKE_OK;
    if (!ok) refused({GLAKE_DRIVER_ERROR, GLAKE_OUT_OF_MEMORY});
    if (ok) used_ |= 1 << device | 1 << other;
    verify();
    return ok;
  }
  bool shutdown() {
    bool ok = glake_shutdown() == GLAKE_OK;
    if (!ok) refused({GLAKE_DRIVER_ERROR});
    half_closed_ = !ok;
    if (ok) used_ = 0;
    return ok;
  }

  // Called after the scenario. No call fails any more: every operation works, and all memory can be
  // given back.
  void recover() {
    disarm();
    end_capture();
    CHECK(captured_ == nullptr);
    for (CUgraph graph : graphs_) CU(cuGraphDestroy(graph));
    for (const auto& [range, bytes] : ranges_) {
      OK(glake_virtual_free(range));
      for (size_t at = 0; at < bytes; at += kGranule) forget(range + at);
    }
    if (half_closed_) CHECK(shutdown());  // the second try ends well, and glake can start again
    if (used_ == 0) {
      configure({{"driver", "sim"}});
      drop(get(512));
    }
    verify();
    while (held_.size() > 1) drop(held_.back().ptr);
    for (int device = 0; device < devices_; ++device) {
      for (int on = 0; on <= static_cast<int>(streams_.size()); ++on) {
        drop(get(3 * kMiB, on, device));
        drop(get(700 * kKiB, on, device));
      }
    }
    while (!held_.empty()) drop(held_.back().ptr);
    CHECK(shutdown());
    for (int device = 0; device < devices_ && !streams_.empty(); ++device) {
      CU(cuDevicePrimaryCtxRelease(device));
    }
    for (int device = 0; device < devices_; ++device) check_nothing_left(device);
  }

  const std::vector<Held>& held() const { return held_; }
  void verify() const {
    for (int device = 0; device < devices_; ++device) {
      if ((used_ & 1 << device) == 0) continue;
      OK(glake_check(device));
      check_books(held_, device);
    }
  }

 private:
  void hold_contexts(int streams) {
    CU(cuInit(0));
    for (int device = 0; device < devices_; ++device) {
      CUcontext context = nullptr;
      CU(cuDevicePrimaryCtxRetain(&context, device));
      if (device != 0) continue;
      CU(cuCtxPushCurrent(context));
      streams_.resize(static_cast<size_t>(streams));
      for (CUstream& s : streams_) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
      CU(cuCtxPopCurrent(&context));  // glake must need no current context
    }
  }
  void refused(std::initializer_list<int> allowed) {
    CHECK_TEXT(armed_, "refused with no fault armed");
    char text[2048] = "";
    int code = glake_last_error(text, sizeof text);
    bool known = false;
    for (int a : allowed) known = known || a == code;
    CHECK_TEXT(known && text[0] != '\0', "the status of a refused call");
  }

  int devices_;
  std::vector<CUstream> streams_;
  CUstream captured_ = nullptr;
  std::vector<CUgraph> graphs_;
  std::vector<Held> held_;
  std::vector<std::pair<char*, size_t>> ranges_;
  unsigned used_ = 0;  // bits of the devices that are known to be open
  bool armed_ = false;
  bool half_closed_ = false;
  int64_t calls_ = 0;
};

}  // namespace test
