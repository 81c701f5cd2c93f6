#include "watch/trace_writer.h"

#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "base/utf8.h"

namespace glake {
namespace {

constexpr size_t kMaxTag = 1024;

// In the format a tag has no blanks, and only printable characters.
std::string as_tag(const char* text) {
  std::string tag(text, strnlen(text, kMaxTag));
  for (size_t at = 0; at < tag.size();) {
    const size_t length = printable_length(std::string_view(tag).substr(at));
    if (length == 0 || tag[at] == ' ') tag[at] = '_';
    at += length == 0 ? 1 : length;
  }
  return tag;
}

}  // namespace

void TraceWriter::start(const std::string& path) {
  stop();
  std::lock_guard<std::mutex> guard(mutex_);
  file_ = std::fopen(path.c_str(), "we");
  if (file_ == nullptr) {
    throw Error(GLAKE_INVALID_OPTION,
                "cannot write a trace to " + path + ": " + std::strerror(errno));
  }
  std::fputs("# format: a ID BYTES STREAM [TAG] | f ID | r ID STREAM | s STEP\n# recorder: glake\n",
             file_);
  next_id_ = next_step_ = 0;
  ids_.clear();
  streams_ = {{0, 0}};
}

void TraceWriter::stop() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ != nullptr) std::fclose(file_);
  file_ = nullptr;
}

void TraceWriter::flush() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ != nullptr) std::fflush(file_);
}

unsigned TraceWriter::stream_number(StreamHandle stream) {
  return streams_.emplace(stream, static_cast<unsigned>(streams_.size())).first->second;
}

void TraceWriter::allocated(void* ptr, Bytes bytes, StreamHandle stream, const char* tag) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ == nullptr) return;
  ids_[ptr] = next_id_;
  std::fprintf(file_, "a %" PRIu64 " %" PRIu64 " %u", next_id_++, bytes, stream_number(stream));
  if (tag != nullptr && *tag != '\0') std::fprintf(file_, " %s", as_tag(tag).c_str());
  std::fputc('\n', file_);
}

// Blocks that are older than the trace have no line in it.
void TraceWriter::freed(void* ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = ids_.find(ptr);
  if (file_ == nullptr || found == ids_.end()) return;
  std::fprintf(file_, "f %" PRIu64 "\n", found->second);
  ids_.erase(found);
}

void TraceWriter::recorded(void* ptr, StreamHandle stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = ids_.find(ptr);
  if (file_ == nullptr || found == ids_.end()) return;
  std::fprintf(file_, "r %" PRIu64 " %u\n", found->second, stream_number(stream));
}

void TraceWriter::step() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (file_ != nullptr) std::fprintf(file_, "s %" PRIu64 "\n", next_step_++);
}

}  // namespace glake
