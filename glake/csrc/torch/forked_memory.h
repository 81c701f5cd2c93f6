// What a forked child does with the simulated device memory that it inherits. The memory is a
// shared file. Without this, a write on either side would appear on the other. The child replaces
// each mapping by a private one of the same pages, at the same address, and copies the live blocks.
// All of it runs in a pthread_atfork child handler, so it makes system calls only, and uses neither
// malloc nor stdio.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torch/maps_reader.h"

namespace glake::adapter {

class ForkedMemory {
 public:
  // Called once in the parent, with any address in device memory. Remembers the name of its
  // mapping. Memory that is not a shared file (another driver's) needs nothing and stays as it is.
  void learn(const void* address) {
    auto wanted = reinterpret_cast<uintptr_t>(address);
    MapsReader maps;
    Mapping m;
    while (maps.next(&m)) {
      if (wanted < m.begin || wanted >= m.end || !m.shared) continue;
      std::memcpy(name_, m.name, sizeof name_);
      known_ = true;
    }
  }

  // Called in the child. Makes every mapping of that name private. False if a mapping could not be
  // made private. Such a mapping becomes read-only, because a fault in the child is better than a
  // write into the parent's tensors.
  bool make_private() {
    if (!known_) return true;
    void* table = mmap(nullptr, kMost * sizeof(Mapping), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) return false;
    mappings_ = static_cast<Mapping*>(table);
    {
      MapsReader maps;  // it reads all mappings before any is remapped
      while (count_ < kMost && maps.next(&mappings_[count_])) {
        const Mapping& m = mappings_[count_];
        if (m.shared && std::strcmp(m.name, name_) == 0) ++count_;
      }
    }
    bool all = true;
    for (size_t i = 0; i < count_; ++i) all = make_private(mappings_[i]) && all;
    return all;
  }

  // Called in the child, after make_private(). Copies a block's pages, so that the child does not
  // see later writes of the parent. A block of a paused region has no pages, and is left out.
  void copy(void* block, size_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(block);
    const auto end = begin + bytes;
    // The first mapping that ends after the block begins; the kernel lists them by address.
    size_t at = 0;
    for (size_t step = kMost; step != 0; step /= 2) {
      if (at + step <= count_ && mappings_[at + step - 1].end <= begin) at += step;
    }
    for (; at < count_ && mappings_[at].begin < end; ++at) {
      if ((mappings_[at].protection & PROT_WRITE) == 0) continue;  // nobody can write there
      copy_pages(begin > mappings_[at].begin ? begin : mappings_[at].begin,
                 end < mappings_[at].end ? end : mappings_[at].end);
    }
  }

  // Called in the child: the list of mappings is no longer needed.
  void forget() {
    if (mappings_ != nullptr) munmap(mappings_, kMost * sizeof(Mapping));
    mappings_ = nullptr;
    count_ = 0;
  }

 private:
  static constexpr size_t kMost = size_t{1} << 20;  // mappings; 16 times the kernel's usual limit

  // Writing to a private page is what copies it.
  static void copy_pages(uintptr_t begin, uintptr_t end) {
    constexpr uintptr_t kPage = 4096;
    begin = begin / kPage * kPage;
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14: all pages by one call
    if (madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite) == 0) return;
    for (uintptr_t page = begin; page < end; page += kPage) {
      auto* byte = reinterpret_cast<volatile char*>(page);
      *byte = *byte;
    }
  }

  bool make_private(const Mapping& m) {
    void* at = reinterpret_cast<void*>(m.begin);
    size_t bytes = m.end - m.begin;
    constexpr int kHow = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    auto offset = static_cast<off_t>(m.offset);
    if (find_file(m) && mmap(at, bytes, m.protection, kHow, file_, offset) != MAP_FAILED) {
      return true;
    }
    mprotect(at, bytes, m.protection & ~PROT_WRITE);
    return false;
  }

  // Finds the descriptor of the mapping's file, because the simulator keeps its memory files open.
  bool find_file(const Mapping& m) {
    if (file_inode_ == m.inode) return file_ >= 0;
    file_ = -1;
    file_inode_ = m.inode;
    long limit = sysconf(_SC_OPEN_MAX);
    for (int fd = 0; fd < limit; ++fd) {
      struct stat info;
      if (fstat(fd, &info) != 0 || info.st_ino != m.inode || major(info.st_dev) != m.device_major ||
          minor(info.st_dev) != m.device_minor) {
        continue;
      }
      file_ = fd;
      return true;
    }
    return false;
  }

  char name_[sizeof(Mapping::name)] = "";
  bool known_ = false;
  Mapping* mappings_ = nullptr;
  size_t count_ = 0;
  int file_ = -1;
  uint64_t file_inode_ = 0;
};

}  // namespace glake::adapter
