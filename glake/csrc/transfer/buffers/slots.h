// Relay buffers: pieces of glake's own memory of a GPU, or of its pinned host memory, lent to one
// chunk at a time. Kept while transfers run, given back when the engine is idle; but memory pinned
// on one socket, which is slow to pin, stays until the end.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "driver/driver.h"
#include "plan/plan.h"
#include "transfer/buffers/allocator.h"
#include "transfer/buffers/placed_buffer.h"
#include "transfer/buffers/slot.h"
#include "transfer/remote/remote_gpus.h"

namespace glake::transfer {

class Slots {
 public:
  // `topology` may be null. Host memory of a socket is had there, where the system allows it.
  Slots(Driver& driver, Allocator& allocator, const topology::Topology* topology,
        RemoteGpus& remote)
      : driver_(driver), allocator_(allocator), topology_(topology), remote_(remote) {}
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // A buffer of at least `bytes`, and of `least`, a power of two, that no stream uses. Throws Error
  // (GLAKE_OUT_OF_MEMORY...).
  Slot lend(Place place, Bytes bytes, Bytes least = TransferTuning::kLeastChunk);
  // `count` such buffers. Those of a GPU that have to be made are waited for together.
  std::vector<Slot> lend_several(Place place, Bytes bytes, size_t count);
  // Of pinned host memory that the relay service reaches.
  Slot lend_shared(Bytes bytes);
  void take_back(int place, Bytes bytes, Address at) noexcept;
  // Gives back what nobody holds. Called with no lock of the engine's held; throws nothing.
  void trim() noexcept;
  // Buffers in glake's books for this, lent or not; without those pinned on one socket.
  size_t count() const;
  // Ends the streams; every slot must have come back.
  void close();

 private:
  // A GPU; -1: host memory wherever the driver pins it; below: of one socket. And the size.
  using Key = std::pair<int, Bytes>;
  static constexpr int kAnyHost = -1, kSharedHost = -1000;
  int place_of(const Place& place) const;
  Address fresh(int* place, Bytes bytes);
  Address fresh_host(int socket, Bytes bytes);
  std::vector<Address> fresh_device(int gpu, Bytes bytes, size_t count);
  StreamHandle stream_of(int gpu);
  void keep_room(int place, Bytes bytes);
  void give(int place, Address at);

  Driver& driver_;
  Allocator& allocator_;
  const topology::Topology* const topology_;
  RemoteGpus& remote_;
  mutable std::mutex mutex_;  // of everything below; held across no driver call
  std::map<Key, std::vector<Address>> free_;
  std::vector<std::unique_ptr<PlacedBuffer>> placed_;
  std::set<int> elsewhere_;              // sockets on which no memory is to be had
  std::map<int, StreamHandle> streams_;  // the stream a GPU's buffers are allocated for
  size_t count_ = 0;
};

}  // namespace glake::transfer
