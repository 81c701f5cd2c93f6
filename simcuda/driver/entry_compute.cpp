// Kernels that code outside simcuda computes (compute.h).
#include <cstring>

#include "driver.h"
#include "simcuda/compute.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

std::atomic<bool> numbers{false};
thread_local int covers = 0;
thread_local int missed = 0;

// Kernels that change no numbers: torch.cuda._sleep spins.
constexpr const char* kHarmless[] = {"spin_kernel"};

}  // namespace

bool simcuda::covered() { return covers > 0; }

bool simcuda::computed_by_somebody(const char* kernel) {
  if (covers > 0 || !numbers.load(std::memory_order_relaxed)) return true;
  for (const char* name : kHarmless) {
    if (std::strstr(kernel, name) != nullptr) return true;
  }
  return false;
}

bool simcuda::missed_in_cover() {
  if (covers == 0) return false;
  ++missed;
  return true;
}

int simcuda_phantom(void) {
  const Driver* driver = running.load(std::memory_order_acquire);
  if (driver != nullptr) return driver->options.phantom ? 1 : 0;
  Options options;
  Topology topology;
  return describe(&options, &topology) == CUDA_SUCCESS && options.phantom ? 1 : 0;
}

int simcuda_numbers(int on) {
  if (on != 0 && simcuda_phantom() != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "phantom memory has no bytes to compute numbers with: unset GLAKE_SIM_PHANTOM, or "
                "do without numbers");
  }
  numbers = on != 0;
  return CUDA_SUCCESS;
}

int simcuda_compute(CUstream handle, const simcuda_computed* work) {
  const auto op = std::make_shared<Op>();
  op->kind = Op::Kind::kCompute;
  op->compute = work->compute;
  op->data = work->data;
  op->keep = std::shared_ptr<void>(work->data, work->release);
  for (size_t i = 0; i < work->count; ++i) {
    const simcuda_touched& piece = work->pieces[i];
    op->touched.push_back({piece.address, piece.bytes, piece.write != 0});
  }
  op->computes = static_cast<Op::Computes>(work->makes);
  for (size_t i = 0; i < work->followed_count; ++i) {
    const simcuda_followed& piece = work->followed[i];
    op->followed.push_back({piece.address, piece.bytes, piece.read != 0, piece.write != 0,
                            piece.write == SIMCUDA_KEEPS});
  }
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return not_initialized();
  const std::lock_guard<std::mutex> lock(driver->mutex);
  Stream* stream = driver->streams.resolve(handle, driver->contexts.current());
  return stream != nullptr ? submit(driver, stream, op) : bad_handle("stream");
}

int simcuda_known_ahead(CUstream handle, const simcuda_followed* followed, size_t count) {
  constexpr int kEverything = SIMCUDA_ALL_READ | SIMCUDA_ANY_READ | SIMCUDA_ANY_WRITTEN;
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return kEverything;
  const std::lock_guard<std::mutex> lock(driver->mutex);
  const Stream* stream = driver->streams.resolve(handle, driver->contexts.current());
  if (stream == nullptr || stream->capture != nullptr) return kEverything;
  const Foreseen& foreseen = driver->scheduler->foreseen();
  int found = SIMCUDA_ALL_READ;
  for (const simcuda_followed* piece = followed; piece != followed + count; ++piece) {
    const bool any = foreseen.any(piece->address, piece->bytes);
    if (piece->read != 0 && any) found |= SIMCUDA_ANY_READ;
    if (piece->write == 1 && any) found |= SIMCUDA_ANY_WRITTEN;
    if (piece->read != 0 && !(any && foreseen.all(piece->address, piece->bytes))) {
      found &= ~SIMCUDA_ALL_READ;
    }
  }
  return found;
}

size_t simcuda_known_read(uint64_t address, void* to, size_t bytes) {
  Driver* driver = running.load(std::memory_order_acquire);
  return driver != nullptr ? driver->scheduler->known().read(address, to, bytes) : 0;
}

void simcuda_known_write(int device, uint64_t address, const void* from, size_t bytes) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr) return;
  if (from != nullptr) {
    driver->scheduler->known().write(device, address, from, bytes);
  } else {
    driver->scheduler->known().forget(address, bytes);
  }
}

void simcuda_cover(void) {
  if (covers++ == 0) missed = 0;
}

int simcuda_uncover(void) {
  --covers;
  return missed;
}

int simcuda_capturing(CUstream handle) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return 0;
  const std::lock_guard<std::mutex> lock(driver->mutex);
  const Stream* stream = driver->streams.resolve(handle, driver->contexts.current());
  return stream != nullptr && stream->capture != nullptr ? 1 : 0;
}
