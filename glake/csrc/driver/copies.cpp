// Glake's own streams, copies, calls that order copies with the host, and facts about addresses.

#include "driver/calls.h"
#include "driver/device_scope.h"

namespace glake {
namespace {

Status absent() { return glake::status(CUDA_ERROR_NOT_SUPPORTED); }

template <class Shape>
void fill_in(const Driver::Rows& rows, Shape* shape) {
  shape->dstMemoryType = shape->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  shape->dstDevice = rows.dst;
  shape->dstPitch = rows.dst_pitch;
  shape->srcDevice = rows.src;
  shape->srcPitch = rows.src_pitch;
  shape->WidthInBytes = rows.width;
  shape->Height = rows.count;
}

}  // namespace

Status Driver::create_stream(StreamHandle* stream) {
  if (table_->cuStreamCreate == nullptr || table_->cuStreamDestroy == nullptr) return absent();
  CUstream made = nullptr;
  CUresult r = table_->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
  *stream = reinterpret_cast<StreamHandle>(made);
  return status(r);
}

Status Driver::destroy_stream(StreamHandle stream) {
  if (table_->cuStreamDestroy == nullptr) return absent();
  return status(table_->cuStreamDestroy(stream_of(stream)));
}

Status Driver::stream_idle(int device, StreamHandle stream, bool* idle) {
  *idle = false;
  if (table_->cuStreamQuery == nullptr) return absent();
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  Status s = status(table_->cuStreamQuery(stream_of(stream)));
  *idle = s.ok();
  return s.not_ready() ? Status{} : s;
}

Status Driver::synchronize_stream(int device, StreamHandle stream) {
  if (table_->cuStreamSynchronize == nullptr) return absent();
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  return status(table_->cuStreamSynchronize(stream_of(stream)));
}

Status Driver::copy(Address dst, Address src, Bytes bytes, StreamHandle stream) {
  if (table_->cuMemcpyAsync == nullptr) return absent();
  return status(table_->cuMemcpyAsync(dst, src, bytes, stream_of(stream)));
}

void* Driver::context_of(int device) {
  std::lock_guard<std::mutex> guard(attach_mutex_);
  return contexts_[static_cast<size_t>(device)];
}

Status Driver::copy_peer(Address dst, int dst_device, Address src, int src_device, Bytes bytes,
                         StreamHandle stream) {
  if (table_->cuMemcpyPeerAsync == nullptr) return absent();
  return status(table_->cuMemcpyPeerAsync(dst, static_cast<CUcontext>(context_of(dst_device)), src,
                                          static_cast<CUcontext>(context_of(src_device)), bytes,
                                          stream_of(stream)));
}

Status Driver::copy_rows(const Rows& rows, StreamHandle stream) {
  if (table_->cuMemcpy2DAsync == nullptr) return absent();
  CUDA_MEMCPY2D shape{};
  fill_in(rows, &shape);
  return status(table_->cuMemcpy2DAsync(&shape, stream_of(stream)));
}

Status Driver::copy_peer_rows(const Rows& rows, int dst_device, int src_device,
                              StreamHandle stream) {
  if (table_->cuMemcpy3DPeerAsync == nullptr) return absent();
  CUDA_MEMCPY3D_PEER shape{};
  fill_in(rows, &shape);
  shape.Depth = 1;
  shape.dstContext = static_cast<CUcontext>(context_of(dst_device));
  shape.srcContext = static_cast<CUcontext>(context_of(src_device));
  return status(table_->cuMemcpy3DPeerAsync(&shape, stream_of(stream)));
}

bool Driver::has_rows() const {
  return table_->cuMemcpy2DAsync != nullptr && table_->cuMemcpy3DPeerAsync != nullptr;
}

Status Driver::copy_batch(Address* dsts, Address* srcs, Bytes* sizes, size_t count,
                          StreamHandle stream) {
  static_assert(sizeof(Address) == sizeof(CUdeviceptr) && sizeof(Bytes) == sizeof(size_t),
                "the driver's arrays are ours");
  if (table_->copy_batch == nullptr) return absent();
  driver::BatchAttributes attributes{};
  attributes.source_order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
  size_t first = 0, failed = 0;
  // The driver only reads the arrays, although its signature has no const.
  auto addresses = [](Address* a) { return reinterpret_cast<CUdeviceptr*>(a); };
  return status(table_->copy_batch(addresses(dsts), addresses(srcs),
                                   reinterpret_cast<size_t*>(sizes), count, &attributes, &first, 1,
                                   &failed, stream_of(stream)));
}

bool Driver::has_batches() const { return table_->copy_batch != nullptr; }

Status Driver::unsupported() { return absent(); }

Status Driver::host_function(int device, StreamHandle stream, void (*function)(void*), void* data) {
  if (table_->cuLaunchHostFunc == nullptr) return absent();
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  return status(table_->cuLaunchHostFunc(stream_of(stream), function, data));
}

Status Driver::write_value(int device, StreamHandle stream, Address at, uint32_t value) {
  if (table_->cuStreamWriteValue32 == nullptr) return absent();
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  return status(
      table_->cuStreamWriteValue32(stream_of(stream), at, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

Status Driver::wait_value(int device, StreamHandle stream, Address at, uint32_t value) {
  if (table_->cuStreamWaitValue32 == nullptr) return absent();
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  return status(
      table_->cuStreamWaitValue32(stream_of(stream), at, value, CU_STREAM_WAIT_VALUE_GEQ));
}

Status Driver::register_host(void* base, Bytes bytes) {
  if (table_->cuMemHostRegister == nullptr) return absent();
  return status(table_->cuMemHostRegister(base, bytes, CU_MEMHOSTREGISTER_PORTABLE));
}

Status Driver::unregister_host(void* base) {
  if (table_->cuMemHostUnregister == nullptr) return absent();
  return status(table_->cuMemHostUnregister(base));
}

Status Driver::device_pointer(void* host, Address* address) {
  *address = 0;
  if (table_->cuMemHostGetDevicePointer == nullptr) return absent();
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuMemHostGetDevicePointer(&pointer, host, 0);
  *address = pointer;
  return status(r);
}

Status Driver::pointer_facts(Address address, PointerFacts* facts, bool access) {
  *facts = {};
  if (table_->cuPointerGetAttributes == nullptr) return absent();
  unsigned type = 0, managed = 0;
  int device = -1;
  CUdeviceptr base = 0;
  size_t size = 0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* into[] = {&type, &managed, &device, &base, &size};
  Status s = status(table_->cuPointerGetAttributes(5, which, into, address));
  // For an address that they do not know, some drivers return an error and others zeros.
  if (s.code == CUDA_ERROR_INVALID_VALUE) return {};
  if (!s.ok() || type == 0) return s;
  using Kind = PointerFacts::Kind;
  facts->kind = managed != 0                   ? Kind::kManaged
                : type == CU_MEMORYTYPE_DEVICE ? Kind::kDevice
                                               : Kind::kHost;
  if (facts->kind != Kind::kHost) facts->device = device;
  facts->base = base;
  facts->size = size;
  if (!access) return {};
  // This is a call of its own, because drivers before CUDA 11.1 do not know the attribute.
  unsigned long long allowed = 0;
  CUpointer_attribute flags = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
  void* word = &allowed;
  if (table_->cuPointerGetAttributes(1, &flags, &word, address) == CUDA_SUCCESS) {
    facts->read_only = allowed == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
  }
  return {};
}

bool Driver::peers_reach(Address address) {
  if (table_->cuPointerGetAttributes == nullptr) return false;
  // What may be shared as legacy IPC is memory of cuMemAlloc.
  unsigned legacy = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
  void* word = &legacy;
  return table_->cuPointerGetAttributes(1, &which, &word, address) == CUDA_SUCCESS && legacy != 0;
}

bool Driver::accessible(Address address) {
  if (table_->cuPointerGetAttributes == nullptr) return false;
  unsigned long long access = 0;
  CUpointer_attribute flags = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
  void* word = &access;
  return table_->cuPointerGetAttributes(1, &flags, &word, address) == CUDA_SUCCESS &&
         access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
}

Status Driver::enable_peer(int device, int peer) {
  if (table_->cuCtxEnablePeerAccess == nullptr) return absent();
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  CUresult r = table_->cuCtxEnablePeerAccess(static_cast<CUcontext>(context_of(peer)), 0);
  return status(r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : r);
}

}  // namespace glake
