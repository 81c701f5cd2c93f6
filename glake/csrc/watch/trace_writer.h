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
  // Throws Error if the file cannot be written. Ends a trace in progress.
  void start(const std::string& path);
  void stop();
  void flush();

  // `tag` is the allocating thread's tag, in any characters; null: none.
  void allocated(void* ptr, Bytes bytes, StreamHandle stream, const char* tag);
  void freed(void* ptr);
  void recorded(void* ptr, StreamHandle stream);
  void step();

 private:
  unsigned stream_number(StreamHandle stream);

  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  uint64_t next_id_ = 0;
  uint64_t next_step_ = 0;
  std::unordered_map<void*, uint64_t> ids_;
  std::unordered_map<StreamHandle, unsigned> streams_;
};

}  // namespace glake
