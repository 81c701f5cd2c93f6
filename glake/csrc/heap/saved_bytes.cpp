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
  for (const Portion& portion : portions_) all += portion.dropped() ? 0 : portion.bytes;
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
    const Bytes here = std::min(bytes, kPortion - total_ % kPortion);
    parts_.push_back({at, here, total_, block});
    at += here;
    total_ += here;
    bytes -= here;
  }
  // Parts are aligned as blocks are, so that neighbours stay neighbours.
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

void SavedBytes::write(const Portion& portion, const char* from, Bytes at) {
  for (Bytes done = 0; done < portion.bytes;) {
    const ssize_t n =
        pwrite(*file_, from + done, portion.bytes - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw system_error("the region's bytes cannot be written to " + folder_,
                         "name another folder, or pause to host memory");
    }
    done += static_cast<Bytes>(n);
  }
}

void SavedBytes::read(const Portion& portion, char* to, Bytes at) {
  for (Bytes done = 0; done < portion.bytes;) {
    const ssize_t n = pread(*file_, to + done, portion.bytes - done, static_cast<off_t>(at + done));
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

void SavedBytes::check(const Portion& portion, uint64_t sum) const {
  if (sum == portion.sum) return;
  throw Error(GLAKE_CORRUPTED, "the region's bytes in " + place_text() +
                                   " are not those that were saved: something has written there");
}

std::vector<SavedPart> SavedBytes::within(const std::vector<SavedPart>& parts,
                                          size_t portion) const {
  auto before = [](const SavedPart& part, Bytes offset) { return part.offset < offset; };
  auto first = std::lower_bound(parts.begin(), parts.end(), portion * kPortion, before);
  auto last = std::lower_bound(first, parts.end(), (portion + 1) * kPortion, before);
  return {first, last};
}

void SavedBytes::record(BytesCopier& copier) {
  for (const Portion& portion : portions_) {
    if (portion.memory() != nullptr) copier.record(portion.memory());
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
  for (Bytes at = 0; at < total_; at += kPortion) {
    const Bytes bytes = std::min(kPortion, total_ - at);
    portions_.push_back({place(at, bytes), bytes, 0});
  }
  if (!disk) {
    Crew crew(portions_.size());
    // The sums of one group are computed while the next group is copied.
    for (size_t done = 0, next = 0; done < portions_.size();) {
      for (; next < portions_.size() && next < done + 2 * kGroup; ++next) {
        copier.start(within(parts_, next), portions_[next].memory(), next * kPortion, true);
        if ((next + 1) % kGroup == 0 || next + 1 == portions_.size()) copier.submit();
      }
      copier.finish_oldest();
      for (const size_t end = std::min(done + kGroup, portions_.size()); done < end; ++done) {
        Portion& portion = portions_[done];
        crew.add([&portion] { portion.sum = sum_of(portion.memory(), portion.bytes); });
      }
    }
    copier.finish();
    crew.finish();
    return;
  }
  Staging staging(host_, copier, portions_.front().bytes);
  for (size_t i = 0; i < portions_.size(); ++i) {
    copier.start(within(parts_, i), staging.memory(), i * kPortion, true);
    copier.finish();
    portions_[i].sum = sum_of(staging.memory(), portions_[i].bytes);
    write(portions_[i], staging.memory(), i * kPortion);
  }
}

void SavedBytes::write_all(BytesCopier& copier, bool verify, const std::vector<SavedPart>& wanted) {
  if (portions_.empty() || wanted.empty()) return;
  const bool disk = to_ == GLAKE_REGION_DISK;
  const Bytes largest = portions_.front().bytes;
  std::unique_ptr<Staging> staging, back;
  if (disk) staging = std::make_unique<Staging>(host_, copier, largest);
  if (verify) back = std::make_unique<Staging>(host_, copier, largest);
  auto memory = [&](size_t i) { return disk ? staging->memory() : portions_[i].memory(); };
  auto compare = [&](size_t i) {
    const std::vector<SavedPart> parts = within(wanted, i);
    copier.start(parts, back->memory(), i * kPortion, true);
    copier.finish();
    for (const SavedPart& part : parts) {
      const Bytes at = part.offset - i * kPortion;
      if (std::memcmp(back->memory() + at, memory(i) + at, part.bytes) == 0) continue;
      throw Error(GLAKE_CORRUPTED, "the " + size_text(part.bytes) + " at " + hex(part.at) +
                                       " are not what was written there from " + place_text());
    }
  };
  if (disk) {
    for (size_t i = 0; i < portions_.size(); ++i) {
      if (portions_[i].dropped()) continue;
      read(portions_[i], memory(i), i * kPortion);
      check(portions_[i], sum_of(memory(i), portions_[i].bytes));
      copier.start(within(wanted, i), memory(i), i * kPortion, false);
      copier.finish();
      if (verify) compare(i);
    }
    return;
  }
  // The sums of one group are computed while another group is copied.
  std::vector<uint64_t> found(portions_.size());
  Crew crew(portions_.size());
  auto sum_group = [&](size_t first) {
    for (size_t i = first; i < std::min(first + kGroup, portions_.size()); ++i) {
      if (portions_[i].dropped()) continue;
      crew.add([&found, i, this] { found[i] = sum_of(portions_[i].memory(), portions_[i].bytes); });
    }
  };
  sum_group(0);
  for (size_t i = 0; i < portions_.size();) {
    if (i >= Tuning::kSavedUnderWay * kGroup) copier.finish_oldest();
    crew.finish();
    sum_group(i + kGroup);
    for (const size_t end = std::min(i + kGroup, portions_.size()); i < end; ++i) {
      if (portions_[i].dropped()) continue;
      check(portions_[i], found[i]);
      copier.start(within(wanted, i), memory(i), i * kPortion, false);
    }
    copier.submit();
  }
  copier.finish();
  for (size_t i = 0; i < portions_.size() && verify; ++i) {
    if (!portions_[i].dropped()) compare(i);
  }
}

}  // namespace glake
