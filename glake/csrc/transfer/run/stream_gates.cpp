#include "transfer/run/stream_gates.h"

#include <cstring>

#include "memory/host_pool.h"

namespace glake::transfer {
namespace {

constexpr size_t kPage = 4096, kWordStride = 64;  // each word has its own cache line

}  // namespace

StreamGate StreamGates::take() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (spare_.empty()) {
    void* page = pool_.allocate(kPage);
    std::memset(page, 0, kPage);
    pages_.push_back(page);
    const size_t words = kPage / kWordStride;
    spare_.reserve(pages_.size() * words);
    for (size_t i = 0; i < words; ++i) {
      spare_.push_back(reinterpret_cast<uint32_t*>(static_cast<char*>(page) + i * kWordStride));
    }
  }
  uint32_t* word = spare_.back();
  spare_.pop_back();
  return {this, word, __atomic_load_n(word, __ATOMIC_RELAXED) + 1};
}

void StreamGates::give(uint32_t* word) noexcept {
  std::lock_guard<std::mutex> guard(mutex_);
  spare_.push_back(word);  // room was reserved when the word was made
}

void StreamGates::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  spare_.clear();
  for (; !pages_.empty(); pages_.pop_back()) pool_.free(pages_.back());
}

}  // namespace glake::transfer
