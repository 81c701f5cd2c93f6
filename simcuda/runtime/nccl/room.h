// The place where the ranks of a communicator meet. It is a directory of shared memory, private to
// the user and named by the communicator's id. Ranks of one process share one Room.
#pragma once

#include <memory>
#include <string>

#include "nccl.h"
#include "page.h"

namespace nccl {

class Room {
 public:
  // Opens or makes the room `name` for `size` ranks. First removes rooms whose processes are dead.
  static ncclResult open(const std::string& name, int size, std::shared_ptr<Room>* room);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  Page* page() const { return page_; }
  const std::string& directory() const { return directory_; }
  const std::string& name() const { return name_; }

  // Takes the place of `rank`. ncclInvalidUsage if that is taken.
  ncclResult enter(int rank, int device);
  void leave(int rank, Presence how);
  // False once the rank's process has died, or it has left.
  bool alive(int rank) const;

  void ring(int rank) const;
  void ring_all(int but) const;
  // Waits until the bell of `rank` differs from `seen`, or until `microseconds` have passed.
  void listen(int rank, uint32_t seen, uint64_t microseconds) const;
  uint32_t bell(int rank) const { return page_->rank[rank].bell.load(std::memory_order_acquire); }

 private:
  Room() = default;
  ncclResult open_files(const std::string& parent, int size);
  void depart();

  Page* page_ = nullptr;
  int fd_ = -1;  // of the page; a lock on byte r says that rank r's process lives
  int size_ = 0;
  std::atomic<int> entered_{0};  // ranks of this process that have entered
  std::string name_, directory_;
};

// The folder of rooms (GLAKE_SIM_MACHINE_DIR, or /dev/shm), and the start of their names.
std::string room_parent();
std::string room_prefix();

}  // namespace nccl
