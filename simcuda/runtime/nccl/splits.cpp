#include "splits.h"

#include <string>

#include "error.h"

namespace nccl {
namespace {

constexpr uint64_t kSplitUs = 100'000;  // between two looks at a rank that may be gone

}  // namespace

uint64_t Splits::publish(int color, int key) {
  const uint64_t turn = ++turns_;
  Split& mine = seat_.mine().split[turn % 2];
  mine.color = color;
  mine.key = key;
  mine.turn.store(turn, std::memory_order_release);
  seat_.room->ring_all(-1);
  return turn;
}

ncclResult Splits::read(uint64_t turn, std::vector<std::pair<int, int>>* colors_and_keys) {
  const Room& room = *seat_.room;
  for (int other = 0; other < seat_.size; ++other) {
    const Split& theirs = seat_.page().rank[other].split[turn % 2];
    while (true) {
      const uint32_t bell = room.bell(seat_.rank);
      if (theirs.turn.load(std::memory_order_acquire) == turn) break;
      if (health_->ended()) return fail(ncclInvalidUsage, "split: the communicator has ended");
      if (!room.alive(other)) {
        return health_->broken(ncclRemoteError,
                               "split: rank " + std::to_string(other) + " is gone");
      }
      room.listen(seat_.rank, bell, kSplitUs);
    }
    colors_and_keys->emplace_back(theirs.color, theirs.key);
  }
  return ncclSuccess;
}

}  // namespace nccl
