#include "debug/findings.h"

#include <cinttypes>
#include <cstdio>

#include "base/tuning.h"
#include "base/utf8.h"

namespace glake {
namespace {

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

const char* words(Damage kind) {
  switch (kind) {
    case Damage::kBefore:
      return "write before the start of a block";
    case Damage::kAfter:
      return "write past the end of a block";
    case Damage::kAfterFree:
      return "write after free";
  }
  return "";
}

}  // namespace

std::string Finding::text() const {
  const Holding& b = *block;
  std::string text = std::string("glake debug: ") + words(kind);
  text += format(": block 0x%" PRIx64 " of %s", b.ptr, counted(b.requested, "byte").c_str());
  if (b.tag != nullptr) text += ", tag \"" + printable(b.tag) + "\"";
  text += format(", stream 0x%" PRIx64 ", cuda:%d", static_cast<uint64_t>(b.stream), b.device);
  text += format(": %s changed, the first at offset %" PRId64 ", the last at offset %" PRId64
                 " from its start;",
                 counted(count, "byte").c_str(), first, last);
  for (const Byte& byte : bytes) {
    text += format("%s [%" PRId64 "] should be 0x%02x, is 0x%02x", &byte == &bytes[0] ? "" : ",",
                   byte.offset, byte.expected, byte.found);
  }
  if (count > bytes.size()) text += ", ...";
  return text + b.allocated.described("\n  allocated at:") + b.freed.described("\n  freed at:");
}

bool find_damage(const char* bytes, Bytes n, uint8_t expected, int64_t offset, Finding* finding) {
  finding->count = 0;
  finding->bytes.clear();
  for (Bytes i = 0; i < n; ++i) {
    auto found = static_cast<uint8_t>(bytes[i]);
    if (found == expected) continue;
    int64_t at = offset + static_cast<int64_t>(i);
    if (finding->count++ == 0) finding->first = at;
    finding->last = at;
    if (finding->bytes.size() < Tuning::kBytesShown)
      finding->bytes.push_back({at, expected, found});
  }
  return finding->count != 0;
}

FindingBook& FindingBook::instance() {
  static auto* book = new FindingBook;
  return *book;
}

void FindingBook::add(Finding finding) {
  found_.fetch_add(1);
  std::lock_guard<std::mutex> guard(mutex_);
  if (unread_.size() == Tuning::kMostFindings) {
    ++beyond_;
  } else {
    unread_.push_back(std::move(finding));
  }
}

std::string FindingBook::read() {
  std::vector<Finding> mine;
  uint64_t beyond = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    mine.swap(unread_);
    std::swap(beyond, beyond_);
  }
  std::string text;
  for (const Finding& finding : mine) text += (text.empty() ? "" : "\n\n") + finding.text();
  if (beyond != 0) text += "\n\nglake debug: and " + std::to_string(beyond) + " more findings";
  return text;
}

}  // namespace glake
