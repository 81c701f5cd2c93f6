#include "heap/saved_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/tuning.h"
#include "heap/crew.h"

namespace glake {
namespace {

// The sums, and the sums of the sums, of eight words side by side. Compilers do four of these
// additions at a time. One changed word always shows, and so do two words that have changed places.
uint64_t sum_of(const char* from, Bytes bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  constexpr size_t kLanes = 8;
  uint64_t sums[kLanes] = {}, weighted[kLanes] = {}, words[kLanes] = {};
  auto add = [&](const char* at, Bytes here) {
    std::memcpy(words, at, here);
    for (size_t i = 0; i < kLanes; ++i) {
      sums[i] += words[i];
      weighted[i] += sums[i];
    }
  };
  uint64_t all = bytes;
  for (; bytes >= sizeof words; bytes -= sizeof words, from += sizeof words) {
    add(from, sizeof words);
  }
  std::memset(words, 0, sizeof words);
  add(from, bytes);
  for (size_t i = 0; i < kLanes; ++i) {
    for (uint64_t part : {sums[i], weighted[i]}) {
      all = (all ^ part) * kOdd;
      all ^= all >> 29;
    }
  }
  return all;
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

SavedBytes::~SavedBytes() = default;

Bytes SavedBytes::bytes() const {
  Bytes all = 0;
  for (const Chunk& chunk : chunks_) all += chunk.dropped() ? 0 : chunk.bytes;
  return all;
}

SavedBytes::Place SavedBytes::place(Bytes at, Bytes bytes) {
  if (file_ == nullptr) {
    auto free = [&host = host_](char* memory) { host.free(memory); };
    return {static_cast<char*>(host_.allocate(bytes)), free};
  }
  // If a file system cannot give up a part of a file, the part goes with the whole file.
  auto free = [file = file_, at, bytes](char*) {
    fallocate(*file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
              static_cast<off_t>(bytes));
  };
  return {nullptr, free};
}

std::string SavedBytes::place_text() const {
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
  // The alignment of blocks, so that neighbours stay neighbours.
  total_ = round_up(total_, kAlignment);
}

// The file's name is removed at once, before it has any bytes. So no bytes are left, whatever ends
// the process.
void SavedBytes::make_file() {
  std::string path = folder_ + "/glake-region-XXXXXX";
  const int file = mkostemp(&path[0], O_CLOEXEC);  // 0600
  if (file < 0) {
    throw system_error("no file can be made in " + folder_, "name a folder this user may write to");
  }
  auto done = [](const int* descriptor) {
    close(*descriptor);
    delete descriptor;
  };
  file_ = std::shared_ptr<const int>(new int(file), done);
  unlink(path.c_str());
  errno = posix_fallocate(file, 0, static_cast<off_t>(std::max<Bytes>(total_, 1)));
  if (errno != 0) {
    throw system_error(size_text(total_) + " cannot be kept in " + folder_,
                       "name a folder with that much room, or pause to host memory");
  }
}

void SavedBytes::write(const Chunk& chunk, const char* from, Bytes at) {
  for (Bytes done = 0; done < chunk.bytes;) {
    const ssize_t n =
        pwrite(*file_, from + done, chunk.bytes - done, static_cast<off_t>(at + done));
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
    const ssize_t n = pread(*file_, to + done, chunk.bytes - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) {
      throw Error(GLAKE_CORRUPTED, "the region's bytes in " + place_text() +
                                       " are not all there: something has cut the file short");
    }
    if (n < 0) {
      throw system_error("the region's bytes cannot be read back from " + folder_,
                         "resume again when the disk can be read");
    }
    done += static_cast<Bytes>(n);
  }
}

void SavedBytes::check(const Chunk& chunk, uint64_t sum) const {
  if (sum == chunk.sum) return;
  throw Error(GLAKE_CORRUPTED, "the region's bytes in " + place_text() +
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
    if (chunk.memory() != nullptr) copier.record(chunk.memory());
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
  if (disk) make_file();
  for (Bytes at = 0; at < total_; at += kChunk) {
    const Bytes bytes = std::min(kChunk, total_ - at);
    chunks_.push_back({place(at, bytes), bytes, 0});
  }
  if (!disk) {
    Crew crew(chunks_.size());
    // The sums of one group are computed while the next group is copied.
    for (size_t done = 0, next = 0; done < chunks_.size();) {
      for (; next < chunks_.size() && next < done + 2 * kGroup; ++next) {
        copier.start(within(parts_, next), chunks_[next].memory(), next * kChunk, true);
        if ((next + 1) % kGroup == 0 || next + 1 == chunks_.size()) copier.submit();
      }
      copier.finish_oldest();
      for (const size_t end = std::min(done + kGroup, chunks_.size()); done < end; ++done) {
        Chunk& chunk = chunks_[done];
        crew.add([&chunk] { chunk.sum = sum_of(chunk.memory(), chunk.bytes); });
      }
    }
    copier.finish();
    crew.finish();
    return;
  }
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
  auto memory = [&](size_t i) { return disk ? staging->memory() : chunks_[i].memory(); };
  auto compare = [&](size_t i) {
    const std::vector<SavedPart> parts = within(wanted, i);
    copier.start(parts, back->memory(), i * kChunk, true);
    copier.finish();
    for (const SavedPart& part : parts) {
      const Bytes at = part.offset - i * kChunk;
      if (std::memcmp(back->memory() + at, memory(i) + at, part.bytes) == 0) continue;
      throw Error(GLAKE_CORRUPTED, "the " + size_text(part.bytes) + " at " + hex(part.at) +
                                       " are not what was written there from " + place_text());
    }
  };
  if (disk) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i].dropped()) continue;
      read(chunks_[i], memory(i), i * kChunk);
      check(chunks_[i], sum_of(memory(i), chunks_[i].bytes));
      copier.start(within(wanted, i), memory(i), i * kChunk, false);
      copier.finish();
      if (verify) compare(i);
    }
    return;
  }
  // The sums of one group are computed while another group is copied.
  std::vector<uint64_t> found(chunks_.size());
  Crew crew(chunks_.size());
  auto sum_group = [&](size_t first) {
    for (size_t i = first; i < std::min(first + kGroup, chunks_.size()); ++i) {
      if (chunks_[i].dropped()) continue;
      crew.add([&found, i, this] { found[i] = sum_of(chunks_[i].memory(), chunks_[i].bytes); });
    }
  };
  sum_group(0);
  for (size_t i = 0; i < chunks_.size();) {
    if (i >= Tuning::kSavedUnderWay * kGroup) copier.finish_oldest();
    crew.finish();
    sum_group(i + kGroup);
    for (const size_t end = std::min(i + kGroup, chunks_.size()); i < end; ++i) {
      if (chunks_[i].dropped()) continue;
      check(chunks_[i], found[i]);
      copier.start(within(wanted, i), memory(i), i * kChunk, false);
    }
    copier.submit();
  }
  copier.finish();
  for (size_t i = 0; i < chunks_.size() && verify; ++i) {
    if (!chunks_[i].dropped()) compare(i);
  }
}

}  // namespace glake
