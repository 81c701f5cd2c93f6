// A plain copy with an event behind it, as its caller sees it.
#pragma once

#include <string>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"
#include "transfer/call/tracked_copies.h"

namespace glake::transfer {

class TrackedCopy final : public Copy {
 public:
  TrackedCopy(Driver& driver, Devices& devices, TrackedCopies& owner, uint64_t id)
      : driver_(driver), devices_(devices), owner_(owner), id_(id), track_(owner.find(id)) {}

  int wait(uint64_t timeout_ns, std::string* text) override {
    return owner_.wait(track_.get(), timeout_ns, text);
  }
  bool done() override { return owner_.done(track_.get()); }
  bool settled() override { return done(); }
  void make_stream_wait(int device, StreamHandle stream) override;
  void cancel() override {}
  void release() override { owner_.release(id_); }
  void progress(Bytes* done, Bytes* total) override;
  std::string result() override;

 private:
  Driver& driver_;
  Devices& devices_;
  TrackedCopies& owner_;
  uint64_t id_;
  TrackedCopies::TrackPtr track_;
};

}  // namespace glake::transfer
