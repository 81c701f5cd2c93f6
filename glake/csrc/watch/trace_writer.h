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
  // When a trace's file is emptied.
  enum class Begin {
    kNow,
    // At the first event, and only once in the process. So a program that allocates nothing leaves
    // an earlier trace as it is, and one that goes on after a shutdown continues its own.
    kFirstEvent,
  };
  // Throws Error if the file cannot be written, or if it is to be emptied now and another process
  // writes it. `%p` in the path is this process's id. No trace may be in progress.
  void start(const std::string& name, Begin begin);
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
  // The numbers of a trace's next block and step.
  struct Numbers {
    uint64_t id = 0, step = 0;
  };

  unsigned stream_number(StreamHandle stream);
  bool writes() const { return file_ != nullptr && failure_ == 0; }
  void empty_file();
  bool lock_file();
  bool may_write();
  __attribute__((format(printf, 2, 3))) void print(const char* pattern, ...);

  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::string path_;
  int failure_ = 0;      // errno of the first write that failed; nothing is written after it
  bool taken_ = false;   // the failure: another process writes the file
  bool begins_ = false;  // the file is emptied at the first event
  Numbers next_;
  std::unordered_map<std::string, Numbers> stopped_;  // traces of this process, by path
  std::unordered_map<void*, uint64_t> ids_;
  std::unordered_map<StreamHandle, unsigned> streams_;
};

}  // namespace glake
