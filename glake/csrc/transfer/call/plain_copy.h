// A plain copy, as its caller sees it.
#pragma once

#include <string>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"
#include "transfer/call/copy_ids.h"

namespace glake::transfer {

class PlainCopy final : public Copy {
 public:
  PlainCopy(Driver& driver, Devices& devices, PlainId id)
      : driver_(driver), devices_(devices), id_(id) {}

  int wait(uint64_t timeout_ns, std::string* text) override;
  bool done() override;
  bool settled() override { return done(); }
  void make_stream_wait(int device, StreamHandle waiting) override;
  void cancel() override {}
  void release() override {}
  void progress(Bytes* done, Bytes* total) override { *done = *total = 0; }
  std::string result() override;

 private:
  bool stream(StreamHandle* stream);

  Driver& driver_;
  Devices& devices_;
  PlainId id_;
};

}  // namespace glake::transfer
