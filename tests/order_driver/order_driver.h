// How a test controls the order driver, which keeps only the order of work, and no bytes and no
// time. The test opens it by its path, as glake does, so that its cu* functions do not mix with
// another driver's.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrderDriver {
  // Starts as if just loaded, with so many granules of 2 MiB. A question about unfinished work is
  // answered "finished" once in `lag` times, at random.
  void (*reset)(uint64_t granules, unsigned lag, uint64_t seed);
  // Makes a stream for the test. No other stream waits for it, and it waits for none. It is not 0,
  // which is the default stream.
  uintptr_t (*stream)();
  // Work on `stream` is ordered after what is enqueued on `after` now.
  void (*order)(uintptr_t stream, uintptr_t after);
  // The host waits for a stream.
  void (*wait)(uintptr_t stream);
  // A caller got, uses, and gave back [ptr, ptr + bytes). `block` is a number of the test's.
  void (*got)(uint64_t block, uint64_t ptr, uint64_t bytes);
  void (*use)(uint64_t block, uint64_t ptr, uint64_t bytes, uintptr_t stream);
  void (*gone)(uint64_t block);
  // Faults of the driver that a test must notice: waits that order nothing, and questions that are
  // always answered "finished".
  void (*break_waits)(int broken);
  void (*break_queries)(int broken);
  // Writes the first findings, one a line. Returns how many there were.
  uint64_t (*found)(char* text, size_t room);
  // How many reservations, mappings, handles and events of the allocator are left.
  uint64_t (*left)();
  // How often work came after work of another block on another stream, and only the order of the
  // two streams ensured it. A run without such a case tests nothing.
  uint64_t (*crossings)();
};

__attribute__((visibility("default"))) const OrderDriver* order_driver();
}
