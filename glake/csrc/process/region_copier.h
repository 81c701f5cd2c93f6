#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "driver/device_scope.h"
#include "driver/driver.h"
#include "heap/saved_bytes.h"

namespace glake {

class TransferUse;

// Copies between a device and pinned host memory: those of blocks by the transfer engine over every
// path, where it is open, and all others as plain copies on a stream of its own. Throws Error.
class RegionCopier final : public BytesCopier {
 public:
  RegionCopier(Driver& driver, HostPool& host, int device);
  ~RegionCopier() override;
  RegionCopier(const RegionCopier&) = delete;
  RegionCopier& operator=(const RegionCopier&) = delete;

  // Whether a copy of no stream's order reads or writes there.
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
  std::vector<glake_copy_part> parts_;  // started, of the next transfer
  bool to_host_ = false;                // its direction
  std::deque<uint64_t> transfers_;
};

}  // namespace glake
