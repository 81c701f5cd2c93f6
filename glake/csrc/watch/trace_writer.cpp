#include "watch/trace_writer.h"

#include <sys/stat.h>
#include <unistd.h>

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
  if (begins_) empty_file();
  va_list values;
  va_start(values, pattern);
  if (std::vfprintf(file_, pattern, values) < 0 && failure_ == 0) failure_ = errno;
  va_end(values);
}

// Empties the file.
void TraceWriter::empty_file() {
  begins_ = false;
  struct stat found{};
  const int fd = fileno(file_);
  const bool file = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);  // and no pipe
  if (file && ftruncate(fd, 0) != 0) failure_ = errno;
  print("# format: a ID BYTES STREAM [TAG] | f ID | r ID STREAM | s STEP\n# recorder: glake\n");
}

void TraceWriter::start(const std::string& path, Begin begin) {
  std::lock_guard<std::mutex> guard(mutex_);
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr) {
    throw Error(GLAKE_INVALID_OPTION,
                "cannot write a trace to " + path + ": " + std::strerror(errno));
  }
  path_ = path;
  failure_ = 0;
  ids_.clear();
  streams_ = {{0, 0}};
  auto known = begin == Begin::kNow ? stopped_.end() : stopped_.find(path);
  next_ = known != stopped_.end() ? known->second : Numbers{};
  begins_ = known == stopped_.end();
  if (begin == Begin::kNow) empty_file();
}

void TraceWriter::stop() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ == nullptr) return;
  struct stat found{};
  if (begins_ && fstat(fileno(file_), &found) == 0 && found.st_size == 0) empty_file();
  if (!begins_) stopped_[path_] = next_;
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
  ids_[ptr] = next_.id;
  const bool tagged = tag != nullptr && *tag != '\0';
  print("a %" PRIu64 " %" PRIu64 " %u%s%s\n", next_.id++, bytes, stream_number(stream),
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
  if (writes()) print("s %" PRIu64 "\n", next_.step++);
}

}  // namespace glake
