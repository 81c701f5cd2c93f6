// Writes every allocation and free as a trace (docs/trace-format.md) that `glake replay` reads.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/types.h"
#include "driver/driver.h"

namespace glake {

class TraceWriter {
 public:
  // Throws Error if the file cannot be written. No trace may be in progress.
  void start(const std::string& path);
  // Throws Error if the file is not whole, since a write to it has failed. The trace ends all the
  // same.
  void stop();
  void flush();

  // `tag` is the allocating thread's tag, in any characters; null: none.
  void allocated(void* ptr, Bytes bytes, StreamHandle stream, const char* tag);
  void freed(void* ptr);
  void recorded(void* ptr, StreamHandle stream);
  void step();

 private:
  unsigned stream_number(StreamHandle stream);
  bool writes() const { return file_ != nullptr && failure_ == 0; }
  __attribute__((format(printf, 2, 3))) void print(const char* pattern, ...);

  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::string path_;
  int failure_ = 0;  // errno of the first write that failed; nothing is written after it
  uint64_t next_id_ = 0;
  uint64_t next_step_ = 0;
  std::unordered_map<void*, uint64_t> ids_;
  std::unordered_map<StreamHandle, unsigned> streams_;
};

}  // namespace glake
