// What the debug modes have found: which block was damaged, by what kind of write, and where the
// block came from. Findings are kept until somebody reads them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "watch/context.h"

namespace glake {

// A block that a finding may have to name. It exists while the block is live, and after its free
// until its bytes are used again.
struct Holding {
  Address ptr = 0;  // the caller's
  Bytes requested = 0;
  Address begin = 0;  // the block's own, with its guards
  Bytes size = 0;
  StreamHandle stream = 0;
  int device = 0;
  const char* tag = nullptr;
  bool guarded = false;
  ContextRef allocated, freed;
};
using HoldingPtr = std::shared_ptr<Holding>;

enum class Damage { kBefore, kAfter, kAfterFree };

struct Finding {
  struct Byte {
    int64_t offset;  // from the caller's first byte
    uint8_t expected, found;
  };

  Damage kind = Damage::kBefore;
  HoldingPtr block;
  std::vector<Byte> bytes;  // the first few that changed
  uint64_t count = 0;
  int64_t first = 0, last = 0;

  // A paragraph of text. No lock may be held, because it describes contexts.
  std::string text() const;
};

// Compares `n` bytes that should all be `expected`. `offset` is the distance of the first one from
// the caller's pointer. If some differ, it fills in *finding and returns true.
bool find_damage(const char* bytes, Bytes n, uint8_t expected, int64_t offset, Finding* finding);

class FindingBook {
 public:
  static FindingBook& instance();
  void add(Finding finding);
  // Returns all unread findings as text and marks them as read; "" if there are none. No lock may
  // be held.
  std::string read();
  uint64_t found() const { return found_.load(); }

 private:
  std::mutex mutex_;
  std::vector<Finding> unread_;
  uint64_t beyond_ = 0;  // found while the book was full
  std::atomic<uint64_t> found_{0};
};

}  // namespace glake
