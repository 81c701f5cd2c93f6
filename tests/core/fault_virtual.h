// Scenarios of virtual ranges while each driver call fails in turn.
#pragma once

#include <vector>

#include "fault_scenario.h"

namespace test::faults {

constexpr size_t kPages = 12;

// A range and which of its pages are backed. Calls that are refused change nothing.
class Range {
 public:
  explicit Range(Play& play) : play_(play) { base_ = play.reserve_range(kPages * kGranule); }

  bool back(size_t first, size_t count, int on = 0) {
    if (base_ == nullptr) return false;
    const int code =
        glake_virtual_back(base_, first * kGranule, count * kGranule, play_.stream(on));
    if (code != GLAKE_OK) {
      play_.refused_call({GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR});
    } else {
      for (size_t i = first; i < first + count; ++i) set(i, true, true);
    }
    play_.verify();
    return code == GLAKE_OK;
  }
  void unback(size_t first, size_t count, int on = 0) {
    if (base_ == nullptr) return;
    OK(glake_virtual_unback(base_, first * kGranule, count * kGranule, play_.stream(on)));
    for (size_t i = first; i < first + count; ++i) set(i, false, true);
    play_.verify();
  }
  // The pages at `first` must not share their memory yet.
  bool alias(size_t to, size_t first, size_t count, int on = 0) {
    if (base_ == nullptr) return false;
    const int code = glake_virtual_alias(base_, to * kGranule, base_, first * kGranule,
                                         count * kGranule, play_.stream(on));
    if (code != GLAKE_OK) play_.refused_call({GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR});
    for (size_t i = to; i < to + count; ++i) {
      // A page whose former memory cannot be mapped again is unbacked.
      glake_virtual now{};
      OK(glake_virtual_info(base_, i * kGranule, kGranule, &now, sizeof now));
      if (code == GLAKE_OK || now.backed == 0) set(i, false, true);
      if (code == GLAKE_OK) set(i, true, false);
    }
    play_.verify();
    return code == GLAKE_OK;
  }
  void end() {
    if (base_ == nullptr) return;
    const bool ended = glake_virtual_free(base_) == GLAKE_OK;
    glake_virtual left{};
    if (!ended) {
      play_.refused_call({GLAKE_DRIVER_ERROR});
      OK(glake_virtual_info(base_, 0, kPages * kGranule, &left, sizeof left));
    }
    for (size_t i = 0; i < kPages && left.backed == 0; ++i) set(i, false, true);
    if (ended) {
      play_.forget_range(base_);
      base_ = nullptr;
    }
    play_.verify();
  }
  void touch(size_t first, size_t count, int on) {
    for (size_t i = first; i < first + count; ++i) {
      if (backed_[i]) play_.touch(at(i), kGranule, on);
    }
  }

 private:
  char* at(size_t page) const { return static_cast<char*>(base_) + page * kGranule; }
  // Pages that share memory count once, by the page that had it first.
  void set(size_t page, bool backed, bool owns) {
    if (backed_[page] == backed) return;
    backed_[page] = backed;
    if (backed && owns) play_.hold({at(page), kGranule, 0});
    if (!backed) play_.forget(at(page));
  }

  Play& play_;
  void* base_ = nullptr;
  bool backed_[kPages] = {};
};

inline std::vector<Scenario> virtual_ranges() {
  const Options small{{"limit", "32MiB"}};
  return {
      {"a virtual range from nothing to its end",
       {},
       small,
       1,
       1,
       nothing,
       [](Play& p) {
         Range range(p);
         range.back(0, 3, 1);
         range.touch(0, 3, 1);
         range.back(1, 6);
         range.unback(2, 3, 1);
         p.drop(p.get(5 * kMiB));
         range.back(0, 8);
         range.end();
         p.empty_cache();
       }},
      {"pages mapped anew while work is under way",
       {},
       small,
       1,
       2,
       open,
       [](Play& p) {
         Range range(p);
         range.back(0, 6, 1);
         range.touch(0, 6, 1);
         range.unback(0, 6, 1);
         void* block = p.get(8 * kMiB, 2);
         p.touch(block, 8 * kMiB, 2);
         range.back(1, 4, 2);
         range.touch(1, 4, 2);
         range.back(6, 3, 1);
         p.drop(block);
         range.back(5, 2);
         range.end();
       }},
      {"pages that share memory",
       {},
       small,
       1,
       1,
       open,
       [](Play& p) {
         Range range(p);
         if (range.back(0, 4) && range.alias(6, 1, 2)) {
           range.unback(6, 2);
           range.alias(8, 2, 2);
           range.unback(8, 2);
           range.touch(3, 1, 1);
           range.alias(3, 0, 1, 1);
         }
         range.unback(0, 4);
         p.empty_cache();
         range.back(3, 5);
         range.end();
       }},
      {"idle pages that others need",
       {},
       small,
       1,
       1,
       open,
       [](Play& p) {
         Range range(p);
         range.back(0, 10, 1);
         range.touch(0, 10, 1);
         range.unback(0, 8, 1);
         void* block = p.contiguous(20 * kMiB);
         range.back(2, 2);
         p.drop(block);
         range.end();
       }},
  };
}

}  // namespace test::faults
