// A copy whose chunks are all enqueued at once (enqueued_transfers.h), as its caller sees it.
#pragma once

#include <string>
#include <vector>

#include "transfer/call/copy.h"
#include "transfer/run/enqueued_transfers.h"

namespace glake::transfer {

class EnqueuedCopy final : public Copy {
 public:
  EnqueuedCopy(Driver& driver, Devices& devices, EnqueuedTransfers& owner, uint64_t id)
      : driver_(driver), devices_(devices), owner_(owner), id_(id), transfer_(owner.find(id)) {}

  int wait(uint64_t timeout_ns, std::string* text) override {
    return owner_.wait(transfer_, timeout_ns, text);
  }
  bool done() override { return owner_.done(transfer_); }
  bool settled() override { return done(); }
  void make_stream_wait(int device, StreamHandle stream) override;
  void cancel() override {}
  void release() override { owner_.release(id_); }
  void progress(Bytes* done, Bytes* total) override;
  std::string result() override { return owner_.result(transfer_); }
  std::vector<CarriedPath> paths() override { return owner_.paths(transfer_); }

 private:
  Driver& driver_;
  Devices& devices_;
  EnqueuedTransfers& owner_;
  uint64_t id_;
  EnqueuedTransfers::Ptr transfer_;
};

}  // namespace glake::transfer
