#include "machine.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/numbers.h"

namespace simcuda {
namespace {

constexpr uint64_t kMagic = 0x676c616b65730004;

}  // namespace

// The lock of the state. A private machine needs none, because the driver's own mutex is held.
class Machine::Guard {
 public:
  explicit Guard(Machine* machine) : machine_(machine) {
    if (!machine->shared()) return;
    if (pthread_mutex_lock(&machine->state_->mutex) == EOWNERDEAD) {
      pthread_mutex_consistent(&machine->state_->mutex);
      machine->recount();  // its owner died during a change
    }
  }
  ~Guard() {
    if (machine_->shared()) pthread_mutex_unlock(&machine_->state_->mutex);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Machine* machine_;
};

CUresult Machine::open(const Options& options, int devices, std::unique_ptr<Machine>* machine) {
  std::unique_ptr<Machine> made(new Machine);
  const CUresult result = options.machine.empty() ? made->create_private(options, devices)
                                                  : made->join_shared(options, devices);
  if (result == CUDA_SUCCESS) *machine = std::move(made);
  return result;
}

Machine::~Machine() {
  if (state_ == nullptr) return;
  if (shared()) leave();
  munmap(state_, sizeof(MachineState));
  for (const int fd : {memory_fd_, state_fd_}) {
    if (fd >= 0) close(fd);
  }
}

void Machine::init_state(const Options& options, int devices, bool shared) {
  state_->devices = devices;
  state_->phantom = options.phantom;
  state_->pcie_peers = static_cast<int32_t>(options.pcie_peers);
  state_->memory_bytes = options.memory;
  state_->extents = 1;  // 0 ends the free lists
  if (!shared) return;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&state_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

CUresult Machine::create_private(const Options& options, int devices) {
  void* state = mmap(nullptr, sizeof(MachineState), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (state == MAP_FAILED) return no_addresses(sizeof(MachineState));
  state_ = static_cast<MachineState*>(state);
  init_state(options, devices, false);
  id_ = static_cast<uint64_t>(getpid());
  const int exports = memfd_create("simcuda-exports", MFD_CLOEXEC);
  if (exports >= 0) exports_ = std::make_unique<Exports>(exports, "");
  if (!options.phantom) memory_fd_ = memfd_create("simcuda-memory", MFD_CLOEXEC);
  if (exports < 0 || (!options.phantom && memory_fd_ < 0)) {
    return fail(CUDA_ERROR_OPERATING_SYSTEM, std::string("memfd_create: ") + strerror(errno));
  }
  if (memory_fd_ >= 0 && ftruncate(memory_fd_, off_t{1} << 46) != 0) {
    return fail(CUDA_ERROR_OPERATING_SYSTEM, std::string("ftruncate: ") + strerror(errno));
  }
  return CUDA_SUCCESS;
}

CUresult Machine::join_shared(const Options& options, int devices) {
  return directory_.join(options, [&](bool first) {
    const CUresult result = open_files();
    return result == CUDA_SUCCESS ? enter_state(options, devices, first) : result;
  });
}

CUresult Machine::open_files() {
  const int exports = directory_.open("exports");
  if (exports >= 0) exports_ = std::make_unique<Exports>(exports, directory_.path());
  memory_fd_ = directory_.open("memory");
  state_fd_ = directory_.open("state");
  void* mapped = MAP_FAILED;
  if (state_fd_ >= 0 && ftruncate(state_fd_, sizeof(MachineState)) == 0) {
    mapped = mmap(nullptr, sizeof(MachineState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                  state_fd_, 0);
  }
  // Memory is committed now, so that a full file system is an error here and never a fault.
  const bool room = mapped != MAP_FAILED && fallocate(state_fd_, 0, 0, record_at(1)) == 0;
  if (!room || exports < 0 || memory_fd_ < 0) {
    const int error = errno;
    if (mapped != MAP_FAILED) munmap(mapped, sizeof(MachineState));
    errno = error;
    return os_error(directory_.path(), directory_.path());
  }
  state_ = static_cast<MachineState*>(mapped);
  return CUDA_SUCCESS;
}

CUresult Machine::enter_state(const Options& options, int devices, bool first) {
  if (first) {
    // No process is here, so the files hold only what dead processes left.
    directory_.remove("links");
    madvise(state_, sizeof(MachineState), MADV_REMOVE);
    if (ftruncate(memory_fd_, 0) != 0 || ftruncate(memory_fd_, off_t{1} << 46) != 0) {
      return os_error("memory file", directory_.path());
    }
    if (fallocate(state_fd_, 0, 0, record_at(1)) != 0)
      return os_error("state file", directory_.path());
    init_state(options, devices, true);
    state_->id = std::random_device{}() | 1;
    state_->magic = kMagic;
  }
  if (state_->magic != kMagic || state_->devices != devices ||
      state_->memory_bytes != options.memory || (state_->phantom != 0) != options.phantom) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "machine " + options.machine + " runs with " + std::to_string(state_->devices) +
                    " devices of " + std::to_string(state_->memory_bytes) +
                    " bytes; this process asked for " + std::to_string(devices) + " of " +
                    std::to_string(options.memory) +
                    " (options devices and memory), for another option phantom, or has another "
                    "version of simcuda");
  }
  if (state_->pcie_peers != static_cast<int32_t>(options.pcie_peers)) {
    return fail(
        CUDA_ERROR_INVALID_VALUE,
        "machine " + options.machine +
            " runs with another option pcie_peers "
            "(GLAKE_SIM_PCIE_PEERS): give its processes the same value, or name another machine");
  }
  if (options.phantom) {
    close(memory_fd_);
    memory_fd_ = -1;
  }
  id_ = state_->id;
  if (!directory_.take_slot()) {
    return fail(CUDA_ERROR_INVALID_VALUE, "the machine has no room for another process");
  }
  Guard guard(this);
  forget_member(directory_.slot());  // the former owner of the slot is dead
  return CUDA_SUCCESS;
}

CUresult Machine::share_links(const Options& options, const Topology& topology,
                              std::unique_ptr<SharedLinks>* links) {
  if (!shared()) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "option pace needs a machine that processes share: name it by option machine "
                "(GLAKE_SIM_MACHINE=name)");
  }
  if (options.threaded() || options.polled()) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "option pace goes with schedule lazy and completion instant");
  }
  return directory_.alone([&] {
    return SharedLinks::open(directory_.path(), options.pace, directory_.slot(), topology, links);
  });
}

void Machine::leave() {
  directory_.leave([&] {
    Guard guard(this);
    forget_member(directory_.slot());
  });
}

uint32_t Machine::new_extent(uint64_t bytes) {
  uint32_t* list = bytes == kGranule ? &state_->free_granule : &state_->free_slot;
  if (*list != 0) {
    const uint32_t index = *list;
    *list = state_->extent[index].next_free;
    if (bytes == kGranule) return index;
    state_->extent[index].offset = state_->next_offset;
    state_->next_offset += (bytes + kGranule - 1) / kGranule * kGranule;
    return index;
  }
  if (state_->extents == kMaxExtents) return 0;
  const uint32_t index = state_->extents++;
  state_->extent[index].offset = state_->next_offset;
  state_->next_offset += (bytes + kGranule - 1) / kGranule * kGranule;
  return index;
}

std::string Machine::host_refused(int error) const {
  std::string text = std::string("the host cannot back device memory: ") + strerror(error);
  return error == ENOSPC && shared() ? text + full_text(directory_.path()) : text;
}

CUresult Machine::acquire(int device, uint64_t bytes, uint32_t* extent, bool backed) {
  Guard guard(this);
  if (state_->used[device] + bytes > state_->memory_bytes) reclaim();
  if (state_->used[device] + bytes > state_->memory_bytes) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY,
                glake::device_text(device) + " has " +
                    std::to_string(state_->memory_bytes - state_->used[device]) + " of " +
                    std::to_string(state_->memory_bytes) + " bytes free, " + std::to_string(bytes) +
                    " wanted (option memory)");
  }
  // An extent that is used for the first time needs memory for its record. It is committed now, so
  // that a full file system is an error here and never a fault.
  if (shared() && fallocate(state_fd_, 0, record_at(state_->extents), sizeof(Extent)) != 0) {
    return fail(CUDA_ERROR_OUT_OF_MEMORY, host_refused(errno));
  }
  const uint32_t index = new_extent(bytes);
  if (index == 0) return fail(CUDA_ERROR_OUT_OF_MEMORY, "simcuda's table of extents is full");
  Extent& made = state_->extent[index];
  made.bytes = bytes;
  made.device = device;
  // Memory is committed now, so that running out is an error here and never a fault in a copy.
  if (backed && memory_fd_ >= 0 &&
      fallocate(memory_fd_, 0, static_cast<off_t>(made.offset), static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    state_->used[device] += bytes;
    free_extent(index);
    return fail(CUDA_ERROR_OUT_OF_MEMORY, host_refused(error));
  }
  made.holders = uint64_t{1} << directory_.slot();
  made.exported = 0;
  ++made.generation;
  state_->used[device] += bytes;
  *extent = index;
  return CUDA_SUCCESS;
}

void Machine::free_extent(uint32_t index) {
  Extent& extent = state_->extent[index];
  if (memory_fd_ >= 0) {
    fallocate(memory_fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(extent.offset), static_cast<off_t>(extent.bytes));
  }
  state_->used[extent.device] -= extent.bytes;
  uint32_t* list = extent.bytes == kGranule ? &state_->free_granule : &state_->free_slot;
  extent.bytes = 0;
  extent.holders = 0;
  extent.next_free = *list;
  *list = index;
}

void Machine::drop(uint32_t index) {
  Guard guard(this);
  Extent& extent = state_->extent[index];
  extent.holders &= ~(uint64_t{1} << directory_.slot());
  if (extent.holders == 0 && !export_alive(index)) free_extent(index);
}

bool Machine::hold(uint32_t index, uint32_t generation) {
  Guard guard(this);
  if (index == 0 || index >= state_->extents) return false;
  Extent& extent = state_->extent[index];
  if (extent.bytes == 0 || extent.generation != generation) return false;
  if (extent.holders == 0 && !export_alive(index)) return false;
  extent.holders |= uint64_t{1} << directory_.slot();
  return true;
}

// Adds up again what is in use, and rebuilds the free lists.
void Machine::recount() {
  std::fill_n(state_->used, kMaxDevices, 0);
  state_->free_granule = state_->free_slot = 0;
  for (uint32_t i = 1; i < state_->extents; ++i) {
    Extent& extent = state_->extent[i];
    if (extent.bytes != 0) {
      state_->used[extent.device] += extent.bytes;
    } else {
      extent.next_free = state_->free_slot;
      state_->free_slot = i;
    }
  }
}

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
      if (!directory_.member_alive(slot)) forget_member(slot);
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
  if (exports_->open_somewhere(index)) return true;
  state_->extent[index].exported = 0;
  return false;
}

CUresult Machine::export_fd(uint32_t index, int* fd) {
  const CUresult result = exports_->make(index, fd);
  if (result != CUDA_SUCCESS) return result;
  Guard guard(this);
  state_->extent[index].exported = 1;
  any_exported_ = true;
  return CUDA_SUCCESS;
}

CUresult Machine::import_fd(int fd, uint32_t* extent) { return exports_->find(fd, extent); }

uint64_t Machine::used(int device) {
  Guard guard(this);
  if (shared() || any_exported_) reclaim();
  return state_->used[device];
}

}  // namespace simcuda
