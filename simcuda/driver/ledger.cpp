// The ledger (simcuda_ledger): counts of everything alive, as one JSON object.
#include "control.h"
#include "driver.h"

namespace simcuda {

std::string ledger_json(int device) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked || device < 0 || device >= driver->devices) return "{}";
  std::lock_guard<std::mutex> lock(driver->mutex);
  const MemoryCounts counts = driver->memory.counts(device);
  std::string text = "{";
  const auto add = [&](const char* key, int64_t value) {
    if (text.size() > 1) text += ", ";
    text += std::string("\"") + key + "\": " + std::to_string(value);
  };
  add("device", device);
  add("reservations", counts.reservations);
  add("reserved_bytes", counts.reserved_bytes);
  add("handles", counts.handles);
  add("mapped_granules", counts.mapped_pages);
  add("granted_granules", counts.granted_pages);
  add("used_bytes", static_cast<int64_t>(driver->machine->used(driver->gpus.gpu(device))));
  add("capacity_bytes", static_cast<int64_t>(driver->machine->capacity()));
  add("kernel_mappings", driver->memory.backing().maps());
  add("streams", static_cast<int64_t>(driver->streams.live()));
  add("events", static_cast<int64_t>(driver->streams.events().live()));
  add("graphs", static_cast<int64_t>(driver->graphs.live()));
  add("modules", static_cast<int64_t>(driver->kernels.modules()));
  add("libraries", static_cast<int64_t>(driver->libraries.live()));
  add("host_blocks", static_cast<int64_t>(driver->host.blocks()));
  add("host_bytes", static_cast<int64_t>(driver->host.bytes()));
  add("pending_work", static_cast<int64_t>(driver->scheduler->pending().size()));
  add("context_refs", driver->contexts.primary(device)->refs);
  add("ticks", static_cast<int64_t>(driver->tick_clock.ticks()));
  return text + "}";
}

}  // namespace simcuda
