#include "watch/trace_writer.h"

#include <fcntl.h>
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

bool regular(std::FILE* file) {
  struct stat found{};
  return fstat(fileno(file), &found) == 0 && S_ISREG(found.st_mode);
}

std::string with_process(std::string path) {
  const std::string id = std::to_string(getpid());
  for (size_t at = 0; (at = path.find("%p", at)) != std::string::npos; at += id.size()) {
    path.replace(at, 2, id);
  }
  return path;
}

std::string taken_text(const std::string& path) {
  return "another process writes the trace " + path +
         ", so this one cannot: name a file for each process (%p in the name is its id)";
}

// In the format a tag has no blanks, and only printable characters.
std::string as_tag(const char* text) {
  return printable(std::string(text, strnlen(text, kMaxTag)), ' ');
}

}  // namespace

void TraceWriter::print(const char* pattern, ...) {
  if (begins_) empty_file();
  if (taken_) return;
  va_list values;
  va_start(values, pattern);
  if (std::vfprintf(file_, pattern, values) < 0 && failure_ == 0) failure_ = errno;
  va_end(values);
}

// False if another process writes the file. A forked child has no such lock, because it writes no
// trace. Pipes and devices may have several writers, and where the file system has no locks, nobody
// is refused.
bool TraceWriter::lock_file() {
  if (!regular(file_)) return true;
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(fileno(file_), F_SETLK, &whole) == 0) return true;
  taken_ = errno == EACCES || errno == EAGAIN;
  return !taken_;
}

// The same. An allocation that begins a trace cannot fail for that, so the refusal is printed at
// once, and is an error when the trace ends.
bool TraceWriter::may_write() {
  if (lock_file()) return true;
  failure_ = EAGAIN;
  std::fprintf(stderr, "glake: %s\n", taken_text(path_).c_str());
  return false;
}

void TraceWriter::empty_file() {
  begins_ = false;
  if (!may_write()) return;
  const int fd = fileno(file_);
  const bool file = regular(file_);
  if (file && ftruncate(fd, 0) != 0) failure_ = errno;
  print("# format: a ID BYTES STREAM [TAG] | f ID | r ID STREAM | s STEP\n# recorder: glake\n");
}

void TraceWriter::start(const std::string& name, Begin begin) {
  const std::string path = with_process(name);
  std::lock_guard<std::mutex> guard(mutex_);
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr) {
    throw Error(GLAKE_INVALID_OPTION,
                "cannot write a trace to " + path + ": " + std::strerror(errno));
  }
  path_ = path;
  failure_ = 0;
  taken_ = false;
  if (begin == Begin::kNow && !lock_file()) {
    std::fclose(std::exchange(file_, nullptr));
    throw Error(GLAKE_INVALID_OPTION, taken_text(path));
  }
  ids_.clear();
  streams_ = {{0, 0}};
  auto known = begin == Begin::kNow ? stopped_.end() : stopped_.find(path);
  next_ = known != stopped_.end() ? known->second : Numbers{};
  begins_ = known == stopped_.end();
  if (begin == Begin::kNow) {
    empty_file();
  } else if (!begins_) {
    may_write();
  }
}

void TraceWriter::stop() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ == nullptr) return;
  struct stat found{};
  const bool empty = fstat(fileno(file_), &found) == 0 && found.st_size == 0;
  if (begins_ && empty && lock_file()) empty_file();
  if (begins_) taken_ = false;  // nothing of it was to be written
  if (!begins_) stopped_[path_] = next_;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && failure_ == 0) failure_ = errno;
  if (taken_) throw Error(GLAKE_FILE_FAILED, taken_text(path_));
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
