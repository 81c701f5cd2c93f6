// Pinned host memory, reachable from every device: cached by size class, and reused once the work
// recorded on it is complete. What is cached is bounded by what was ever live: a job whose sizes
// change from step to step would else keep them all. No driver call is made under the pool's lock.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/stats.h"
#include "base/types.h"
#include "driver/driver.h"

namespace glake {

class HostPool {
 public:
  explicit HostPool(Driver& driver) : driver_(driver) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Throws Error (GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR, GLAKE_DRIVER_ABSENT).
  void* allocate(Bytes bytes);
  void free(void* ptr);
  Bytes requested(void* ptr);  // of a live block; throws Error
  void record(void* ptr, int device, StreamHandle stream);
  // The stream ends. Unless its work is done, what it was recorded for waits for a synchronisation.
  void forget(StreamHandle stream, bool done = false);
  // Afterwards record() of this device's streams makes no driver call. Throws Error.
  void attach(int device);
  // Gives back every block nobody holds or uses. Throws Error when the driver refuses.
  void empty_cache();
  glake_host_stats_values values();
  std::string stats_json();
  uint64_t live();
  // Gives everything back, after all work. Throws Error while blocks are live or on a refusal.
  void close();

 private:
  using Event = std::pair<int, EventId>;          // its device first
  using Recorded = std::pair<int, StreamHandle>;  // likewise
  struct HostBlock {
    void* ptr = nullptr;
    Bytes bytes = 0;  // of its class
    Bytes requested = 0;
    uint64_t freed_at = 0;  // in frees
    bool live = false;
    bool lost = false;              // a recorded stream is gone: only a synchronisation tells
    std::vector<Recorded> streams;  // with no event yet
    std::vector<Event> events;
  };

  static Bytes class_of(Bytes bytes);
  int home();
  HostBlock* take_ready(Bytes size, Bytes requested, Bytes most);
  HostBlock* take_cached(Bytes size, Bytes requested);
  void put_ready(HostBlock* block);
  void count_live(HostBlock& block, Bytes requested);
  Bytes most_held(Bytes size) const;
  std::vector<HostBlock*> surplus(Bytes size);
  HostBlock& live_block(void* ptr);
  void* fresh(Bytes bytes);
  bool advance(HostBlock& block);
  bool record_event(HostBlock& block, Recorded recorded);
  void poll();
  void poll_locked();
  void synchronize();
  Status release_ready();
  Status release(const std::vector<HostBlock*>& going);

  Driver& driver_;
  // Who moves waiting blocks on, or gives memory back: one at a time, driver calls included.
  std::mutex progress_;
  std::mutex mutex_;  // of everything below
  std::unordered_map<void*, std::unique_ptr<HostBlock>> blocks_;
  std::map<Bytes, std::deque<HostBlock*>> ready_;  // by class, the last one freed at the back
  std::vector<HostBlock*> waiting_;                // freed, with work that may use them
  std::unordered_map<int, std::vector<EventId>> spare_;
  std::vector<int> attached_;
  Stat allocated_, reserved_;         // bytes
  Bytes asked_ = 0, most_asked_ = 0;  // of live blocks, by the class of what was asked for
  uint64_t freed_ = 0;
  uint64_t live_ = 0, hits_ = 0, allocs_ = 0, frees_ = 0;
};

}  // namespace glake
