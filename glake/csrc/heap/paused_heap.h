// What a paused heap has given up. Pausing keeps addresses and blocks; the granules go back to the
// driver, and their bytes elsewhere.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "heap/saved_bytes.h"
#include "memory/view.h"

namespace glake {

// A heap is busy from the first of these to the last: nothing is allocated, pinned or trimmed.
enum class PauseState : uint8_t { kSaving, kPaused, kFilling };

struct PausedHeap {
  PausedHeap() { some_.fetch_add(1, std::memory_order_relaxed); }
  ~PausedHeap() { some_.fetch_sub(1, std::memory_order_relaxed); }
  PausedHeap(const PausedHeap&) = delete;
  PausedHeap& operator=(const PausedHeap&) = delete;
  // Whether any heap of the process is paused. While none is, a copy looks no further.
  static bool any() { return some_.load(std::memory_order_relaxed) != 0; }

  // How many granules of the run are held from the driver, and how many are mapped. Both counts
  // begin at the run's first granule. Granules that the driver refuses to take back stay counted,
  // and serve resume().
  struct Home {
    GranuleRun run;
    uint64_t held = 0, mapped = 0;
  };
  struct Seen {
    View* view = nullptr;
    uint64_t mapped = 0;
  };

  Granules granules() const {
    Granules all{0};
    for (const Home& h : homes) all = all + Granules{h.run.count};
    return all;
  }
  Granules held() const {
    Granules all{0};
    for (const Home& h : homes) all = all + Granules{h.held};
    return all;
  }

  PauseState state = PauseState::kSaving;
  std::vector<Home> homes;
  std::vector<Seen> views;
  std::unique_ptr<SavedBytes> saved;
  bool pending = false;  // copies that failed may still write there, until the device is waited for
  bool whole = false;    // all bytes are saved, and not only those of live blocks
  Granules missing{0};   // granules() - held(), for callers that have only the hot lock

 private:
  inline static std::atomic<int> some_{0};
};

}  // namespace glake
