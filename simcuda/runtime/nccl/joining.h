// Makes communicators. Ranks enter, and then wait for each other. In a group all of a process's
// ranks enter before any of them waits, so that one thread can serve several devices.
#pragma once

#include <memory>
#include <string>

#include "engine.h"

// The communicator that a caller has.
struct ncclComm {
  std::shared_ptr<nccl::Engine> engine;
};

namespace nccl {

class Joining {
 public:
  // A rank of a new communicator.
  static Joining rank(ncclComm** made, std::string name, int size, int rank, int device);
  // A split of `parent`. A negative color: this rank joins none.
  static Joining split(ncclComm** made, std::shared_ptr<Engine> parent, int color, int key);

  ncclResult publish();  // for a split: tells the others this rank's color and key
  ncclResult enter();
  ncclResult wait();
  ncclResult run();

 private:
  ncclResult choose();  // of a split: computes name, size and rank
  ncclResult check_devices() const;
  std::string missing() const;

  ncclComm** made_ = nullptr;
  std::string name_;
  int size_ = 0, rank_ = 0, device_ = 0;
  std::shared_ptr<Engine> parent_;
  int color_ = 0, key_ = 0;
  uint64_t turn_ = 0;
  std::shared_ptr<Room> room_;
};

// The name of the room for an id; empty: the id is not of ncclGetUniqueId.
std::string name_of(const ncclUniqueId& id);
void make_id(ncclUniqueId* id);

// The calling thread's device; negative: there is none, and the last error says why.
int current_device();

// Ends a communicator and returns its error. The communicator is gone afterwards.
ncclResult end(ncclComm* comm, Presence how);

}  // namespace nccl
