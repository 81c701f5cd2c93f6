#include "stage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"

namespace nccl {
namespace {

constexpr size_t kSmallest = size_t{64} << 10;
// Smaller blocks stay mapped by their readers and are never given back: there are few.
constexpr size_t kSmall = size_t{4} << 20;
// Larger ones nobody uses go back to the system beyond this.
constexpr size_t kIdle = size_t{64} << 20;

std::string path_of(const Room& room, int rank, uint32_t block) {
  return room.directory() + "/b" + std::to_string(rank) + "." + std::to_string(block);
}

void* map(int fd, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

}  // namespace

std::shared_ptr<Mapping> Mapping::make(const std::string& path, size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return nullptr;
  // Allocated now: full shared memory is an error here, and a SIGBUS later.
  errno = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* data = errno == 0 ? map(fd, bytes) : MAP_FAILED;
  const int error = errno;
  close(fd);
  if (data != MAP_FAILED) return std::shared_ptr<Mapping>(new Mapping(data, bytes));
  unlink(path.c_str());
  errno = error;
  return nullptr;
}

std::shared_ptr<Mapping> Mapping::find(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat info{};
  void* data = MAP_FAILED;
  if (fd >= 0 && fstat(fd, &info) == 0 && info.st_size > 0) {
    data = map(fd, static_cast<size_t>(info.st_size));
  }
  if (fd >= 0) close(fd);
  if (data == MAP_FAILED) return nullptr;
  return std::shared_ptr<Mapping>(new Mapping(data, static_cast<size_t>(info.st_size)));
}

std::shared_ptr<Mapping> Mapping::zeros(size_t bytes) {
  const size_t some = std::max<size_t>(bytes, 1);
  void* data = mmap(nullptr, some, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  return std::shared_ptr<Mapping>(new Mapping(data, some));
}

Mapping::~Mapping() { munmap(data_, bytes_); }

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

const char* Others::read(int rank, uint32_t block, uint64_t offset, uint64_t bytes,
                         std::shared_ptr<Mapping>* hold) {
  const auto found = small_.find({rank, block});
  *hold = found != small_.end() ? found->second : Mapping::find(path_of(*room_, rank, block));
  if (*hold == nullptr || offset + bytes > (*hold)->bytes()) return nullptr;
  if (found == small_.end() && (*hold)->bytes() <= kSmall) small_[{rank, block}] = *hold;
  return (*hold)->data() + offset;
}

}  // namespace nccl
