#include "error.h"

#include <mutex>

#include "simcuda/driver/per_thread.h"
#include "simcuda/simcuda.h"

namespace nccl {
namespace {

std::mutex mutex;
// It is never destroyed, because threads of communicators may fail while the process ends.
std::string& text_of_last() {
  static auto* text = new std::string;
  return *text;
}

}  // namespace

ncclResult fail(ncclResult code, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex);
  text_of_last() = text;
  return code;
}

ncclResult cuda_error(int code, const std::string& call) {
  char why[512] = "";
  simcuda_last_message(why, sizeof why);
  return fail(ncclUnhandledCudaError,
              call + ": CUDA error " + std::to_string(code) + " (" + why + ")");
}

const char* last_error() {
  std::string& copy = simcuda::per_thread<std::string, struct ErrorText>();
  const std::lock_guard<std::mutex> lock(mutex);
  copy = text_of_last();
  return copy.c_str();
}

}  // namespace nccl
