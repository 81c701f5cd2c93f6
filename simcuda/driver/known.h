// What is known of phantom memory: bytes that the host copied there, and what was made of them.
// Scripts and libraries send small facts through a GPU (lengths, masks, DDP the order of its
// buckets) and act on what returns; all else reads as zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace simcuda {

// Safe from any thread. Addresses are unified: one map holds the memory of all GPUs.
class Known {
 public:
  // Larger writes are data, of which nothing is kept: a guess. Lists of a large job's tensors,
  // which ranks send each other as objects, are some MB.
  static constexpr size_t kMostOfOne = size_t{16} << 20;

  // `device`: of the memory.
  void write(int device, uint64_t address, const void* from, size_t bytes);
  // Written by something whose bytes are not known.
  void forget(uint64_t address, size_t bytes);
  // A kernel of which nothing is known may have written anywhere on its GPU.
  void forget_all(int device);
  void copy(int device, uint64_t to, uint64_t from, size_t bytes);
  // Writes the bytes that are known to their places, and says how many they are.
  size_t read(uint64_t address, void* to, size_t bytes);
  // Another process may write this one's memory, or the other way round: nothing is known any more.
  void stop();

 private:
  // Bytes that nobody changes any more. Ranges share them, so that a copy and a cut copy nothing.
  struct Bytes {
    std::shared_ptr<const char[]> all;
    size_t of = 0, begin = 0, size = 0;  // how many there are, and which of them
    const char* data() const { return all.get() + begin; }
  };
  struct Range {
    int device = -1;    // of the memory
    uint64_t turn = 0;  // in which it was written
    Bytes bytes;
  };
  using Ranges = std::map<uint64_t, Range>;  // by their first address; none overlap
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
  // Addresses, the oldest first: of what came in a small write, and in a large one.
  std::map<uint64_t, uint64_t> small_, large_;
  uint64_t turns_ = 0;
  size_t total_ = 0;
  bool stopped_ = false;
};

}  // namespace simcuda
