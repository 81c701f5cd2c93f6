// Ids of copies. The highest four bits of an id say of which kind the copy is. For a plain copy bit
// 63 is set. Otherwise the four bits are 1 for a tracked copy, 2 for an enqueued one and 0 for a
// routed one.
//
//   plain    its id holds all that is known of it, so a small copy costs one driver call, no lock
//            and no memory. To wait for it is to wait for its stream.
//   tracked  a plain copy with an event of its own
//   enqueued a transfer over paths that the engine chose; all its copies are enqueued at the start
//   routed   a transfer that the engine's threads carry
#pragma once

#include <cstdint>

#include "driver/driver.h"

namespace glake::transfer {

// 1 | thread's own stream? | captured? | engine's own stream? | device (7 bits) | stream (53 bits)
//
// An engine's own stream ends with it. So the id of a copy there has no handle: it has the engine's
// number and the stream's direction.
class PlainId {
 public:
  explicit PlainId(uint64_t id) : id_(id) {}
  PlainId(int device, StreamHandle stream, bool captured)
      : id_(kPlain | (is_thread_stream(stream) ? kOwn : 0) | (captured ? kCaptured : 0) |
            static_cast<uint64_t>(device) << kBits | (stream & kMask)) {}
  static PlainId of_engine(int device, bool outward, uint64_t engine) {
    PlainId id(device, (engine << 1 | (outward ? 1 : 0)) & kMask, false);
    id.id_ |= kEngine;
    return id;
  }

  uint64_t id() const { return id_; }
  bool valid() const { return (id_ & kPlain) != 0; }
  bool captured() const { return (id_ & kCaptured) != 0; }
  int device() const { return static_cast<int>((id_ >> kBits) & 0x7f); }
  bool of_engine() const { return (id_ & kEngine) != 0; }
  uint64_t engine() const { return (id_ & kMask) >> 1; }
  bool outward() const { return (id_ & 1) != 0; }
  StreamHandle stream() const { return (id_ & kMask) | ((id_ & kOwn) != 0 ? kThreadStream : 0); }
  static bool fits(StreamHandle stream) { return ((stream & ~kThreadStream) & ~kMask) == 0; }

 private:
  static constexpr int kBits = 53;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static constexpr uint64_t kPlain = uint64_t{1} << 63, kOwn = uint64_t{1} << 62,
                            kCaptured = uint64_t{1} << 61, kEngine = uint64_t{1} << 60;
  uint64_t id_;
};

constexpr int kTrackedShift = 60;  // 0001 | number
constexpr uint64_t tracked_id(uint64_t number) { return uint64_t{1} << kTrackedShift | number; }
// 0010 | number
constexpr uint64_t enqueued_id(uint64_t number) { return uint64_t{2} << kTrackedShift | number; }

enum class CopyKind { kPlain, kTracked, kEnqueued, kRouted };
inline CopyKind kind_of(uint64_t id) {
  if (PlainId(id).valid()) return CopyKind::kPlain;
  switch (id >> kTrackedShift) {
    case 1:
      return CopyKind::kTracked;
    case 2:
      return CopyKind::kEnqueued;
    default:
      return CopyKind::kRouted;
  }
}

}  // namespace glake::transfer
