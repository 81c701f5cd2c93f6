#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "driver/device_scope.h"
#include "driver/driver.h"
#include "heap/saved_bytes.h"

namespace glake {

class TransferUse;

// Copies between a device and pinned host memory. If the transfer engine is open, it carries large
// parts of blocks over every path. All other copies are plain copies on a stream of this object.
// Throws Error.
class RegionCopier final : public BytesCopier {
 public:
  RegionCopier(Driver& driver, HostPool& host, int device);
  ~RegionCopier() override;
  RegionCopier(const RegionCopier&) = delete;
  RegionCopier& operator=(const RegionCopier&) = delete;

  // Whether a copy outside stream order reads or writes there.
  bool copying(Address begin, Address end) const;
  void start(const std::vector<SavedPart>& parts, char* host, Bytes base, bool to_host) override;
  void submit() override;
  void finish_oldest() override;
  void finish() override;
  void record(void* host) override;

 private:
  void require(Status s, const char* what) const;
  Driver& driver_;
  HostPool& host_;
  int device_;
  bool idle_ = true;  // all plain copies that were started are known to be done
  std::unique_ptr<DeviceScope> scope_;
  StreamHandle stream_ = 0;
  std::unique_ptr<TransferUse> engine_;
  std::vector<glake_copy_part> parts_;  // started, and part of the next transfer
  bool to_host_ = false;                // the direction of the copies
  std::deque<uint64_t> transfers_;
};

}  // namespace glake
