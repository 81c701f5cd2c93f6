// Checks of what glake relies on in streams, events, copies, capture and host memory.
#pragma once

#include <thread>

#include "cuda_table.h"

inline void check_stream_order_across_two_views() {
  Memory memory;
  Range first(granule), second(granule);
  first.map(0, memory);
  second.map(0, memory);
  first.grant(0, granule);
  second.grant(0, granule);
  Pinned host(granule);
  Stream stream;
  for (unsigned round = 1; round <= 8; ++round) {
    OK(cu.cuMemsetD8Async(first.base, static_cast<unsigned char>(round), granule, stream));
    OK(cu.cuMemcpyDtoHAsync(host.at, second.base, granule, stream));
    OK(cu.cuStreamSynchronize(stream));
    TRUE(host.bytes()[0] == round && host.bytes()[granule - 1] == round);
  }
}

inline void check_event_orders_streams() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Pinned host(granule);
  Stream writer, reader;
  Event event;
  for (unsigned round = 1; round <= 8; ++round) {
    OK(cu.cuMemsetD8Async(range.base, static_cast<unsigned char>(round), granule, writer));
    OK(cu.cuEventRecord(event, writer));
    OK(cu.cuStreamWaitEvent(reader, event, 0));
    OK(cu.cuMemcpyDtoHAsync(host.at, range.base, granule, reader));
    OK(cu.cuStreamSynchronize(reader));
    TRUE(host.bytes()[granule / 2] == round);
  }
}

inline void check_event_states() {
  Stream stream;
  Event event;
  OK(cu.cuEventQuery(event));  // never recorded: complete
  OK(cu.cuEventSynchronize(event));
  OK(cu.cuStreamWaitEvent(stream, event, 0));
  OK(cu.cuEventRecord(event, stream));
  const CUresult early = cu.cuEventQuery(event);
  TRUE(early == CUDA_SUCCESS || early == CUDA_ERROR_NOT_READY);
  OK(cu.cuEventSynchronize(event));
  OK(cu.cuEventQuery(event));
  OK(cu.cuStreamQuery(stream));
}

inline void check_polling_ends() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Stream stream;
  Event event;
  OK(cu.cuMemsetD8Async(range.base, 3, granule, stream));
  OK(cu.cuEventRecord(event, stream));
  CUresult state = CUDA_ERROR_NOT_READY;
  for (int64_t i = 0; state == CUDA_ERROR_NOT_READY && i < 100000000; ++i) {
    state = cu.cuEventQuery(event);
  }
  OK(state);
}

inline void check_event_times() {
  Memory memory(8 * granule);
  Range range(8 * granule);
  range.map(0, memory);
  range.grant(0, 8 * granule);
  Pinned host(8 * granule);
  Stream stream;
  Event start(CU_EVENT_DEFAULT), end(CU_EVENT_DEFAULT);
  OK(cu.cuEventRecord(start, stream));
  OK(cu.cuMemcpyHtoDAsync(range.base, host.at, 8 * granule, stream));
  OK(cu.cuEventRecord(end, stream));
  OK(cu.cuEventSynchronize(end));
  float milliseconds = -1;
  OK(cu.cuEventElapsedTime(&milliseconds, start, end));
  TRUE(milliseconds > 0 && milliseconds < 10000);
}

inline void check_event_outlives_its_handle() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Stream writer, reader;
  CUevent event = nullptr;
  OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cu.cuMemsetD32Async(range.base, 5, granule / 4, writer));
  OK(cu.cuEventRecord(event, writer));
  OK(cu.cuStreamWaitEvent(reader, event, 0));
  OK(cu.cuEventDestroy(event));  // the wait keeps what it needs
  OK(cu.cuMemsetD32Async(range.base, 6, granule / 4, reader));
  OK(cu.cuStreamSynchronize(reader));
  TRUE(word_at(range.base) == 6);
}

inline void check_legacy_stream_order() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Stream blocking(CU_STREAM_DEFAULT);
  OK(cu.cuMemsetD32Async(range.base, 1, granule / 4, blocking));
  OK(cu.cuMemsetD32Async(range.base, 2, granule / 4, nullptr));
  OK(cu.cuMemsetD32Async(range.base + 4, 3, granule / 4 - 1, blocking));
  OK(cu.cuStreamSynchronize(blocking));
  TRUE(word_at(range.base) == 2 && word_at(range.base + 4) == 3);
  OK(cu.cuMemsetD32Async(range.base, 4, granule / 4, CU_STREAM_PER_THREAD));
  OK(cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
  TRUE(word_at(range.base) == 4);
}

inline void check_pageable_source_is_taken_at_the_call() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Stream stream;
  std::vector<unsigned> source(granule / 4, 11);
  OK(cu.cuMemcpyHtoDAsync(range.base, source.data(), granule, stream));
  source.assign(source.size(), 12);
  OK(cu.cuStreamSynchronize(stream));
  TRUE(word_at(range.base) == 11 && word_at(range.base + granule - 4) == 11);
  std::vector<unsigned> result(granule / 4, 0);
  OK(cu.cuMemcpyDtoHAsync(result.data(), range.base, granule, stream));
  TRUE(result.front() == 11 && result.back() == 11);  // pageable: there when the call returns
}

inline void check_host_function_order() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Pinned host(granule);
  Stream stream;
  static unsigned char seen;
  seen = 0;
  OK(cu.cuMemsetD8Async(range.base, 77, granule, stream));
  OK(cu.cuMemcpyDtoHAsync(host.at, range.base, granule, stream));
  OK(cu.cuLaunchHostFunc(
      stream, [](void* data) { seen = *static_cast<unsigned char*>(data); }, host.at));
  OK(cu.cuStreamSynchronize(stream));
  TRUE(seen == 77);
}

inline void check_values_order_streams() {
  Pinned flag(4096);
  std::memset(flag.at, 0, 4096);
  CUdeviceptr address = 0;
  OK(cu.cuMemHostGetDevicePointer(&address, flag.at, 0));
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  Stream writer, reader;
  OK(cu.cuMemsetD32Async(range.base, 1, granule / 4, writer));
  OK(cu.cuStreamWriteValue32(writer, address, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cu.cuStreamWaitValue32(reader, address, 5, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cu.cuMemsetD32Async(range.base, 2, granule / 4, reader));
  OK(cu.cuStreamSynchronize(reader));
  TRUE(word_at(range.base) == 2);
  TRUE(*static_cast<volatile unsigned*>(flag.at) == 5);
}

inline void check_capture() {
  Memory memory;
  Range range(granule);
  range.map(0, memory);
  range.grant(0, granule);
  put_word(range.base, 1);
  Stream stream, joined;
  Event event;
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status;
  OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  const auto inside = [&] {
    OK(cu.cuStreamIsCapturing(stream, &status));
    TRUE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cu.cuMemsetD32Async(range.base, 2, granule / 4, stream));
    OK(cu.cuEventRecord(event, stream));
    OK(cu.cuStreamWaitEvent(joined, event, 0));
    OK(cu.cuStreamIsCapturing(joined, &status));
    TRUE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cu.cuEventRecord(event, joined));
    OK(cu.cuStreamWaitEvent(stream, event, 0));
  };
  try {
    inside();
  } catch (...) {
    cu.cuStreamEndCapture(stream, &graph);
    throw;
  }
  OK(cu.cuStreamEndCapture(stream, &graph));
  OK(cu.cuGraphDestroy(graph));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventQuery(event));
  OK(cu.cuStreamIsCapturing(stream, &status));
  TRUE(status == CU_STREAM_CAPTURE_STATUS_NONE);
  TRUE(word_at(range.base) == 1);  // captured work does not run
}

// Each stream has a number, the null stream too. The driver tells it during a capture too. A later
// stream with the same handle has another number.
inline void check_stream_numbers() {
  unsigned long long number = 0, again = 0, other = 0, default_stream = 0;
  CUstream stream = nullptr;
  OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cu.cuStreamGetId(stream, &number));
  CUgraph graph = nullptr;
  OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  const CUresult asked = cu.cuStreamGetId(stream, &again);
  OK(cu.cuStreamEndCapture(stream, &graph));
  OK(cu.cuGraphDestroy(graph));
  OK(asked);
  TRUE(again == number);
  OK(cu.cuStreamDestroy(stream));
  for (int i = 0; i < 64; ++i) {
    CUstream later = nullptr;
    OK(cu.cuStreamCreate(&later, CU_STREAM_NON_BLOCKING));
    OK(cu.cuStreamGetId(later, &other));
    OK(cu.cuStreamDestroy(later));
    TRUE(other != number);
  }
  OK(cu.cuStreamGetId(nullptr, &default_stream));
  TRUE(default_stream != number);
}

inline void check_waiting_spoils_a_capture() {
  Stream stream;
  CUgraph graph = nullptr;
  OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUresult waited = cu.cuStreamSynchronize(stream);
  const CUresult ended = cu.cuStreamEndCapture(stream, &graph);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, waited);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended);
  TRUE(graph == nullptr);
}

inline void check_capture_mode_forbids_allocation() {
  Stream stream;
  CUgraph graph = nullptr;
  CUdeviceptr block = 0;
  OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  const CUresult exchanged = cu.cuThreadExchangeStreamCaptureMode(&mode);
  const CUresult relaxed = cu.cuMemAlloc(&block, granule);
  cu.cuThreadExchangeStreamCaptureMode(&mode);
  CUdeviceptr second = 0;
  const CUresult strict = cu.cuMemAlloc(&second, granule);
  cu.cuStreamEndCapture(stream, &graph);
  if (block != 0) OK(cu.cuMemFree(block));
  OK(exchanged);
  OK(relaxed);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, strict);
  TRUE(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
}

inline void check_pinned_and_registered_memory() {
  Pinned host(8192);
  CUdeviceptr address = 0;
  OK(cu.cuMemHostGetDevicePointer(&address, host.at, 0));
  unsigned type = 0;
  OK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(host.at)));
  TRUE(type == CU_MEMORYTYPE_HOST);
  static unsigned char page[16384] __attribute__((aligned(4096)));
  OK(cu.cuMemHostRegister(page, sizeof page, 0));
  const CUresult again = cu.cuMemHostRegister(page, sizeof page, 0);
  OK(cu.cuMemHostUnregister(page));
  GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, again);
  GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cu.cuMemHostUnregister(page));
}

inline void check_pointer_attributes() {
  CUdeviceptr block = 0, base = 0;
  size_t bytes = 0;
  OK(cu.cuMemAlloc(&block, 3 * granule));
  unsigned type = 0;
  int ordinal = -1;
  const CUresult known =
      cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 100);
  const CUresult where =
      cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block + 100);
  const CUresult range = cu.cuMemGetAddressRange(&base, &bytes, block + granule + 5);
  OK(cu.cuMemFree(block));
  OK(known);
  OK(where);
  OK(range);
  TRUE(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
  TRUE(base == block && bytes == 3 * granule);
  int local = 0;
  FAILS(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 reinterpret_cast<CUdeviceptr>(&local)));
}
