// The known bytes of phantom memory: those that the host copied there, and what was computed from
// them. Scripts and libraries send small facts through a GPU (lengths, masks, the order of DDP's
// buckets) and act on what comes back. All other bytes read as zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace simcuda {

// Any thread may use it. Addresses are unified, so one map holds the memory of all GPUs.
class Known {
 public:
  // Larger writes are taken for data, of which nothing is kept. The limit is a guess: lists of a
  // large job's tensors, which ranks send each other as objects, have some MB.
  static constexpr size_t kMostOfOne = size_t{16} << 20;

  // `device` is the memory's device.
  void write(int device, uint64_t address, const void* from, size_t bytes);
  // Something wrote bytes here that are not known.
  void forget(uint64_t address, size_t bytes);
  // A kernel may have written anywhere on its GPU, and nothing is known of it.
  void forget_all(int device);
  void copy(int device, uint64_t to, uint64_t from, size_t bytes);
  // Writes the known bytes to their places in `to`, and returns how many there are.
  size_t read(uint64_t address, void* to, size_t bytes);
  // Another process may write this one's memory, or the reverse. Nothing is known any more.
  void stop();

 private:
  // Bytes that nobody changes any more. Ranges share them, so copies and cuts of ranges copy no
  // bytes.
  struct Bytes {
    std::shared_ptr<const char[]> all;
    size_t of = 0, begin = 0, size = 0;  // the size of `all`; the part of it that this is
    const char* data() const { return all.get() + begin; }
  };
  struct Range {
    int device = -1;    // the memory's device
    uint64_t turn = 0;  // its number in the order of all writes
    Bytes bytes;
  };
  using Ranges = std::map<uint64_t, Range>;  // by first address; they do not overlap
  struct Piece {
    uint64_t address;
    Bytes bytes;
  };

  void cut(uint64_t address, size_t bytes);
  void keep(int device, uint64_t address, Bytes bytes, bool large);
  Range take(Ranges::iterator at);
  static Bytes copied(const char* from, size_t bytes);
  static Bytes part(const Bytes& bytes, size_t begin, size_t size);
  std::vector<Piece> pieces(uint64_t address, size_t bytes) const;

  std::mutex mutex_;
  Ranges ranges_;
  // Addresses of small and of large writes, the oldest first.
  std::map<uint64_t, uint64_t> small_, large_;
  uint64_t turns_ = 0;
  size_t total_ = 0;
  bool stopped_ = false;
};

}  // namespace simcuda
