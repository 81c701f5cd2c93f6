#include "visible.h"

#include <strings.h>

#include <algorithm>
#include <cstdlib>

#include "gpu_uuid.h"

namespace simcuda {
namespace {

constexpr int kNone = -1;

// The only GPU whose UUID begins with this text; kNone if there is none or more than one.
int by_uuid(const std::string& text, const std::string& machine, int gpus) {
  int found = kNone;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const std::string uuid = gpu_uuid_text(machine, gpu);
    if (strncasecmp(uuid.c_str(), text.c_str(), text.size()) != 0) continue;
    if (found != kNone) return kNone;
    found = gpu;
  }
  return found;
}

int named(const std::string& text, const std::string& machine, int gpus) {
  if (text.rfind("GPU-", 0) == 0) return by_uuid(text, machine, gpus);
  char* end = nullptr;
  const long index = std::strtol(text.c_str(), &end, 10);
  return end == text.c_str() || index < 0 || index >= gpus ? kNone : static_cast<int>(index);
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace

void VisibleGpus::all(int gpus) {
  gpus_.clear();
  for (int gpu = 0; gpu < gpus; ++gpu) gpus_.push_back(gpu);
  visible_ = gpus;
}

void VisibleGpus::choose(const std::string& list, const std::string& machine, int gpus) {
  gpus_.clear();
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const int gpu = named(trimmed(list.substr(at, comma - at)), machine, gpus);
    if (gpu == kNone) break;
    if (number(gpu) >= 0) {
      gpus_.clear();
      break;
    }
    gpus_.push_back(gpu);
    at = comma + 1;
  }
  hide_rest(gpus);
}

void VisibleGpus::hide_rest(int gpus) {
  visible_ = static_cast<int>(gpus_.size());
  for (int gpu = 0; gpu < gpus; ++gpu) {
    if (number(gpu) < 0) gpus_.push_back(gpu);
  }
}

int VisibleGpus::number(int gpu) const {
  const auto at = std::find(gpus_.begin(), gpus_.end(), gpu);
  return at == gpus_.end() ? -1 : static_cast<int>(at - gpus_.begin());
}

int VisibleGpus::device(int gpu) const {
  const int found = number(gpu);
  return found < visible_ ? found : -1;
}

}  // namespace simcuda
