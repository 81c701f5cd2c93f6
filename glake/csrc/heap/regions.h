// Regions: private pools with a name and a budget, and what a paused one has given up. Pausing
// keeps addresses and blocks; the granules go back to the driver, and their bytes elsewhere.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "heap/device_shared.h"
#include "heap/saved_bytes.h"
#include "memory/view.h"

namespace glake {

struct RegionName {
  std::string name;
  std::atomic<Bytes> budget{0};  // of each device's granules; 0: none
};

// The process's regions by name. The pool of one is {kRegions, its number}, on every device.
class RegionBook {
 public:
  static constexpr uint64_t kRegions = uint64_t{1} << 62;  // no pool of PyTorch's begins so
  static RegionBook& instance();

  PoolId pool_of(const std::string& name);  // made with the first call
  RegionName* find(PoolId id);              // null: no region's; never gone again
  std::vector<PoolId> all();
  // As texts name it: `region "weights"`, or `pool {3, 0}`.
  std::string text(PoolId id);

 private:
  std::mutex mutex_;
  std::deque<RegionName> names_;  // by number, from 1 on
};

// A heap is busy from the first of these to the last: nothing is allocated, pinned or trimmed.
enum class PauseState : uint8_t { kSaving, kPaused, kFilling };

struct PausedHeap {
  // Granules at home: of the first ones that many are held from the driver, and mapped. What the
  // driver refuses to take back stays so, and serves resume().
  struct Home {
    Run run;
    uint64_t held = 0, mapped = 0;
  };
  struct Seen {
    View* view = nullptr;
    uint64_t mapped = 0;
  };
  PauseState state = PauseState::kSaving;
  std::vector<Home> homes;
  std::vector<Seen> views;
  std::unique_ptr<SavedBytes> saved;
  bool pending = false;  // copies that failed may still write there, until the device is waited for
  bool whole = false;    // all bytes are saved, whoever's they are
  Granules missing{0};   // granules() - held(), for those who hold only hot_

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
};

// A region on one device, for reports.
struct RegionInfo {
  PoolId pool;
  Bytes live = 0, reserved = 0, paused = 0, saved = 0;
  int state = 0;  // 0: in use, 1: paused, 2: on its way
  int to = 0;     // GLAKE_REGION_*, where paused
  uint64_t blocks = 0;
};

}  // namespace glake
