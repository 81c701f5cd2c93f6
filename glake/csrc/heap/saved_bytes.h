// Bytes of device memory that are kept elsewhere while the driver has their granules: in pinned
// host memory, or in a file without a name. Each portion of them has a checksum. Used by one thread
// at a time, without the allocator's locks.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/tuning.h"
#include "base/types.h"
#include "heap/bytes_copier.h"
#include "memory/host_pool.h"

namespace glake {

class SavedBytes {
 public:
  static constexpr Bytes kPortion = Tuning::kSavedPortion;
  static constexpr size_t kGroup = Tuning::kSavedGroup;  // in one transfer

  // `folder` is where the file goes, if `to` is GLAKE_REGION_DISK.
  SavedBytes(HostPool& host, int to, std::string folder);
  ~SavedBytes();
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  // Where one portion lies. That is memory of the host pool, or a stretch of the file if this is
  // null. The last copy of this pointer gives the place up, which must not happen under the
  // allocator's locks.
  using Place = std::shared_ptr<char>;

  int to() const { return to_; }
  Bytes bytes() const;  // of the portions that are kept

  // Adds a stretch that save() is to keep, behind the earlier ones.
  void add(Address at, Bytes bytes, bool block);
  void save(BytesCopier& copier);  // throws Error
  // Writes the saved bytes of the parts for which keep(address) holds. With `verify` it reads them
  // again and compares. Throws Error. Its code is GLAKE_CORRUPTED if the saved bytes, or the bytes
  // that arrived, differ from those that were read first.
  template <typename Keep>
  void load(BytesCopier& copier, bool verify, Keep&& keep) {
    std::vector<SavedPart> wanted;
    for (const SavedPart& part : parts_) {
      if (keep(part.at)) wanted.push_back(part);
    }
    write_back(copier, verify, wanted);
  }
  // Drops each portion in which keep(address) holds for no part. The caller gets the places of
  // these portions.
  template <typename Keep>
  void drop(std::vector<Place>& places, Keep&& keep) {
    for (size_t i = 0; i < portions_.size(); ++i) {
      bool kept = false;
      for (const SavedPart& part : within(parts_, i)) kept = kept || keep(part.at);
      if (!kept && !portions_[i].dropped()) places.push_back(std::move(portions_[i].place));
    }
  }

 private:
  struct Portion {
    bool dropped() const { return place.use_count() == 0; }
    char* memory() const { return place.get(); }  // null: it is in the file, or dropped
    Place place;
    Bytes bytes = 0;
    uint64_t sum = 0;
  };
  void read_all(BytesCopier& copier);
  void record(BytesCopier& copier);
  void write_back(BytesCopier& copier, bool verify, const std::vector<SavedPart>& wanted);
  void write_all(BytesCopier& copier, bool verify, const std::vector<SavedPart>& wanted);
  void make_file();
  Place place(Bytes at, Bytes bytes);
  void write(const Portion& portion, const char* from, Bytes at);
  void read(const Portion& portion, char* to, Bytes at);
  void check(const Portion& portion, uint64_t sum) const;
  std::vector<SavedPart> within(const std::vector<SavedPart>& parts, size_t portion) const;
  std::string place_text() const;

  HostPool& host_;
  int to_;
  std::string folder_;
  // The file's descriptor, which is closed after the last place in it.
  std::shared_ptr<const int> file_;
  Bytes total_ = 0;
  std::vector<SavedPart> parts_;  // by offset; no part crosses from one portion to another
  std::vector<Portion> portions_;
};

}  // namespace glake
