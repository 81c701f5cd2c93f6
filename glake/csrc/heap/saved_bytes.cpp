#include "heap/saved_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace glake {
namespace {

// Four sums side by side, as one multiplication must wait for the last. Each step can be undone, so
// that one changed word always shows; more do but for one in 2^64.
uint64_t sum_of(const char* from, Bytes bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  constexpr size_t kLanes = 4;
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  auto step = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * kOdd;
    return sum ^ sum >> 29;
  };
  uint64_t words[kLanes] = {};
  for (; bytes >= sizeof words; bytes -= sizeof words, from += sizeof words) {
    std::memcpy(words, from, sizeof words);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, from, bytes);
  uint64_t sum = bytes;
  for (size_t i = 0; i < kLanes; ++i) sum = step(step(lanes[i], words[i]), sum);
  return sum;
}

Error system_error(const std::string& what, const std::string& way_out) {
  return Error(GLAKE_REGION_REFUSED, what + ": " + std::strerror(errno) + "; " + way_out);
}

// Pinned host memory for one scope.
class Staging {
 public:
  Staging(HostPool& host, BytesCopier& copier, Bytes bytes)
      : host_(host), copier_(copier), memory_(static_cast<char*>(host.allocate(bytes))) {}
  ~Staging() {
    copier_.record(memory_);
    host_.free(memory_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  char* memory() const { return memory_; }

 private:
  HostPool& host_;
  BytesCopier& copier_;
  char* memory_;
};

}  // namespace

SavedBytes::SavedBytes(HostPool& host, int to, std::string folder)
    : host_(host), to_(to), folder_(std::move(folder)) {}

SavedBytes::~SavedBytes() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.memory != nullptr) host_.free(chunk.memory);
  }
  if (file_ >= 0) close(file_);
}

std::string SavedBytes::place() const {
  return to_ == GLAKE_REGION_DISK ? "a file in " + folder_ : "pinned host memory";
}

void SavedBytes::add(Address at, Bytes bytes, bool block) {
  while (bytes != 0) {
    const Bytes here = std::min(bytes, kChunk - total_ % kChunk);
    parts_.push_back({at, here, total_, block});
    at += here;
    total_ += here;
    bytes -= here;
  }
  total_ = round_up(total_, kAlignment);  // as blocks are: then neighbours stay neighbours
}

// Without a name from the first moment on: whatever ends the process, nothing is left.
void SavedBytes::make_file() {
  std::string path = folder_ + "/glake-region-XXXXXX";
  file_ = mkostemp(&path[0], O_CLOEXEC);  // 0600
  if (file_ < 0) {
    throw system_error("no file can be made in " + folder_, "name a folder this user may write to");
  }
  unlink(path.c_str());
  errno = posix_fallocate(file_, 0, static_cast<off_t>(std::max<Bytes>(total_, 1)));
  if (errno != 0) {
    throw system_error(size_text(total_) + " cannot be kept in " + folder_,
                       "name a folder with that much room, or pause to host memory");
  }
}

void SavedBytes::write(const Chunk& chunk, const char* from, Bytes at) {
  for (Bytes done = 0; done < chunk.bytes;) {
    const ssize_t n = pwrite(file_, from + done, chunk.bytes - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw system_error("the region's bytes cannot be written to " + folder_,
                         "name another folder, or pause to host memory");
    }
    done += static_cast<Bytes>(n);
  }
}

void SavedBytes::read(const Chunk& chunk, char* to, Bytes at) {
  for (Bytes done = 0; done < chunk.bytes;) {
    const ssize_t n = pread(file_, to + done, chunk.bytes - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) {
      throw system_error("the region's bytes cannot be read back from " + folder_,
                         "resume again when the disk can be read");
    }
    done += static_cast<Bytes>(n);
  }
}

void SavedBytes::check(const Chunk& chunk, const char* memory) const {
  if (sum_of(memory, chunk.bytes) == chunk.sum) return;
  throw Error(GLAKE_CORRUPTED, "the region's bytes in " + place() +
                                   " are not those that were saved: something has written there");
}

std::vector<SavedPart> SavedBytes::within(const std::vector<SavedPart>& parts, size_t chunk) const {
  auto before = [](const SavedPart& part, Bytes offset) { return part.offset < offset; };
  auto first = std::lower_bound(parts.begin(), parts.end(), chunk * kChunk, before);
  auto last = std::lower_bound(first, parts.end(), (chunk + 1) * kChunk, before);
  return {first, last};
}

void SavedBytes::record(BytesCopier& copier) {
  for (const Chunk& chunk : chunks_) {
    if (chunk.memory != nullptr) copier.record(chunk.memory);
  }
}

void SavedBytes::save(BytesCopier& copier) {
  try {
    read_all(copier);
  } catch (...) {
    record(copier);
    throw;
  }
}

void SavedBytes::write_back(BytesCopier& copier, bool verify,
                            const std::vector<SavedPart>& wanted) {
  try {
    write_all(copier, verify, wanted);
  } catch (...) {
    record(copier);
    throw;
  }
}

void SavedBytes::read_all(BytesCopier& copier) {
  if (to_ == GLAKE_REGION_DISCARD || total_ == 0) return;
  const bool disk = to_ == GLAKE_REGION_DISK;
  for (Bytes at = 0; at < total_; at += kChunk) {
    chunks_.push_back({nullptr, std::min(kChunk, total_ - at), 0});
    Chunk& chunk = chunks_.back();
    if (disk) continue;
    chunk.memory = static_cast<char*>(host_.allocate(chunk.bytes));
  }
  if (!disk) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      copier.start(within(parts_, i), chunks_[i].memory, i * kChunk, true);
    }
    copier.finish();
    for (Chunk& chunk : chunks_) chunk.sum = sum_of(chunk.memory, chunk.bytes);
    return;
  }
  make_file();
  Staging staging(host_, copier, chunks_.front().bytes);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    copier.start(within(parts_, i), staging.memory(), i * kChunk, true);
    copier.finish();
    chunks_[i].sum = sum_of(staging.memory(), chunks_[i].bytes);
    write(chunks_[i], staging.memory(), i * kChunk);
  }
}

void SavedBytes::write_all(BytesCopier& copier, bool verify, const std::vector<SavedPart>& wanted) {
  if (chunks_.empty() || wanted.empty()) return;
  const bool disk = to_ == GLAKE_REGION_DISK;
  const Bytes largest = chunks_.front().bytes;
  std::unique_ptr<Staging> staging, back;
  if (disk) staging = std::make_unique<Staging>(host_, copier, largest);
  if (verify) back = std::make_unique<Staging>(host_, copier, largest);
  auto memory = [&](size_t i) { return disk ? staging->memory() : chunks_[i].memory; };
  auto compare = [&](size_t i) {
    const std::vector<SavedPart> parts = within(wanted, i);
    copier.start(parts, back->memory(), i * kChunk, true);
    copier.finish();
    for (const SavedPart& part : parts) {
      const Bytes at = part.offset - i * kChunk;
      if (std::memcmp(back->memory() + at, memory(i) + at, part.bytes) == 0) continue;
      throw Error(GLAKE_CORRUPTED, "the " + size_text(part.bytes) + " at " + hex(part.at) +
                                       " are not what was written there from " + place());
    }
  };
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (disk) read(chunks_[i], memory(i), i * kChunk);
    check(chunks_[i], memory(i));
    copier.start(within(wanted, i), memory(i), i * kChunk, false);
    if (!disk) continue;
    copier.finish();
    if (verify) compare(i);
  }
  if (disk) return;
  copier.finish();
  for (size_t i = 0; i < chunks_.size() && verify; ++i) compare(i);
}

}  // namespace glake
