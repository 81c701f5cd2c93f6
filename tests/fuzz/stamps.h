// Checks contents in stream order. Work on a block's stream fills it with the block's stamp (a
// byte), and work that is enqueued before the free reads it. simcuda runs work as late as is legal.
// So memory that is reused too early, or that two blocks share, has another block's stamp when it
// is read.
#pragma once

#include <deque>

#include "../core/harness.h"

namespace fuzz {

class Stamps {
 public:
  // `streams`: every stream on which work is enqueued. A stream that ended is null.
  // `capturing`: the number of the stream under capture, 0 for none. Nobody waits for that stream,
  // and nothing may be read on it.
  Stamps(const std::vector<CUstream>& streams, const int& capturing)
      : streams_(streams), capturing_(capturing) {}

  void open() {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&host_), kRoom, CU_MEMHOSTALLOC_PORTABLE));
  }
  void close() {
    verify();
    CU(cuMemFreeHost(host_));
  }

  static void write(void* ptr, size_t bytes, uint8_t stamp, CUstream stream) {
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), stamp, bytes, stream));
  }

  // Reads the first byte of rows spread over the block, and its last byte.
  void read(void* ptr, size_t bytes, uint8_t stamp, CUstream stream) {
    size_t units = (bytes + 511) / 512, stride = (units + kRows - 1) / kRows;
    size_t rows = (units + stride - 1) / stride;
    if (used_ + rows + 1 > kRoom) verify();
    auto from = reinterpret_cast<uintptr_t>(ptr);
    copy(CU_MEMORYTYPE_DEVICE, from, stride * 512, rows, stamp, stream);
    copy(CU_MEMORYTYPE_DEVICE, from + bytes - 1, 512, 1, stamp, stream);
  }

  // Reads the first and the last byte of pinned host memory.
  void read_host(uint8_t* ptr, size_t bytes, uint8_t stamp, CUstream stream) {
    if (used_ + 2 > kRoom) verify();
    auto from = reinterpret_cast<uintptr_t>(ptr);
    copy(CU_MEMORYTYPE_HOST, from, 512, 1, stamp, stream);
    copy(CU_MEMORYTYPE_HOST, from + bytes - 1, 512, 1, stamp, stream);
  }

  // Waits for all work and looks at what was read. It makes only calls that glake does not make, so
  // that no fault meant for glake comes here.
  void verify() {
    for (size_t s = 0; s < streams_.size(); ++s) {
      if (s == 0 || static_cast<int>(s) != capturing_) CU(cuStreamSynchronize(streams_[s]));
    }
    for (const Read& r : reads_) {
      for (size_t i = 0; i < r.rows; ++i) {
        CHECK_TEXT(host_[r.at + i] == r.stamp,
                   "row " + std::to_string(i) + " of " + std::to_string(r.rows) +
                       " of the block stamped " + std::to_string(r.stamp) + " holds " +
                       std::to_string(host_[r.at + i]));
      }
    }
    reads_.clear();
    used_ = 0;
  }

 private:
  static constexpr size_t kRoom = 1 << 16, kRows = 128;
  struct Read {
    size_t at, rows;
    uint8_t stamp;
  };

  void copy(CUmemorytype type, uintptr_t from, size_t pitch, size_t rows, uint8_t stamp,
            CUstream stream) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = type;
    copy.srcDevice = from;
    copy.srcHost = reinterpret_cast<void*>(from);
    copy.srcPitch = pitch;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = host_ + used_;
    copy.dstPitch = 1;
    copy.WidthInBytes = 1;
    copy.Height = rows;
    CU(cuMemcpy2DAsync(&copy, stream));
    reads_.push_back({used_, rows, stamp});
    used_ += rows;
  }

  const std::vector<CUstream>& streams_;
  const int& capturing_;
  uint8_t* host_ = nullptr;
  size_t used_ = 0;
  std::deque<Read> reads_;
};

}  // namespace fuzz
