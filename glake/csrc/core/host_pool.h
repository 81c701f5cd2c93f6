// Pinned host memory, reachable from every device: cached by size class, and reused once the work
// recorded on it is complete. No driver call is made under the pool's lock.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/stats.h"
#include "driver/driver.h"
#include "types.h"

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
  // Gives back every block nobody holds or uses. Throws Error when the driver refuses.
  void empty_cache();
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
    bool live = false;
    bool lost = false;              // a recorded stream is gone: only a synchronisation tells
    std::vector<Recorded> streams;  // with no event yet
    std::vector<Event> events;
  };

  static Bytes class_of(Bytes bytes);
  void attach(int device);
  int home();
  HostBlock* take_ready(Bytes bytes, Bytes requested);
  HostBlock& live_block(void* ptr);
  void* fresh(Bytes bytes);
  bool advance(HostBlock& block);
  bool mark(HostBlock& block, Recorded recorded);
  void poll();
  void poll_locked();
  void synchronize();
  Status release_ready();

  Driver& driver_;
  // Who moves waiting blocks on, or gives memory back: one at a time, driver calls included.
  std::mutex progress_;
  std::mutex mutex_;  // of everything below
  std::unordered_map<void*, std::unique_ptr<HostBlock>> blocks_;
  std::map<Bytes, std::vector<HostBlock*>> ready_;
  std::vector<HostBlock*> waiting_;  // freed, with work that may use them
  std::unordered_map<int, std::vector<EventId>> spare_;
  std::vector<int> attached_;
  Stat allocated_, reserved_;  // bytes
  uint64_t live_ = 0, hits_ = 0, allocs_ = 0, frees_ = 0;
};

}  // namespace glake
