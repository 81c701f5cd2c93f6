// A stream of one GPU for the tests of transfers. Its work can be held up.
#pragma once

#include "transfer_play.h"

namespace test {

class Stream {
 public:
  explicit Stream(int device) : device_(device), opens_(device, 512), word_(kPinned, 4) {
    CurrentContext context(device);
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    let_go();
  }
  // A default stream, which nobody makes or ends.
  Stream(int device, CUstream given)
      : device_(device), opens_(device, 512), word_(kPinned, 4), stream_(given), ends_(false) {
    let_go();
  }
  ~Stream() {
    let_go();
    synchronize();
    if (!ends_) return;
    CurrentContext context(device_);
    end_stream(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }
  int device() const { return device_; }
  void hold() {
    CurrentContext context(device_);
    set(0);
    CU(cuStreamWaitValue32(stream_, word_.at(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  }
  void let_go() { set(1); }
  void fill(uint64_t at, unsigned char value, size_t bytes) {
    CurrentContext context(device_);
    CU(cuMemsetD8Async(at, value, bytes, stream_));
  }
  void synchronize() const {
    CurrentContext context(device_);
    CU(cuStreamSynchronize(stream_));
  }

 private:
  void set(uint32_t value) {
    __atomic_store_n(reinterpret_cast<uint32_t*>(word_.data()), value, __ATOMIC_RELEASE);
  }

  int device_;
  Buffer opens_;  // the GPU's context lives on while glake has memory there
  Buffer word_;
  CUstream stream_ = nullptr;
  bool ends_ = true;
};

}  // namespace test
