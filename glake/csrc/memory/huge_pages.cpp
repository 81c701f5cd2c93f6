#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

namespace glake {
namespace {

std::atomic<Bytes> mapped_bytes{0};

}  // namespace

void* HugePages::map() {
  // mmap aligns to 4 KiB. Of twice the bytes a part is aligned, and the rest goes back at once.
  void* memory = mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  char* const whole = static_cast<char*>(memory);
  const Bytes before =
      round_up(reinterpret_cast<Address>(whole), kBytes) - reinterpret_cast<Address>(whole);
  char* const begin = whole + before;
  if (before != 0) munmap(whole, before);
  munmap(begin + kBytes, kBytes - before);
  madvise(begin, kBytes, MADV_HUGEPAGE);
  mapped_bytes += kBytes;
  return begin;
}

void HugePages::unmap(void* memory) noexcept {
  munmap(memory, kBytes);
  mapped_bytes -= kBytes;
}

Bytes HugePages::mapped() { return mapped_bytes; }

}  // namespace glake
