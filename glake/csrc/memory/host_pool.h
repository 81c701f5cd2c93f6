// Pinned host memory that every device can reach. It is cached by size class, and reused once the
// work recorded on it is complete. The cached memory is bounded by what was ever live, because a
// job whose sizes change from step to step would otherwise keep memory of all these sizes. No
// driver call is made under the pool's lock.
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
  // Both are of a live block, and throw Error: what its caller asked for, and what it holds.
  Bytes requested(void* ptr);
  Bytes block_bytes(void* ptr);
  void record(void* ptr, int device, StreamHandle stream);
  // The stream ends. `done`: its work is complete. If it is not, blocks recorded on the stream wait
  // for a synchronisation of the devices.
  void forget(StreamHandle stream, bool done = false);
  // After this call, record() for this device's streams makes no driver call. Throws Error.
  void attach(int device);
  // Gives back every block that nobody holds or uses. Blocks of destroyed streams are among them
  // only if the devices may be waited for. A wait breaks a capture. Throws Error when the driver
  // refuses.
  void empty_cache(bool may_wait);
  glake_host_stats_values values();
  std::string stats_json();
  uint64_t live();
  // Waits for all work and gives everything back. Throws Error if blocks are live or the driver
  // refuses.
  void close();

 private:
  using Event = std::pair<int, EventId>;          // a device and its event
  using Recorded = std::pair<int, StreamHandle>;  // a device and its stream
  struct HostBlock {
    void* ptr = nullptr;
    Bytes bytes = 0;  // of its size class
    Bytes requested = 0;
    uint64_t freed_at = 0;  // rises from free to free
    bool live = false;
    bool lost = false;              // a recorded stream is gone: wait for a synchronisation
    std::vector<Recorded> streams;  // recorded streams without an event yet
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
  // Held by the one thread that moves waiting blocks on or gives memory back, also during driver
  // calls.
  std::mutex progress_;
  std::mutex mutex_;  // guards everything below
  std::unordered_map<void*, std::unique_ptr<HostBlock>> blocks_;
  std::map<Bytes, std::deque<HostBlock*>> ready_;  // by class; the block freed last is at the back
  std::vector<HostBlock*> waiting_;                // freed, but work may still use them
  std::unordered_map<int, std::vector<EventId>> spare_;
  std::vector<int> attached_;
  Stat allocated_, reserved_;         // bytes
  Bytes asked_ = 0, most_asked_ = 0;  // of live blocks, by the class of the requested size
  uint64_t freed_ = 0;
  uint64_t live_ = 0, hits_ = 0, allocs_ = 0, frees_ = 0;
};

}  // namespace glake
