#include "watch/trace_writer.h"

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstring>
#include <utility>

#include "base/utf8.h"

namespace glake {
namespace {

constexpr size_t kMaxTag = 1024;

// In the format a tag has no blanks, and only printable characters.
std::string as_tag(const char* text) {
  return printable(std::string(text, strnlen(text, kMaxTag)), ' ');
}

}  // namespace

void TraceWriter::print(const char* pattern, ...) {
  va_list values;
  va_start(values, pattern);
  if (std::vfprintf(file_, pattern, values) < 0 && failure_ == 0) failure_ = errno;
  va_end(values);
}

void TraceWriter::start(const std::string& path) {
  std::lock_guard<std::mutex> guard(mutex_);
  file_ = std::fopen(path.c_str(), "we");
  if (file_ == nullptr) {
    throw Error(GLAKE_INVALID_OPTION,
                "cannot write a trace to " + path + ": " + std::strerror(errno));
  }
  path_ = path;
  failure_ = 0;
  print("# format: a ID BYTES STREAM [TAG] | f ID | r ID STREAM | s STEP\n# recorder: glake\n");
  next_id_ = next_step_ = 0;
  ids_.clear();
  streams_ = {{0, 0}};
}

void TraceWriter::stop() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ == nullptr) return;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && failure_ == 0) failure_ = errno;
  if (failure_ == 0) return;
  throw Error(GLAKE_FILE_FAILED, "the trace " + path_ +
                                     " is not whole: " + std::strerror(failure_) +
                                     "; record it again, where there is room for it");
}

void TraceWriter::flush() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (writes() && std::fflush(file_) != 0) failure_ = errno;
}

unsigned TraceWriter::stream_number(StreamHandle stream) {
  return streams_.emplace(stream, static_cast<unsigned>(streams_.size())).first->second;
}

void TraceWriter::allocated(void* ptr, Bytes bytes, StreamHandle stream, const char* tag) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!writes()) return;
  ids_[ptr] = next_id_;
  const bool tagged = tag != nullptr && *tag != '\0';
  print("a %" PRIu64 " %" PRIu64 " %u%s%s\n", next_id_++, bytes, stream_number(stream),
        tagged ? " " : "", tagged ? as_tag(tag).c_str() : "");
}

// Blocks that are older than the trace have no line in it.
void TraceWriter::freed(void* ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = ids_.find(ptr);
  if (!writes() || found == ids_.end()) return;
  print("f %" PRIu64 "\n", found->second);
  ids_.erase(found);
}

void TraceWriter::recorded(void* ptr, StreamHandle stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = ids_.find(ptr);
  if (!writes() || found == ids_.end()) return;
  print("r %" PRIu64 " %u\n", found->second, stream_number(stream));
}

void TraceWriter::step() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (writes()) print("s %" PRIu64 "\n", next_step_++);
}

}  // namespace glake
