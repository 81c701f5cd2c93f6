#include "room.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "error.h"
#include "simcuda/driver/collective.h"

namespace nccl {
namespace {

std::mutex rooms_mutex;
std::map<std::string, std::weak_ptr<Room>>& rooms() {
  static auto* map = new std::map<std::string, std::weak_ptr<Room>>;
  return *map;
}

// A name of this process. It is not the process's number, which another process may have in another
// container.
uint64_t this_process() {
  static const uint64_t number = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return number;
}

ncclResult system_error(const std::string& what) {
  return fail(ncclSystemError, what + ": " + strerror(errno));
}

int open_private(const std::string& path, int flags) {
  return open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
}

struct flock byte_lock(int rank, int count, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = count;
  return lock;
}

// Whether another process holds one of these bytes.
bool held(int fd, int rank, int count) {
  struct flock lock = byte_lock(rank, count, F_WRLCK);
  return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void remove_room(const std::string& directory) {
  DIR* listing = opendir(directory.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = readdir(listing)) {
    if (entry->d_name[0] != '.') unlinkat(dirfd(listing), entry->d_name, 0);
  }
  closedir(listing);
  rmdir(directory.c_str());
}

// Lets one process at a time make, leave or sweep rooms. It locks the directory that holds them, so
// that no lock file is left behind.
class Door {
 public:
  Door() : fd_(::open(room_parent().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr int kTries = 10'000;  // each of a millisecond
    for (int i = 0; fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0; ++i) {
      if (i < kTries && (errno == EWOULDBLOCK || errno == EINTR)) {
        usleep(1000);
        continue;
      }
      close(fd_);
      fd_ = -1;
    }
  }
  ~Door() {
    if (fd_ >= 0) close(fd_);
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

bool mine(const std::string& directory) {
  struct stat info{};
  return lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

// Removes the rooms of processes that were killed. Rooms of this process are not touched, because
// its own locks are not visible to it, and closing a file would drop them.
void sweep() {
  DIR* listing = opendir(room_parent().c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    const std::string path = room_parent() + "/" + name;
    if (name.rfind(room_prefix(), 0) != 0 || !mine(path)) continue;
    const auto known = rooms().find(name.substr(room_prefix().size()));
    if (known != rooms().end() && !known->second.expired()) continue;
    const int fd = open_private(path + "/page", 0);
    const bool dead = fd < 0 || !held(fd, 0, kMostRanks + 1);
    if (fd >= 0) close(fd);
    if (dead) remove_room(path);
  }
  closedir(listing);
}

}  // namespace

std::string room_parent() {
  const char* option = std::getenv("GLAKE_SIM_MACHINE_DIR");
  return option == nullptr || option[0] == 0 ? "/dev/shm" : option;
}

std::string room_prefix() { return "glake-nccl-" + std::to_string(geteuid()) + "-"; }

ncclResult Room::open(const std::string& name, int size, std::shared_ptr<Room>* room) {
  const std::lock_guard<std::mutex> lock(rooms_mutex);
  std::weak_ptr<Room>& known = rooms()[name];
  *room = known.lock();
  if (*room == nullptr) {
    std::shared_ptr<Room> made(new Room);
    made->name_ = name;
    made->size_ = size;
    const ncclResult result = made->open_files(room_parent(), size);
    if (result != ncclSuccess) return result;
    known = *room = made;
  }
  const int said = (*room)->page_->size;
  if (said == size) return ncclSuccess;
  room->reset();
  return fail(ncclInvalidArgument, "a communicator of " + std::to_string(size) +
                                       " ranks: another rank of the same id says " +
                                       std::to_string(said));
}

ncclResult Room::open_files(const std::string& parent, int size) {
  const Door door;
  if (!door.ok()) return system_error("a lock on " + parent);
  sweep();
  const std::string directory = parent + "/" + room_prefix() + name_;
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return system_error(directory);
  if (!mine(directory)) {
    return fail(ncclSystemError, directory + " is not a private directory (0700) of this user");
  }
  directory_ = directory;
  fd_ = open_private(directory + "/page", O_CREAT);
  if (fd_ < 0 || ftruncate(fd_, sizeof(Page)) != 0) return system_error(directory);
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return system_error(directory);
  page_ = static_cast<Page*>(mapped);
  if (page_->magic == 0) {
    page_->size = size;
    page_->magic = kMagic;
  }
  if (page_->magic != kMagic) {
    return fail(ncclSystemError, directory +
                                     " is another version's (GLAKE_SIM_MACHINE_DIR names "
                                     "another place)");
  }
  // The byte behind those of the ranks says that this process is here, also before one of its ranks
  // has entered.
  struct flock lock = byte_lock(kMostRanks, 1, F_RDLCK);
  return fcntl(fd_, F_SETLK, &lock) == 0 ? ncclSuccess : system_error(directory);
}

// The last process removes the files.
void Room::depart() {
  if (fd_ < 0) return;
  const Door door;
  const bool last = !held(fd_, 0, kMostRanks + 1);
  close(std::exchange(fd_, -1));
  if (last) remove_room(directory_);
}

Room::~Room() {
  depart();
  if (page_ != nullptr) munmap(page_, sizeof(Page));
}

ncclResult Room::enter(int rank, int device) {
  Rank& place = page_->rank[rank];
  struct flock lock = byte_lock(rank, 1, F_WRLCK);
  Presence absent = Presence::kAbsent;
  if (fcntl(fd_, F_SETLK, &lock) != 0 || place.presence.load() != absent) {
    return fail(ncclInvalidUsage, "rank " + std::to_string(rank) + " of this id is taken");
  }
  const std::string machine = simcuda_collective_machine();
  place.process = this_process();
  place.machine = machine.empty() ? this_process() : std::hash<std::string>()(machine);
  place.device = simcuda_collective_gpu(device);
  ++entered_;
  place.presence = Presence::kJoined;
  ring_all(rank);
  return ncclSuccess;
}

void Room::leave(int rank, Presence how) {
  page_->rank[rank].presence = how;
  struct flock lock = byte_lock(rank, 1, F_UNLCK);
  fcntl(fd_, F_SETLK, &lock);
  ring_all(rank);
  if (--entered_ == 0) depart();
}

bool Room::alive(int rank) const {
  const Rank& place = page_->rank[rank];
  if (place.presence != Presence::kJoined) return false;
  return place.process == this_process() || held(fd_, rank, 1);
}

void Room::ring(int rank) const {
  std::atomic<uint32_t>& word = page_->rank[rank].bell;
  word.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Room::ring_all(int but) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != but) ring(rank);
  }
}

void Room::listen(int rank, uint32_t seen, uint64_t microseconds) const {
  const timespec timeout{static_cast<time_t>(microseconds / 1'000'000),
                         static_cast<long>(microseconds % 1'000'000 * 1000)};
  syscall(SYS_futex, &page_->rank[rank].bell, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace nccl
