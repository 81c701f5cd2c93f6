// Physical memory, addresses and mappings, and how other processes and the host reach them.
#include <cstring>

#include "driver/calls.h"

namespace glake {
namespace {

constexpr uint8_t kShareable = 1, kRdma = 2;

CUmemAllocationProp granule_properties(int device, uint8_t traits) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  if ((traits & kShareable) != 0) {
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if ((traits & kRdma) != 0) prop.allocFlags.gpuDirectRDMACapable = 1;
  return prop;
}

}  // namespace

Status Driver::granularity(int device, Bytes* bytes) {
  CUmemAllocationProp prop =
      granule_properties(device, traits_[static_cast<size_t>(device)].load());
  size_t value = 0;
  CUresult r =
      table_->cuMemGetAllocationGranularity(&value, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  *bytes = value;
  return status(r);
}

Status Driver::choose_traits(int device) {
  CUdevice d = 0;
  int shareable = 0, rdma = 0;
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) {
    r = table_->cuDeviceGetAttribute(
        &shareable, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, d);
  }
  if (r == CUDA_SUCCESS) {
    r = table_->cuDeviceGetAttribute(
        &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, d);
    // The attribute is newer than VMM. A driver that does not know it has no such memory.
    if (r == CUDA_ERROR_INVALID_VALUE) {
      rdma = 0;
      r = CUDA_SUCCESS;
    }
  }
  if (r != CUDA_SUCCESS) return status(r);
  bool exports = shareable != 0 && table_->cuMemExportToShareableHandle != nullptr &&
                 table_->cuMemImportFromShareableHandle != nullptr;
  traits_[static_cast<size_t>(device)] =
      static_cast<uint8_t>((exports ? kShareable : 0) | (rdma != 0 ? kRdma : 0));
  return {};
}

MemoryTraits Driver::traits(int device) const {
  uint8_t bits = traits_[static_cast<size_t>(device)].load();
  return {(bits & kShareable) != 0, (bits & kRdma) != 0};
}

Status Driver::reserve(Bytes bytes, Address* base) {
  count(Call::kReserve);
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuMemAddressReserve(&pointer, bytes, 0, 0, 0);
  *base = pointer;
  return status(r);
}

Status Driver::free_range(Address base, Bytes bytes) {
  count(Call::kFree);
  return status(table_->cuMemAddressFree(base, bytes));
}

Status Driver::create(int device, Handle* handle, Bytes bytes) {
  std::atomic<uint8_t>& traits = traits_[static_cast<size_t>(device)];
  for (;;) {
    count(Call::kCreate);
    uint8_t asked = traits.load();
    CUmemAllocationProp prop = granule_properties(device, asked);
    CUmemGenericAllocationHandle h = 0;
    Status s = status(table_->cuMemCreate(&h, bytes, &prop, 0));
    *handle = h;
    if (s.ok() || !s.not_supported() || asked == 0) return s;
    // Drops the trait for network cards first, then the trait for other processes.
    traits = (asked & kRdma) != 0 ? asked & kShareable : 0;
  }
}

Status Driver::release(Handle handle) {
  count(Call::kRelease);
  return status(table_->cuMemRelease(handle));
}

Status Driver::map(Address at, Handle handle, Bytes bytes) {
  count(Call::kMap);
  return status(table_->cuMemMap(at, bytes, 0, handle, 0));
}

Status Driver::unmap(Address at, Bytes bytes) {
  count(Call::kUnmap);
  return status(table_->cuMemUnmap(at, bytes));
}

Status Driver::set_access(Address at, Bytes bytes, const std::vector<int>& devices,
                          bool read_only) {
  count(Call::kAccess);
  std::vector<CUmemAccessDesc> grants(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    grants[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    grants[i].location.id = devices[i];
    grants[i].flags =
        read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return status(table_->cuMemSetAccess(at, bytes, grants.data(), grants.size()));
}

Status Driver::memory_info(Bytes* free, Bytes* total) {
  size_t f = 0, t = 0;
  CUresult r = table_->cuMemGetInfo(&f, &t);
  *free = f;
  *total = t;
  return status(r);
}

Bytes Driver::creatable(int device) {
  const Bytes kept = headroom(device);
  if (kept == 0) return UINT64_MAX;
  Bytes free = 0, total = 0;
  const bool known = memory_info(&free, &total).ok();
  return known && free > kept ? free - kept : 0;
}

Status Driver::fill(Address at, uint8_t value, Bytes bytes, StreamHandle stream) {
  return status(table_->cuMemsetD8Async(at, value, bytes, stream_of(stream)));
}

Status Driver::copy_to_host(void* host, Address from, Bytes bytes, StreamHandle stream) {
  return status(table_->cuMemcpyDtoHAsync(host, from, bytes, stream_of(stream)));
}

Status Driver::export_fd(Handle handle, int* fd) {
  need(table_->cuMemExportToShareableHandle != nullptr, "cuMemExportToShareableHandle");
  return status(table_->cuMemExportToShareableHandle(fd, handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

Status Driver::import_fd(int fd, Handle* handle) {
  need(table_->cuMemImportFromShareableHandle != nullptr, "cuMemImportFromShareableHandle");
  CUmemGenericAllocationHandle h = 0;
  CUresult r =
      table_->cuMemImportFromShareableHandle(&h, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  *handle = h;
  return status(r);
}

Status Driver::allocate_legacy(Bytes bytes, Address* base) {
  need(table_->cuMemAlloc != nullptr && table_->cuMemFree != nullptr, "cuMemAlloc or cuMemFree");
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuMemAlloc(&pointer, bytes);
  *base = pointer;
  return status(r);
}

Status Driver::free_legacy(Address base) { return status(table_->cuMemFree(base)); }

Status Driver::legacy_handle(Address base, LegacyHandle* handle) {
  static_assert(sizeof(LegacyHandle) == sizeof(CUipcMemHandle), "the driver's own size");
  need(table_->cuIpcGetMemHandle != nullptr, "cuIpcGetMemHandle");
  CUipcMemHandle h{};
  CUresult r = table_->cuIpcGetMemHandle(&h, base);
  std::memcpy(handle->data(), &h, sizeof h);
  return status(r);
}

Status Driver::open_legacy(const LegacyHandle& handle, Address* base) {
  need(table_->cuIpcOpenMemHandle != nullptr && table_->cuIpcCloseMemHandle != nullptr,
       "cuIpcOpenMemHandle or cuIpcCloseMemHandle");
  CUipcMemHandle h{};
  std::memcpy(&h, handle.data(), sizeof h);
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuIpcOpenMemHandle(&pointer, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  *base = pointer;
  return status(r);
}

Status Driver::close_legacy(Address base) { return status(table_->cuIpcCloseMemHandle(base)); }

Status Driver::allocate_host(Bytes bytes, void** base) {
  need(table_->cuMemHostAlloc != nullptr && table_->cuMemFreeHost != nullptr,
       "cuMemHostAlloc or cuMemFreeHost");
  return status(table_->cuMemHostAlloc(base, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

Status Driver::free_host(void* base) { return status(table_->cuMemFreeHost(base)); }

}  // namespace glake
