// A copy over paths that the engine chose, as its caller sees it.
#pragma once

#include <string>
#include <vector>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"
#include "transfer/run/stream_order.h"

namespace glake::transfer {

class RoutedCopy final : public Copy {
 public:
  RoutedCopy(Driver& driver, Devices& devices, RunState& state, Runner& runner, StreamOrder& order,
             uint64_t id)
      : driver_(driver),
        devices_(devices),
        state_(state),
        runner_(runner),
        order_(order),
        id_(id),
        transfer_(runner.find(id)) {}

  int wait(uint64_t timeout_ns, std::string* text) override;
  bool done() override;
  bool settled() override { return runner_.settled(transfer_); }
  void make_stream_wait(int device, StreamHandle stream) override;
  void cancel() override { runner_.cancel(transfer_); }
  void release() override;
  void progress(Bytes* done, Bytes* total) override;
  std::string result() override;
  std::vector<CarriedPath> paths() override;

 private:
  Driver& driver_;
  Devices& devices_;
  RunState& state_;
  Runner& runner_;
  StreamOrder& order_;
  uint64_t id_;
  TransferPtr transfer_;
};

}  // namespace glake::transfer
