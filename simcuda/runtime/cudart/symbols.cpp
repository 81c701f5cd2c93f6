// Variables of the device. Each gets memory on a device when it is first needed there.
#include "symbols.h"

#include <map>
#include <mutex>

#include "cudart.h"

namespace cudart {
namespace {

struct Variable {
  size_t bytes = 0;
  std::map<int, CUdeviceptr> places;  // by device
};

struct Variables {
  std::mutex mutex;
  std::map<const void*, Variable> all;
};

Variables& variables() {
  static auto* kept = new Variables;
  return *kept;
}

// A thread in relaxed mode "is not prohibited from potentially unsafe API calls"
// (cudaThreadExchangeStreamCaptureMode). A module's variables exist from its load on. So captures
// must not notice that they get memory only now.
class Relaxed {
 public:
  Relaxed() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

Error place(const void* symbol, CUdeviceptr* address, size_t* bytes) {
  Variables& known = variables();
  std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.all.find(symbol);
  if (found == known.all.end()) return kInvalidSymbol;
  *bytes = found->second.bytes;
  CUdeviceptr& at = found->second.places[current_device()];
  if (at == 0) {
    const Relaxed relaxed;
    CUresult result = driver().cuMemAlloc(&at, found->second.bytes);
    if (result == CUDA_SUCCESS) result = driver().cuMemsetD8(at, 0, found->second.bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  *address = at;
  return kSuccess;
}

// Finds the part of a variable that a copy uses.
Error part(const void* symbol, size_t bytes, size_t offset, CUdeviceptr* address) {
  size_t whole = 0;
  const Error placed = place(symbol, address, &whole);
  if (placed != kSuccess) return placed;
  if (offset > whole || bytes > whole - offset) return kInvalidValue;
  *address += offset;
  return kSuccess;
}

}  // namespace

void add_variable(const void* host, size_t bytes) {
  std::lock_guard<std::mutex> lock(variables().mutex);
  variables().all[host].bytes = bytes;
}

// Its memory stays taken. Libraries are rarely unloaded, and a driver call is not allowed while the
// process ends.
void forget_variable(const void* host) {
  std::lock_guard<std::mutex> lock(variables().mutex);
  variables().all.erase(host);
}

}  // namespace cudart

using namespace cudart;  // NOLINT: what follows is the C face

CUDART(cudaGetSymbolAddress)(void** pointer, const void* symbol) {
  CUDART_READY();
  CUdeviceptr address = 0;
  size_t bytes = 0;
  if (pointer == nullptr) return told(kInvalidValue);
  const Error placed = place(symbol, &address, &bytes);
  if (placed == kSuccess) *pointer = reinterpret_cast<void*>(address);
  return told(placed);
}

CUDART(cudaGetSymbolSize)(size_t* bytes, const void* symbol) {
  CUDART_READY();
  CUdeviceptr address = 0;
  return told(bytes == nullptr ? kInvalidValue : place(symbol, &address, bytes));
}

CUDART(cudaMemcpyToSymbol)
(const void* symbol, const void* from, size_t bytes, size_t offset, int kind) {
  CUDART_READY();
  CUdeviceptr to = 0;
  if (kind != kHostToDevice && kind != kDeviceToDevice && kind != kDefault) {
    return told(kInvalidMemcpyDirection);
  }
  const Error placed = part(symbol, bytes, offset, &to);
  return told(placed != kSuccess || bytes == 0 ? placed
                                               : driver().cuMemcpy(to, address(from), bytes));
}

CUDART(cudaMemcpyFromSymbol)
(void* to, const void* symbol, size_t bytes, size_t offset, int kind) {
  CUDART_READY();
  CUdeviceptr from = 0;
  if (kind != kDeviceToHost && kind != kDeviceToDevice && kind != kDefault) {
    return told(kInvalidMemcpyDirection);
  }
  const Error placed = part(symbol, bytes, offset, &from);
  return told(placed != kSuccess || bytes == 0 ? placed
                                               : driver().cuMemcpy(address(to), from, bytes));
}
