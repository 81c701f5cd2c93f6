// Relay buffers: pieces of glake's own memory on a GPU, or of its pinned host memory, which are
// lent to one chunk at a time. They are kept while transfers run and given back when the engine is
// idle. Only memory that is pinned on one socket stays until the end, because pinning it is slow.
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
  // `topology` may be null. A socket's host memory is placed on that socket if the system allows
  // it.
  Slots(Driver& driver, Allocator& allocator, const topology::Topology* topology,
        RemoteGpus& remote)
      : driver_(driver), allocator_(allocator), topology_(topology), remote_(remote) {}
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // Lends a buffer that no stream uses. Its size is a power of two, at least `bytes` and at least
  // `least`, which is a power of two itself. A spare buffer may be kLarger times as large as that.
  // Throws Error (GLAKE_OUT_OF_MEMORY...).
  Slot lend(Place place, Bytes bytes, Bytes least = TransferTuning::kLeastChunk);
  // Lends `count` such buffers. If new ones are needed on a GPU, they are waited for together.
  std::vector<Slot> lend_several(Place place, Bytes bytes, size_t count);
  // Lends pinned host memory that the relay service reaches.
  Slot lend_shared(Bytes bytes);
  void take_back(int place, Bytes bytes, Address at) noexcept;
  // Gives back the buffers that nobody holds. Called without the engine's locks; throws nothing.
  void trim() noexcept;
  // The number of buffers, lent or not, without those that are pinned on one socket.
  size_t count() const;
  // Ends the streams. Every slot must have come back before.
  void close();

 private:
  // The place and the size. The place is a GPU's number, or -1 for host memory on any socket. Each
  // number below -1 stands for one socket.
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
  mutable std::mutex mutex_;  // guards everything below; held across no driver call
  std::map<Key, std::vector<Address>> free_;
  std::vector<std::unique_ptr<PlacedBuffer>> placed_;
  std::set<int> elsewhere_;              // sockets on which the system places no memory
  std::map<int, StreamHandle> streams_;  // the stream for which a GPU's buffers are allocated
  size_t count_ = 0;
};

}  // namespace glake::transfer
