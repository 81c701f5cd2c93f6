// The simulated machine's physical memory: extents of device memory, their capacity, and who holds
// them. It is private to the process, or shared by every process that names the same machine.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "exports.h"
#include "machine_directory.h"
#include "options.h"
#include "shared_links.h"
#include "types.h"

namespace simcuda {

constexpr uint32_t kMaxExtents = 1u << 22;

// One physical allocation. `holders` has a bit for every process with a handle or a mapping of it.
struct Extent {
  uint64_t offset;  // in the memory file
  uint64_t bytes;   // 0: free
  uint64_t holders;
  uint32_t generation;
  uint32_t next_free;
  int32_t device;
  uint32_t exported;  // other processes may have descriptors
};

// It is in anonymous memory, or in the machine's state file.
struct MachineState {
  uint64_t magic;
  uint64_t memory_bytes;  // of each device
  int32_t devices;
  int32_t phantom;
  int32_t pcie_peers;     // the option, as a number
  pthread_mutex_t mutex;  // robust, shared between processes
  uint64_t used[kMaxDevices];
  uint64_t id;  // random; tells one life of a machine from another
  uint64_t next_offset;
  uint32_t extents;  // slots ever used
  // Free extents of one granule, which keep their offset, so that neighbours stay neighbours.
  uint32_t free_granule;
  uint32_t free_slot;  // other free extents
  Extent extent[kMaxExtents];
};

class Machine {
 public:
  static CUresult open(const Options& options, int devices, std::unique_ptr<Machine>* machine);
  ~Machine();

  // Takes `bytes` (a multiple of 64 KiB) on `device`. Without `backed` they are only counted.
  CUresult acquire(int device, uint64_t bytes, uint32_t* extent, bool backed = true);
  // This process no longer uses the extent. The last holder's call frees it.
  void drop(uint32_t extent);
  // Makes this process a holder, if the extent is still the one that is meant.
  bool hold(uint32_t extent, uint32_t generation);
  // The first call makes a descriptor that names the extent in any process of this machine. The
  // second one finds the extent of a descriptor.
  CUresult export_fd(uint32_t extent, int* fd);
  CUresult import_fd(int fd, uint32_t* extent);

  const Extent& at(uint32_t extent) const { return state_->extent[extent]; }
  uint64_t capacity() const { return state_->memory_bytes; }
  uint64_t used(int device);
  int memory_fd() const { return memory_fd_; }  // -1: phantom
  uint64_t id() const { return id_; }
  bool shared() const { return directory_.shared(); }
  // The clock and the links of a shared machine (option pace).
  CUresult share_links(const Options& options, const Topology& topology,
                       std::unique_ptr<SharedLinks>* links);
  void leave();  // gives back what this process holds; the last process removes the files

 private:
  class Guard;
  Machine() = default;
  CUresult create_private(const Options& options, int devices);
  CUresult join_shared(const Options& options, int devices);
  CUresult open_files();
  CUresult enter_state(const Options& options, int devices, bool first);
  std::string host_refused(int error) const;
  // The position of an extent's record in the state file.
  static off_t record_at(uint32_t extent) {
    return static_cast<off_t>(offsetof(MachineState, extent) + extent * sizeof(Extent));
  }
  void init_state(const Options& options, int devices, bool shared);
  uint32_t new_extent(uint64_t bytes);
  void free_extent(uint32_t extent);
  bool export_alive(uint32_t extent);
  void reclaim();  // frees what dead processes and closed descriptors held
  void forget_member(int slot);
  void recount();

  MachineState* state_ = nullptr;
  int memory_fd_ = -1;
  int state_fd_ = -1;
  uint64_t id_ = 0;
  bool any_exported_ = false;
  MachineDirectory directory_;  // of a shared machine
  std::unique_ptr<Exports> exports_;
};

}  // namespace simcuda
