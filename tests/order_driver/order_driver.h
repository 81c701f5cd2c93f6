// What a test asks of the driver beside it that keeps no bytes and no time, only the order of
// work. It is opened by its path, as glake opens it, so that its cu* functions meet nobody
// else's.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrderDriver {
  // As if just loaded, with so many granules of 2 MiB. A question about unfinished work is answered
  // "finished" once in `lag` times, at random.
  void (*reset)(uint64_t granules, unsigned lag, uint64_t seed);
  // Streams of the test's own, which neither wait for another nor are waited for; 0 is taken.
  uintptr_t (*stream)();
  // Work on `stream` is ordered after what is enqueued on `after` now.
  void (*order)(uintptr_t stream, uintptr_t after);
  // The host waits for a stream.
  void (*wait)(uintptr_t stream);
  // A caller has got, uses, and gives back [ptr, ptr + bytes). Blocks are told apart by number.
  void (*got)(uint64_t block, uint64_t ptr, uint64_t bytes);
  void (*use)(uint64_t block, uint64_t ptr, uint64_t bytes, uintptr_t stream);
  void (*gone)(uint64_t block);
  // A fault of the driver's, to see that it is noticed: a wait that orders nothing, and a question
  // that is always answered "finished" and means nothing.
  void (*break_waits)(int broken);
  void (*break_queries)(int broken);
  // The first things found, one a line; how many there were.
  uint64_t (*found)(char* text, size_t room);
  // What is left of the allocator's: reservations, mappings, handles and events.
  uint64_t (*left)();
  // How often work came after work of another block on another stream, and only the order of the
  // two streams said so. A run without any tests nothing.
  uint64_t (*crossings)();
};

__attribute__((visibility("default"))) const OrderDriver* order_driver();
}
