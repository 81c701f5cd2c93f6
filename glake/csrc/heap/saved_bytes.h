// Bytes of device memory kept elsewhere while their granules are the driver's: in pinned host
// memory, or in a file that has no name any more. Each chunk of them has a checksum. Used by one
// thread at a time, with none of the allocator's locks held.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/tuning.h"
#include "base/types.h"
#include "heap/bytes_copier.h"
#include "memory/host_pool.h"

namespace glake {

class SavedBytes {
 public:
  static constexpr Bytes kChunk = Tuning::kSavedChunk;
  static constexpr size_t kGroup = Tuning::kSavedGroup;  // chunks of one transfer

  // `folder`: of the file, where it is one (`to` is GLAKE_REGION_DISK).
  SavedBytes(HostPool& host, int to, std::string folder);
  ~SavedBytes();
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  int to() const { return to_; }
  Bytes bytes() const { return total_; }

  // What save() is to keep; one stretch after the other.
  void add(Address at, Bytes bytes, bool block);
  void save(BytesCopier& copier);  // throws Error
  // Writes what was saved of the parts for which keep(address) holds. With `verify`, reads them
  // again and compares. Throws Error: GLAKE_CORRUPTED if what was saved, or has arrived, differs
  // from what was read.
  template <typename Keep>
  void load(BytesCopier& copier, bool verify, Keep&& keep) {
    std::vector<SavedPart> wanted;
    for (const SavedPart& part : parts_) {
      if (keep(part.at)) wanted.push_back(part);
    }
    write_back(copier, verify, wanted);
  }

 private:
  struct Chunk {
    char* memory = nullptr;  // of the host pool; null: in the file
    Bytes bytes = 0;
    uint64_t sum = 0;
  };
  void read_all(BytesCopier& copier);
  void record(BytesCopier& copier);
  void write_back(BytesCopier& copier, bool verify, const std::vector<SavedPart>& wanted);
  void write_all(BytesCopier& copier, bool verify, const std::vector<SavedPart>& wanted);
  void make_file();
  void write(const Chunk& chunk, const char* from, Bytes at);
  void read(const Chunk& chunk, char* to, Bytes at);
  void check(const Chunk& chunk, uint64_t sum) const;
  std::vector<SavedPart> within(const std::vector<SavedPart>& parts, size_t chunk) const;
  std::string place() const;

  HostPool& host_;
  int to_;
  std::string folder_;
  int file_ = -1;
  Bytes total_ = 0;
  std::vector<SavedPart> parts_;  // by offset, none across two chunks
  std::vector<Chunk> chunks_;
};

}  // namespace glake
