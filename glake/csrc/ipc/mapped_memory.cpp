#include "ipc/mapped_memory.h"

#include <algorithm>

#include "driver/device_scope.h"

namespace glake {

Status MappedMemory::grant(Driver& driver, const std::vector<int>& devices) {
  if (legacy || mapped == 0 || granted == devices) return {};
  Status s = driver.set_access(base, mapped, devices, read_only);
  if (s.ok()) granted = devices;
  return s;
}

Status MappedMemory::wait_for_work(Driver& driver) const {
  if (!on.capturing()) return driver.synchronize(on.number());
  throw Error(GLAKE_INVALID_ARGUMENT,
              "what is shared at " + hex(base) + " of " + device_text(on.number()) +
                  " cannot be closed or sealed while a stream is being captured, because that "
                  "waits for the device's work; do it after the capture");
}

Status MappedMemory::take_apart(Driver& driver) {
  Status s;
  if (legacy) {
    if (base != 0) s = driver.close_legacy(base);
    if (s.ok()) base = 0;
  } else {
    if (mapped != 0) s = driver.unmap(base, mapped);
    if (s.ok()) mapped = 0;
  }
  if (!s.ok()) return s;
  held = handle != 0 ? handle_bytes : 0;
  unmapped();
  if (handle != 0) s = driver.release(handle);
  if (!s.ok()) return s;
  handle = 0;
  held = 0;
  if (base != 0) s = driver.free_range(base, reserved);
  if (s.ok()) base = 0;
  return s;
}

void require_granted(Driver& driver, const MappedMemory& memory, const Status& s) {
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused other devices access to what is shared at " +
                                      hex(memory.base) + " of " + device_text(memory.on.number()) +
                                      ": " + driver.describe(s) + "; try again");
}

std::string OwedMemory::give_up(std::unique_ptr<MappedMemory> memory) {
  const Status s = memory->take_apart(driver_);
  return s.ok() ? "" : ". Besides, " + owe(std::move(memory), s);
}

std::string OwedMemory::owe(std::unique_ptr<MappedMemory> memory, const Status& refusal) {
  const Bytes addresses = memory->kept_addresses();
  const std::string what = memory->held != 0
                               ? size_text(memory->held) + " of memory (glake.owed_bytes)"
                               : size_text(addresses) + " of addresses";
  memory->on.sharing().owe_imported(memory->held, addresses, driver_.describe(refusal));
  owed_.push_back(std::move(memory));
  return "the driver refused to take back " + what + ": " + driver_.describe(refusal) +
         ". Emptying the cache (torch.cuda.empty_cache(), glake_empty_cache()), the next opening "
         "and the end of the process try again";
}

void OwedMemory::settle() {
  auto paid = [this](const std::unique_ptr<MappedMemory>& memory) {
    DeviceScope scope(driver_, memory->on.number());
    if (!scope.status().ok()) return false;
    memory->on.sharing().pay_imported(memory->held, memory->kept_addresses());
    const Status s = memory->take_apart(driver_);
    if (s.ok()) return true;
    memory->on.sharing().owe_imported(memory->held, memory->kept_addresses(), driver_.describe(s));
    return false;
  };
  owed_.erase(std::remove_if(owed_.begin(), owed_.end(), paid), owed_.end());
}

}  // namespace glake
