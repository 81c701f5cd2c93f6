// Tracks addresses, mappings and physical memory, and which work uses memory through which address.
// If the allocator breaks a rule, that is noted, and the program goes on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "clocks.h"

namespace order {

constexpr uint64_t kGranule = uint64_t{2} << 20;

class Memory {
 public:
  Memory(Streams& streams, uint64_t granules) : streams_(streams), granules_(granules) {}

  // CUDA's calls. False where CUDA answers "invalid value", which is noted.
  uint64_t reserve(uint64_t bytes);
  bool free_range(uint64_t base, uint64_t bytes);
  uint64_t create(uint64_t bytes);  // 0: out of memory
  bool release(uint64_t handle);
  bool map(uint64_t at, uint64_t bytes, uint64_t offset, uint64_t handle);
  bool set_access(uint64_t at, uint64_t bytes);
  bool unmap(uint64_t at, uint64_t bytes);
  uint64_t free_bytes() const { return (granules_ - created_) * kGranule; }
  uint64_t total_bytes() const { return granules_ * kGranule; }

  // What a block's caller does (order_driver.h).
  void got(uint64_t block, uint64_t ptr, uint64_t bytes);
  void use(uint64_t block, uint64_t ptr, uint64_t bytes, size_t stream);
  void gone(uint64_t block);

  uint64_t left() const { return ranges_.size() + mappings_.size() + handles_.size(); }
  uint64_t crossings() const { return crossings_; }
  uint64_t found() const { return found_; }
  const std::string& text() const { return text_; }
  void note(const std::string& what);

 private:
  // The last work of a block, on one stream, on a part of a handle, through one mapping.
  struct Use {
    uint64_t block;
    uint64_t begin, end;  // in the handle
    uint64_t through;     // the mapping's address
    Tick last;
  };
  struct Part {
    uint64_t begin, end;
    uint64_t through;
  };
  struct HandleState {
    uint64_t bytes = 0;
    bool released = false;
    uint64_t mappings = 0;
    std::vector<Use> uses;
    std::map<uint64_t, Part> live;  // by block
  };
  struct Mapping {
    uint64_t bytes = 0, handle = 0;
    bool accessible = false;
  };

  // Calls visit(handle's number, part) for each mapping under [ptr, ptr + bytes). Notes addresses
  // without a mapping.
  template <typename Visit>
  void each_part(uint64_t ptr, uint64_t bytes, const std::string& who, Visit&& visit);
  bool reserved(uint64_t at, uint64_t bytes) const;
  void drop_if_unused(uint64_t handle);
  // Drops work that the host knows to be finished. All later work comes after it, and it does not
  // need its mapping any more.
  void forget_finished(HandleState& handle);

  Streams& streams_;
  uint64_t granules_, created_ = 0;
  uint64_t next_address_ = uint64_t{1} << 40, next_handle_ = 1;
  std::map<uint64_t, uint64_t> ranges_;   // base: bytes
  std::map<uint64_t, Mapping> mappings_;  // by address
  std::map<uint64_t, HandleState> handles_;
  std::map<uint64_t, std::vector<uint64_t>> handles_of_;  // of live blocks
  uint64_t crossings_ = 0, found_ = 0;
  std::string text_;
};

}  // namespace order
