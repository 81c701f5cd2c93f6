#include "stage.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"

namespace nccl {
namespace {

constexpr size_t kSmallest = size_t{64} << 10;  // bytes of the smallest block
// If unused blocks have more bytes than this, the largest go back to the system, but no small ones.
constexpr size_t kIdle = size_t{64} << 20;

}  // namespace

std::string Stage::path_of(const Room& room, int rank, uint32_t block) {
  return room.directory() + "/b" + std::to_string(rank) + "." + std::to_string(block);
}

ncclResult Stage::take(size_t bytes, Block* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  retire();
  const auto found = idle_.lower_bound(bytes);
  if (found != idle_.end() && found->first <= std::max(kSmall, 4 * bytes)) {
    *block = std::move(found->second);
    idle_bytes_ -= found->first;
    idle_.erase(found);
    return ncclSuccess;
  }
  size_t size = kSmallest;
  while (size < bytes) size = size < kSmall ? 2 * size : (bytes + kSmall - 1) / kSmall * kSmall;
  block->index = next_++;
  const std::string path = path_of(*room_, rank_, block->index);
  block->memory = Mapping::make(path, size);
  if (block->memory != nullptr) return ncclSuccess;
  return fail(ncclSystemError,
              path + ": " + std::to_string(size) + " bytes of shared memory: " + strerror(errno) +
                  " (collectives stage their bytes there; GLAKE_SIM_PHANTOM=1 moves none)");
}

void Stage::give(Block block, uint64_t collectives) {
  if (block.memory == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  until_passed_.emplace_back(collectives, std::move(block));
  retire();
}

void Stage::retire() {
  uint64_t all = UINT64_MAX;
  const Page& page = *room_->page();
  for (int rank = 0; rank < page.size; ++rank) {
    all = std::min<uint64_t>(all, page.rank[rank].passed.load(std::memory_order_acquire));
  }
  for (auto it = until_passed_.begin(); it != until_passed_.end();) {
    if (it->first > all) {
      ++it;
      continue;
    }
    const size_t size = it->second.memory->bytes();
    idle_bytes_ += size;
    idle_.emplace(size, std::move(it->second));
    it = until_passed_.erase(it);
  }
  trim();
}

void Stage::trim() {
  while (idle_bytes_ > kIdle && !idle_.empty() && idle_.rbegin()->first > kSmall) {
    const auto largest = std::prev(idle_.end());
    unlink(path_of(*room_, rank_, largest->second.index).c_str());
    idle_bytes_ -= largest->first;
    idle_.erase(largest);
  }
}

}  // namespace nccl
