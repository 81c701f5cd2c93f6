// Copies that a thread begins one right after the other, as a loop over all GPUs does. What
// followed a copy the last time is expected to follow it again. It must be known in advance,
// because a copy whose chunks are all enqueued at once cannot give back links that the next copy
// wants. Where one call begins several copies, they are known the first time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "plan/plan.h"

namespace glake::transfer {

// How a copy of a burst is planned: as if no other copy ran, together with the others, or as a
// plain copy.
enum class BurstWay : uint8_t { kUnknown, kApart, kJoint, kPlain };

class BurstTrials;
class LiveBurst;

class Bursts {
 public:
  // Says, once a burst is over that was not foreseen, what is kept of others like it. It is called
  // under the lock of this class.
  using Adopt = std::function<void(LiveBurst*, std::shared_ptr<BurstTrials>)>;

  struct Copy {
    Demand demand;
    Bytes bytes = 0;
    StreamKey stream{};  // in whose order it is, this time
    bool operator==(const Copy& other) const {
      return demand == other.demand && bytes == other.bytes;
    }
  };

  // What is known of the burst that a copy belongs to.
  struct Burst {
    std::shared_ptr<LiveBurst> live;    // this burst; null: it does not go as foreseen
    size_t number = 0;                  // how many of its copies came before this one
    bool known = false;                 // whether the burst came before; if not, the rest is unset
    size_t copies = 0;                  // how many copies the whole burst has
    std::vector<Copy> next;             // the copies that should begin right after this one
    BurstWay way = BurstWay::kUnknown;  // the way decided for this copy not long ago
  };
  // Whether some of the copies are behind others in their stream.
  static bool queued(const std::vector<Copy>& copies);

  explicit Bursts(Adopt adopt) : adopt_(std::move(adopt)) {}

  // Says that this thread begins these copies now, one right after the other, up to end(). False:
  // they are too many.
  bool announce(const std::vector<Copy>& copies);
  // Says that this thread begins a copy now. Returns what is known of its burst.
  Burst begin(const Copy& copy, uint64_t now);
  // Stores the way of the copy that this thread began last. It is stored because to decide it takes
  // as long as some dozen driver calls.
  void decided(BurstWay way);
  // Says that the call of this thread's last copy returns now, and that the copy should be done in
  // `ns`. A copy that the thread begins soon after that (kSoon) belongs to the same burst.
  void begun(uint64_t now, double ns);
  // Ends this thread's burst: the thread's next copy does not belong to it.
  void end();

 private:
  using Key = std::tuple<int, int, int, int, Bytes>;
  struct Known {
    std::vector<Copy> copies;
    std::vector<BurstWay> ways;  // the way of each copy
    int right = 0;               // how often in a row the burst came the same
    int wrong = 0;               // how often it came differently
    unsigned begun = 0;          // how often it began
    bool anew = true;            // whether the ways must be decided again
    std::shared_ptr<BurstTrials> trials;
  };
  using KnownPtr = std::shared_ptr<Known>;
  struct Current {
    std::vector<Copy> copies;
    KnownPtr known;               // what is known of bursts like it; null: nothing
    std::vector<Copy> announced;  // what announce() told of it; empty: nothing
    size_t alike = 0;  // so many of its copies, from the first on, are those that it should have
    uint64_t began = 0, open_until = 0;  // of the last copy
    std::shared_ptr<LiveBurst> live;
    bool foreseen = false;  // whether its copies were known from the first one on
    // The copies that it should have; null: nobody knows.
    const std::vector<Copy>* expected() const {
      if (!announced.empty()) return &announced;
      return known != nullptr ? &known->copies : nullptr;
    }
  };
  static Key key_of(const Copy& copy);
  static bool alike(const Copy& a, const Copy& b) { return key_of(a) == key_of(b); }
  static bool take(Known* known, const std::vector<Copy>& copies);
  void note(Current* current);

  const Adopt adopt_;

  std::mutex mutex_;
  std::map<std::thread::id, Current> current_;
  std::map<Key, KnownPtr> known_;                   // by the first copy
  std::map<std::vector<Key>, KnownPtr> announced_;  // by all copies
};

}  // namespace glake::transfer
