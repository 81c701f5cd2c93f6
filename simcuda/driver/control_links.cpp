// The control interface (simcuda.h): threads at work, links, faults of copies, landings, host
// nodes.
#include "control.h"
#include "driver.h"
#include "simcuda/simcuda.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

// Calls the body under the driver's mutex. Returns an error before cuInit. The books do not count
// these calls, and injected faults do not hit them.
template <class Body>
int control(Body&& body) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return not_initialized();
  Lock lock(driver->mutex);
  return body(*driver, &lock);
}

int set_link(Driver* driver, uint64_t at_ns, const char* from, const char* to, double rate) {
  if (driver->scheduler->clock().paced()) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "links that all processes share keep their speed");
  }
  const CUresult result = driver->scheduler->links().set(at_ns, from, to, rate);
  if (result == CUDA_SUCCESS) driver->scheduler->links_changed();
  return result;
}

int arm(const char* from, const char* to, int64_t k, int64_t times, const CopyFault& fault) {
  return control([&](Driver& driver, Lock*) -> int {
    return driver.scheduler->links().arm(from, to, k, times, fault);
  });
}

}  // namespace

int simcuda_thread(int join) {
  return control([&](Driver& driver, Lock*) {
    driver.scheduler->turns().join(join != 0);
    return CUDA_SUCCESS;
  });
}

int simcuda_work(int join, int rank) {
  return control([&](Driver& driver, Lock* lock) {
    if (join != 0) {
      driver.scheduler->waits().join(lock, rank);
    } else {
      driver.scheduler->turns().join(false);
    }
    return CUDA_SUCCESS;
  });
}

int simcuda_expect(int threads) {
  return control([&](Driver& driver, Lock*) {
    driver.scheduler->turns().expect(threads);
    return CUDA_SUCCESS;
  });
}

int simcuda_aside(int away) {
  return control([&](Driver& driver, Lock*) {
    driver.scheduler->turns().step_aside(away != 0);
    return CUDA_SUCCESS;
  });
}

int simcuda_set_link(const char* from, const char* to, double rate) {
  return control([&](Driver& driver, Lock*) {
    return set_link(&driver, driver.scheduler->clock().now_ns(), from, to, rate);
  });
}

int simcuda_set_link_at(uint64_t ns, const char* from, const char* to, double rate) {
  return control([&](Driver& driver, Lock*) { return set_link(&driver, ns, from, to, rate); });
}

int simcuda_fail_copy(const char* from, const char* to, int64_t k, int code, int64_t times) {
  if (from == nullptr) {
    return control([](Driver& driver, Lock*) {
      driver.scheduler->links().disarm();
      return CUDA_SUCCESS;
    });
  }
  if (code == CUDA_SUCCESS) return fail(CUDA_ERROR_INVALID_VALUE, "a copy cannot fail with 0");
  return arm(from, to, k, times, {static_cast<CUresult>(code), 0, false});
}

int simcuda_stall_copy(const char* from, const char* to, int64_t k, uint64_t ns) {
  return arm(from, to, k, 1, {CUDA_SUCCESS, ns, false});
}

int simcuda_corrupt_copy(const char* from, const char* to, int64_t k, int64_t times) {
  return arm(from, to, k, times, {CUDA_SUCCESS, 0, true});
}

size_t simcuda_edges(char* json, size_t capacity, int clear) {
  std::string text = "{}";
  control([&](Driver& driver, Lock*) {
    text = driver.scheduler->links().json(clear != 0);
    return CUDA_SUCCESS;
  });
  return answer(text, json, capacity);
}

int simcuda_watch_landings(uint64_t address, size_t bytes) {
  return control([&](Driver& driver, Lock*) {
    if (bytes == 0) {
      driver.scheduler->landings() = {};
    } else {
      driver.scheduler->landings().watch(address, bytes);
    }
    return CUDA_SUCCESS;
  });
}

int simcuda_landings(uint64_t address, size_t bytes, uint8_t* counts) {
  return control([&](Driver& driver, Lock*) -> int {
    if (counts != nullptr && driver.scheduler->landings().read(address, bytes, counts)) {
      return CUDA_SUCCESS;
    }
    return fail(CUDA_ERROR_INVALID_VALUE, "landings are counted in watched ranges only");
  });
}

uint64_t simcuda_landed(uint64_t address, size_t bytes, int times) {
  uint64_t total = UINT64_MAX;
  control([&](Driver& driver, Lock*) {
    if (!driver.scheduler->landings().sum(address, bytes, times, &total)) total = UINT64_MAX;
    return CUDA_SUCCESS;
  });
  return total;
}

int simcuda_place_host(const void* address, size_t bytes, int node) {
  return control([&](Driver& driver, Lock*) -> int {
    const std::vector<int>& sockets = driver.topology.node_sockets();
    int socket = -1;
    if (node >= 0 && static_cast<size_t>(node) < sockets.size()) {
      socket = sockets[static_cast<size_t>(node)];
    }
    if (node < -1 || (node >= 0 && socket < 0)) {
      return fail(CUDA_ERROR_INVALID_VALUE, "the platform has no such socket or NUMA node");
    }
    driver.host.place(reinterpret_cast<uint64_t>(address), bytes, socket);
    return CUDA_SUCCESS;
  });
}

int simcuda_host_node(const void* address, size_t bytes, int* node) {
  return control([&](Driver& driver, Lock*) -> int {
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *node = node_of_host(driver, reinterpret_cast<uint64_t>(address), bytes);
    if (*node >= 0) *node = driver.topology.nodes_of(*node)[0];
    return CUDA_SUCCESS;
  });
}
