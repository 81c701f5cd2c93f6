#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "base/numbers.h"

namespace simcuda {
namespace {

constexpr int kAddressBits = 48;
constexpr size_t kOwnerBytes = (size_t{1} << kAddressBits) / kGranule * sizeof(uint32_t);
constexpr uint32_t kEveryRead = 0x55555555u, kEveryWrite = 0xaaaaaaaau;

bool aligned(uint64_t value) { return value % kGranule == 0; }

CUresult invalid(const std::string& why) { return fail(CUDA_ERROR_INVALID_VALUE, why); }

}  // namespace

Memory::~Memory() {
  if (owner_ != nullptr) munmap(owner_, kOwnerBytes);
  for (Reservation& reservation : reservations_) {
    if (reservation.bytes == 0) continue;
    if (!backing_.phantom()) backing_.release(reservation.base, reservation.bytes);
    std::free(reservation.page);
  }
}

CUresult Memory::start(Machine* machine, const VisibleGpus* gpus, bool phantom,
                       std::vector<uint32_t> reach, int64_t max_maps) {
  machine_ = machine;
  gpus_ = gpus;
  devices_ = gpus->count();
  handles_.start(machine, gpus);
  reach_ = std::move(reach);
  backing_.start(phantom, machine->memory_fd(), max_maps);
  void* table = mmap(nullptr, kOwnerBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) return no_addresses(kOwnerBytes);
  owner_ = static_cast<uint32_t*>(table);
  return CUDA_SUCCESS;
}

Reservation* Memory::find(CUdeviceptr address) {
  if (address >> kAddressBits != 0) return nullptr;
  const uint32_t owner = owner_[address / kGranule];
  return owner == 0 ? nullptr : &reservations_[owner - 1];
}

Page* Memory::page_at(CUdeviceptr address, Reservation** found) {
  Reservation* reservation = find(address);
  if (found != nullptr) *found = reservation;
  if (reservation == nullptr) return nullptr;
  Page* page = &reservation->page[(address - reservation->base) / kGranule];
  return page->handle == 0 ? nullptr : page;
}

CUresult Memory::reserve(size_t bytes, size_t alignment, CUdeviceptr hint, CUdeviceptr* address) {
  if (bytes == 0 || !aligned(bytes)) {
    return invalid("cuMemAddressReserve: size " + std::to_string(bytes) +
                   " is not a positive multiple of 2 MiB");
  }
  if ((alignment & (alignment - 1)) != 0) return invalid("cuMemAddressReserve: alignment");
  CUdeviceptr base = 0;
  const CUresult result =
      backing_.reserve(bytes, std::max(alignment, kGranule), aligned(hint) ? hint : 0, &base);
  if (result != CUDA_SUCCESS) return result;
  auto* pages = static_cast<Page*>(std::calloc(bytes / kGranule, sizeof(Page)));
  if (pages == nullptr || (base + bytes) >> kAddressBits != 0) {
    std::free(pages);
    backing_.release(base, bytes);
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "the host has no memory for the reservation's pages");
  }
  uint32_t slot;
  if (free_reservations_.empty()) {
    slot = static_cast<uint32_t>(reservations_.size());
    reservations_.emplace_back();
    if (free_reservations_.capacity() < reservations_.size()) {
      free_reservations_.reserve(2 * reservations_.size());
    }
  } else {
    slot = free_reservations_.back();
    free_reservations_.pop_back();
  }
  Reservation& made = reservations_[slot];
  made = Reservation{};
  made.base = base;
  made.bytes = bytes;
  made.page = pages;
  std::fill_n(owner_ + base / kGranule, bytes / kGranule, slot + 1);
  ++live_reservations_;
  reserved_bytes_ += static_cast<int64_t>(bytes);
  *address = base;
  return CUDA_SUCCESS;
}

CUresult Memory::free_range(CUdeviceptr address, size_t bytes) {
  Reservation* reservation = find(address);
  if (reservation == nullptr || reservation->base != address || reservation->bytes != bytes) {
    return invalid("cuMemAddressFree: not a whole reservation");
  }
  if (reservation->mapped != 0) {
    return invalid("cuMemAddressFree: " + std::to_string(reservation->mapped) +
                   " pages are still mapped");
  }
  const uint32_t slot = owner_[address / kGranule] - 1;
  std::fill_n(owner_ + address / kGranule, bytes / kGranule, 0u);
  backing_.release(address, bytes);
  std::free(reservation->page);
  *reservation = Reservation{};
  free_reservations_.push_back(slot);
  --live_reservations_;
  reserved_bytes_ -= static_cast<int64_t>(bytes);
  return CUDA_SUCCESS;
}

std::vector<CUdeviceptr> Memory::owned_by(uint64_t context) const {
  std::vector<CUdeviceptr> owned;
  for (const Reservation& each : reservations_) {
    if (each.owner == context) owned.push_back(each.base);
  }
  return owned;
}

CUresult Memory::retain(CUdeviceptr address, uint64_t* id) {
  Reservation* reservation = nullptr;
  Page* page = page_at(address, &reservation);
  if (page == nullptr || reservation->allocation != 0) {
    return invalid("cuMemRetainAllocationHandle: no cuMemMap mapping there");
  }
  *id = handles_.id(page->handle - 1);
  ++handle_of(*page)->refs;
  return CUDA_SUCCESS;
}

CUresult Memory::check_range(CUdeviceptr address, size_t bytes, Reservation** reservation,
                             size_t* first, size_t* pages) {
  if (bytes == 0 || !aligned(bytes) || !aligned(address)) {
    return invalid("address and size must be multiples of 2 MiB");
  }
  *reservation = find(address);
  if (*reservation == nullptr) return invalid("the address is not reserved");
  const size_t offset = address - (*reservation)->base;
  if (bytes > (*reservation)->bytes - offset) return invalid("the range leaves its reservation");
  *first = offset / kGranule;
  *pages = bytes / kGranule;
  return CUDA_SUCCESS;
}

CUresult Memory::map(CUdeviceptr address, size_t bytes, size_t offset, uint64_t id) {
  Reservation* reservation = nullptr;
  size_t first = 0, pages = 0;
  CUresult result = check_range(address, bytes, &reservation, &first, &pages);
  if (result != CUDA_SUCCESS) return result;
  if (offset != 0) return invalid("cuMemMap: offset must be 0");
  Handle* handle = handles_.find(id);
  if (handle == nullptr || handle->refs == 0) return invalid("cuMemMap: not a live handle");
  if (pages != handle->pages) return invalid("cuMemMap: size is not the handle's");
  Page* page = reservation->page + first;
  for (size_t i = 0; i < pages; ++i) {
    if (page[i].handle != 0) return invalid("cuMemMap: something is already mapped there");
  }
  if (!backing_.phantom()) {
    if ((result = backing_.room_for(2)) != CUDA_SUCCESS) return result;
    if ((result = backing_.map(address, bytes, handle->offset)) != CUDA_SUCCESS) return result;
  }
  const int64_t before = count_splits(*reservation, first, pages);
  const uint32_t slot = Slots<Handle, 1>::index_of(id) + 1;
  for (size_t i = 0; i < pages; ++i) page[i] = {slot, static_cast<uint32_t>(i), 0};
  backing_.count_maps(count_splits(*reservation, first, pages) - before);
  ++handle->maps;
  reservation->mapped += pages;
  mapped_pages_[handle->prop.location.id] += static_cast<int64_t>(pages);
  return CUDA_SUCCESS;
}

// Whether the range has only whole mappings, no hole, and memory that `devices` can reach. Also
// counts the mappings.
CUresult Memory::check_whole_mappings(const Reservation& reservation, size_t first, size_t pages,
                                      uint32_t devices, uint64_t* mappings) {
  uint64_t count = 0;
  for (size_t i = first; i < first + pages;) {
    const Page& page = reservation.page[i];
    if (page.handle == 0) return invalid("part of the range is not mapped");
    const Handle& handle = handles_.at(page.handle - 1);
    if (page.index != 0 || i + handle.pages > first + pages) {
      return invalid("the range cuts a mapping in two");
    }
    if ((devices & ~reach_[static_cast<size_t>(handle.prop.location.id)]) != 0) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "cuMemSetAccess: a device cannot reach memory of " +
                                                 glake::device_text(handle.prop.location.id));
    }
    i += handle.pages;
    ++count;
  }
  if (mappings != nullptr) *mappings = count;
  return CUDA_SUCCESS;
}

CUresult Memory::unmap(CUdeviceptr address, size_t bytes, uint64_t* mappings) {
  Reservation* reservation = nullptr;
  size_t first = 0, pages = 0;
  CUresult result = check_range(address, bytes, &reservation, &first, &pages);
  if (result == CUDA_SUCCESS) {
    result = check_whole_mappings(*reservation, first, pages, 0, mappings);
  }
  if (result == CUDA_SUCCESS) result = backing_.unmap(address, bytes);
  if (result != CUDA_SUCCESS) return result;
  const int64_t before = count_splits(*reservation, first, pages);
  for (size_t i = first; i < first + pages; ++i) {
    Page& page = reservation->page[i];
    Handle* handle = handle_of(page);
    const uint64_t id = handles_.id(page.handle - 1);
    const bool last = page.index + 1 == handle->pages;
    --mapped_pages_[handle->prop.location.id];
    if (page.access != 0) --granted_pages_[handle->prop.location.id];
    page = Page{};
    if (last) {
      --handle->maps;
      handles_.drop_if_unused(id);
    }
  }
  backing_.count_maps(count_splits(*reservation, first, pages) - before);
  reservation->mapped -= pages;
  return CUDA_SUCCESS;
}

// Turns the descriptors into masks for Page::access.
CUresult Memory::read_access(const CUmemAccessDesc* desc, size_t count, AccessChange* change) {
  for (size_t i = 0; i < count; ++i) {
    const int device = desc[i].location.id;
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= devices_) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "cuMemSetAccess: no such device");
    }
    if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return invalid("cuMemSetAccess: flags");
    }
    const int shift = 2 * device;
    change->clear |= 3u << shift;
    change->set = (change->set & ~(3u << shift)) | static_cast<uint32_t>(desc[i].flags) << shift;
    if (desc[i].flags != 0) change->devices |= 1u << device;
  }
  return CUDA_SUCCESS;
}

CUresult Memory::set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* desc,
                            size_t count, uint64_t* mappings) {
  Reservation* reservation = nullptr;
  size_t first = 0, pages = 0;
  AccessChange change;
  CUresult result = check_range(address, bytes, &reservation, &first, &pages);
  if (result == CUDA_SUCCESS) result = read_access(desc, count, &change);
  if (result == CUDA_SUCCESS) {
    result = check_whole_mappings(*reservation, first, pages, change.devices, mappings);
  }
  if (result != CUDA_SUCCESS) return result;
  if ((result = backing_.room_for(2)) != CUDA_SUCCESS) return result;
  const int64_t before = count_splits(*reservation, first, pages);
  // The host's protection is the union over all devices. A run of pages with the same protection
  // takes one call.
  for (size_t i = first; i < first + pages && result == CUDA_SUCCESS;) {
    const uint32_t access = (reservation->page[i].access & ~change.clear) | change.set;
    size_t end = i;
    for (; end < first + pages; ++end) {
      Page& page = reservation->page[end];
      if (((page.access & ~change.clear) | change.set) != access) break;
      if ((access != 0) != (page.access != 0)) {
        granted_pages_[handle_of(page)->prop.location.id] += access != 0 ? 1 : -1;
      }
      page.access = access;
    }
    result = backing_.protect(reservation->base + i * kGranule, (end - i) * kGranule,
                              (access & kEveryRead) != 0, (access & kEveryWrite) != 0);
    i = end;
  }
  backing_.count_maps(count_splits(*reservation, first, pages) - before);
  return result;
}

CUresult Memory::get_access(CUdeviceptr address, int device, unsigned long long* flags) {
  if (device < 0 || device >= devices_) {
    return fail(CUDA_ERROR_INVALID_DEVICE, "cuMemGetAccess: no such device");
  }
  Page* page = page_at(address);
  if (page == nullptr) return invalid("cuMemGetAccess: nothing is mapped there");
  *flags = page->access >> (2 * device) & 3;
  return CUDA_SUCCESS;
}

CUresult Memory::grant_all(Reservation* block) {
  const CUresult result = backing_.protect(block->base, block->limit, true, true);
  if (result != CUDA_SUCCESS) return result;
  const Handle* handle = handle_of(block->page[0]);
  for (size_t i = 0; i < handle->pages; ++i) block->page[i].access = ~0u;
  granted_pages_[handle->prop.location.id] += handle->pages;
  return CUDA_SUCCESS;
}

bool Memory::accessible(CUdeviceptr address, size_t bytes, int device, bool write) {
  const uint32_t bits = write ? 2u : 1u;
  const uint32_t wanted = device < 0 ? (write ? kEveryWrite : kEveryRead) : bits << (2 * device);
  if (bytes > UINT64_MAX - address) return false;
  for (CUdeviceptr at = address; at < address + bytes;) {
    Reservation* reservation = nullptr;
    Page* page = page_at(at, &reservation);
    if (page != nullptr && reservation->allocation != 0 &&
        address + bytes - reservation->base > reservation->limit) {
      return false;
    }
    if (page == nullptr || (page->access & wanted) == 0) return false;
    at = (at / kGranule + 1) * kGranule;
  }
  return true;
}

// Whether Linux needs a new mapping at `page`, and cannot continue that of the page before.
bool Memory::splits(const Reservation& reservation, size_t page) const {
  if (page == 0 || page >= reservation.bytes / kGranule) return false;
  const Page& a = reservation.page[page - 1];
  const Page& b = reservation.page[page];
  if (a.handle == 0 || b.handle == 0) return (a.handle == 0) != (b.handle == 0);
  const auto protection = [](uint32_t access) {
    return (access & kEveryRead ? 1 : 0) | (access & kEveryWrite ? 2 : 0);
  };
  const uint64_t end = handles_.at(a.handle - 1).offset + (a.index + uint64_t{1}) * kGranule;
  const uint64_t start = handles_.at(b.handle - 1).offset + b.index * kGranule;
  return end != start || protection(a.access) != protection(b.access);
}

int64_t Memory::count_splits(const Reservation& reservation, size_t first, size_t pages) const {
  if (backing_.phantom()) return 0;
  int64_t count = 0;
  for (size_t page = first; page <= first + pages; ++page) count += splits(reservation, page);
  return count;
}

MemoryCounts Memory::counts(int device) {
  return {live_reservations_, reserved_bytes_, handles_.live(device), mapped_pages_[device],
          granted_pages_[device]};
}

}  // namespace simcuda
