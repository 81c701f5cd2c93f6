// A machine several processes share: joining, leaving, reclaiming from the dead, and descriptors
// that stand for an extent in any of its processes.
//
// A member holds a POSIX record lock on its byte of the members file, so its death is known
// however it died. An exported descriptor is an open file description of the exports file: its
// offset names the extent, and an OFD lock on that byte says that it is still open somewhere.
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "machine.h"
#include "machine_guard.h"

namespace simcuda {
namespace {

constexpr uint64_t kMagic = 0x676c616b65730003;
constexpr const char* kFiles[] = {"members", "state", "exports", "memory", "links", "lock"};

int open_file(const std::string& path) {
  return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

std::string prefix() { return "glake-sim-" + std::to_string(geteuid()) + "-"; }

// One process at a time joins or leaves. Holds the directory's lock file; ok() is false when it
// cannot be had, or the directory went away meanwhile.
class JoinLock {
 public:
  JoinLock(const std::string& directory, bool block)
      : fd_(open_file(directory + "/lock")), path_(directory + "/lock") {
    if (fd_ >= 0 && flock(fd_, LOCK_EX | (block ? 0 : LOCK_NB)) != 0) {
      close(fd_);
      fd_ = -1;
    }
  }
  ~JoinLock() {
    if (fd_ >= 0) close(fd_);
  }
  JoinLock(const JoinLock&) = delete;
  JoinLock& operator=(const JoinLock&) = delete;
  bool ok() const {
    struct stat mine{}, there{};
    return fd_ >= 0 && fstat(fd_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
           mine.st_ino == there.st_ino;
  }

 private:
  int fd_;
  std::string path_;
};

bool byte_locked(int fd, off_t byte, off_t length) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = length;
  return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool lock_byte(int fd, off_t byte, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

void remove_files(const std::string& directory) {
  for (const char* file : kFiles) unlink((directory + "/" + file).c_str());
  rmdir(directory.c_str());
}

// Machines whose last process was killed leave files behind: whoever joins next removes them.
void sweep(const std::string& parent, const std::string& mine) {
  DIR* listing = opendir(parent.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = readdir(listing)) {
    const std::string path = parent + "/" + entry->d_name;
    if (std::string(entry->d_name).rfind(prefix(), 0) != 0 || path == mine) continue;
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
      continue;
    }
    const JoinLock lock(path, false);
    if (!lock.ok()) continue;
    const int members = open((path + "/members").c_str(), O_RDWR | O_CLOEXEC);
    const bool dead = members < 0 || !byte_locked(members, 0, kMaxProcesses);
    if (members >= 0) close(members);
    if (dead) remove_files(path);
  }
  closedir(listing);
}

// Where the file system of `directory` is mounted.
std::string mount_of(const std::string& directory) {
  struct stat mine{}, above{};
  std::string at = std::filesystem::weakly_canonical(directory);
  if (stat(at.c_str(), &mine) != 0) return directory;
  for (;;) {
    const std::string parent = std::filesystem::path(at).parent_path();
    if (parent == at || stat(parent.c_str(), &above) != 0 || above.st_dev != mine.st_dev) return at;
    at = parent;
  }
}

// How to have more where `directory` is. Docker gives a container 64 MiB of /dev/shm.
std::string more_room(const std::string& directory) {
  const std::string mounted = mount_of(directory);
  struct statfs kind{};
  if (statfs(mounted.c_str(), &kind) != 0 || kind.f_type != TMPFS_MAGIC) {
    return "free space in " + mounted;
  }
  const char* docker = mounted == "/dev/shm" ? "docker run --shm-size=8g, or " : "";
  return "make it larger (" + std::string(docker) + "mount -o remount,size=8G " + mounted + ")";
}

}  // namespace

std::string Machine::full_text(const std::string& directory) {
  struct statvfs fs{};
  if (statvfs(directory.c_str(), &fs) != 0) return "";
  auto mib = [&](uint64_t blocks) { return std::to_string(blocks * fs.f_frsize >> 20) + " MiB"; };
  return ". The file system of " + directory + " has " + mib(fs.f_blocks) + ", " +
         mib(fs.f_bavail) +
         " free, and holds a shared simulated machine's memory: " + more_room(directory) +
         ", or name another directory (GLAKE_SIM_MACHINE_DIR)";
}

CUresult Machine::os_error(const std::string& what, const std::string& directory) {
  const int error = errno;
  return fail(CUDA_ERROR_OPERATING_SYSTEM,
              what + ": " + strerror(error) + (error == ENOSPC ? full_text(directory) : ""));
}

CUresult Machine::join_shared(const Options& options, int devices) {
  const std::string parent = options.machine_dir.empty() ? "/dev/shm" : options.machine_dir;
  const std::string directory = parent + "/" + prefix() + options.machine;
  sweep(parent, directory);
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return os_error(directory, parent);
    }
    struct stat info{};
    if (lstat(directory.c_str(), &info) != 0) continue;
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
      return fail(CUDA_ERROR_NOT_PERMITTED,
                  directory + " is not a private directory (0700) of this user");
    }
    const JoinLock lock(directory, true);
    if (!lock.ok()) continue;
    const CUresult result = open_files(directory);
    if (result != CUDA_SUCCESS) return result;
    const bool first = !byte_locked(members_fd_, 0, kMaxProcesses);
    return enter_state(options, devices, first);
  }
  return fail(CUDA_ERROR_OPERATING_SYSTEM, directory + " comes and goes");
}

CUresult Machine::open_files(const std::string& directory) {
  members_fd_ = open_file(directory + "/members");
  exports_fd_ = open_file(directory + "/exports");
  memory_fd_ = open_file(directory + "/memory");
  const int state = open_file(directory + "/state");
  void* mapped = MAP_FAILED;
  if (state >= 0 && ftruncate(state, sizeof(MachineState)) == 0) {
    mapped = mmap(nullptr, sizeof(MachineState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                  state, 0);
  }
  state_fd_ = state;
  // Committed as it is used, so that a full file system is an error here and never a fault.
  const bool room = mapped != MAP_FAILED && fallocate(state, 0, 0, record_at(1)) == 0;
  if (!room || members_fd_ < 0 || exports_fd_ < 0 || memory_fd_ < 0) {
    const int error = errno;
    if (mapped != MAP_FAILED) munmap(mapped, sizeof(MachineState));
    errno = error;
    return os_error(directory, directory);
  }
  state_ = static_cast<MachineState*>(mapped);
  directory_ = directory;
  return CUDA_SUCCESS;
}

CUresult Machine::enter_state(const Options& options, int devices, bool first) {
  if (first) {
    // Nobody is here: whatever the files hold is from the dead.
    unlink((directory_ + "/links").c_str());
    madvise(state_, sizeof(MachineState), MADV_REMOVE);
    if (ftruncate(memory_fd_, 0) != 0 || ftruncate(memory_fd_, off_t{1} << 46) != 0) {
      return os_error("memory file", directory_);
    }
    if (fallocate(state_fd_, 0, 0, record_at(1)) != 0) return os_error("state file", directory_);
    init_state(options, devices, true);
    state_->id = std::random_device{}() | 1;
    state_->magic = kMagic;
  }
  if (state_->magic != kMagic || state_->devices != devices ||
      state_->memory_bytes != options.memory || (state_->phantom != 0) != options.phantom) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "machine " + options.machine + " runs with " + std::to_string(state_->devices) +
                    " devices of " + std::to_string(state_->memory_bytes) +
                    " bytes; this process asked for another (or another version of simcuda)");
  }
  if (options.phantom) {
    close(memory_fd_);
    memory_fd_ = -1;
  }
  id_ = state_->id;
  for (slot_ = 0; slot_ < kMaxProcesses; ++slot_) {
    if (!byte_locked(members_fd_, slot_, 1) && lock_byte(members_fd_, slot_, F_WRLCK)) break;
  }
  if (slot_ == kMaxProcesses) {
    directory_.clear();  // not a member: nothing to leave
    return fail(CUDA_ERROR_INVALID_VALUE, "the machine has no room for another process");
  }
  joined_ = true;
  Guard guard(this);
  forget_member(slot_);  // whoever had the slot before is dead
  return CUDA_SUCCESS;
}

CUresult Machine::share_links(const Options& options, const Topology& topology,
                              std::unique_ptr<SharedLinks>* links) {
  if (!shared()) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "option pace is of a machine that processes share: name it (option machine)");
  }
  if (options.threaded || options.polled) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "option pace goes with schedule lazy and completion instant");
  }
  const JoinLock lock(directory_, true);
  return SharedLinks::open(directory_, options.pace, slot_, topology, links);
}

void Machine::leave() {
  if (!joined_) return;
  joined_ = false;
  const JoinLock lock(directory_, true);
  {
    Guard guard(this);
    forget_member(slot_);
  }
  lock_byte(members_fd_, slot_, F_UNLCK);
  if (lock.ok() && !byte_locked(members_fd_, 0, kMaxProcesses)) remove_files(directory_);
}

bool Machine::member_alive(int slot) { return slot == slot_ || byte_locked(members_fd_, slot, 1); }

void Machine::forget_member(int slot) {
  for (uint32_t i = 1; i < state_->extents; ++i) {
    Extent& extent = state_->extent[i];
    if (extent.bytes == 0) continue;
    extent.holders &= ~(uint64_t{1} << slot);
    if (extent.holders == 0 && !export_alive(i)) free_extent(i);
  }
}

void Machine::reclaim() {
  if (shared()) {
    for (int slot = 0; slot < kMaxProcesses; ++slot) {
      if (!member_alive(slot)) forget_member(slot);
    }
    return;
  }
  for (uint32_t i = 1; any_exported_ && i < state_->extents; ++i) {
    const Extent& extent = state_->extent[i];
    if (extent.bytes != 0 && extent.holders == 0 && !export_alive(i)) free_extent(i);
  }
}

bool Machine::export_alive(uint32_t index) {
  if (state_->extent[index].exported == 0) return false;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = index;
  lock.l_len = 1;
  if (fcntl(exports_fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) return true;
  state_->extent[index].exported = 0;
  return false;
}

CUresult Machine::export_fd(uint32_t index, int* result) {
  const std::string path =
      shared() ? directory_ + "/exports" : "/proc/self/fd/" + std::to_string(exports_fd_);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return os_error("cuMemExportToShareableHandle", directory_);
  struct flock lock{};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = index;
  lock.l_len = 1;
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0 || lseek(fd, index, SEEK_SET) != index) {
    const CUresult error = os_error("cuMemExportToShareableHandle", directory_);
    close(fd);
    return error;
  }
  Guard guard(this);
  state_->extent[index].exported = 1;
  any_exported_ = true;
  *result = fd;
  return CUDA_SUCCESS;
}

CUresult Machine::import_fd(int fd, uint32_t* extent) {
  struct stat theirs{}, ours{};
  if (fstat(fd, &theirs) != 0 || fstat(exports_fd_, &ours) != 0 || theirs.st_ino != ours.st_ino ||
      theirs.st_dev != ours.st_dev) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "the descriptor is not an allocation of this simulated machine (processes share "
                "one by option machine)");
  }
  const off_t index = lseek(fd, 0, SEEK_CUR);
  if (index <= 0 || index >= static_cast<off_t>(kMaxExtents)) {
    return fail(CUDA_ERROR_INVALID_VALUE, "the descriptor names no allocation");
  }
  *extent = static_cast<uint32_t>(index);
  return CUDA_SUCCESS;
}

}  // namespace simcuda
