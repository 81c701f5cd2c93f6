// CUresult codes with their names and descriptions, and the calling thread's last message.
#include <string>
#include <utility>

#include "kernels.h"
#include "per_thread.h"
#include "types.h"

namespace simcuda {
namespace {

struct Error {
  CUresult code;
  const char* name;
  const char* text;
};

#define E(code, text) {code, #code, text}
constexpr Error kErrors[] = {
    E(CUDA_SUCCESS, "no error"),
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    E(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    E(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    E(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    E(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    E(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    E(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    E(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    E(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    E(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    E(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    E(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    E(CUDA_ERROR_NOT_READY, "device not ready"),
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    E(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    E(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    E(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the memory is already registered"),
    E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered region"),
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous capture error"),
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would merge two capture sequences"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the stream it began in"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work"),
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would depend on the default stream"),
    E(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in capture"),
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "capture ended by a thread that did not begin it"),
    E(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    E(CUDA_ERROR_EXTERNAL_DEVICE, "an asynchronous error occurred on another device"),
    E(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef E

const Error* find(CUresult code) {
  for (const Error& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

CUresult give(const char* text, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = text;
  return text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

struct LastMessage;
std::string& message() { return per_thread<std::string, LastMessage>(); }

}  // namespace

CUresult fail(CUresult code, std::string text) {
  message() = std::move(text);
  return code;
}

CUresult no_addresses(uint64_t bytes) {
  return fail(CUDA_ERROR_OUT_OF_MEMORY,
              "no address space for simcuda: it reserves " + std::to_string(bytes >> 20) +
                  " MiB of addresses, of which little is touched; a limit on them is in the way "
                  "(ulimit -v)");
}

const std::string& last_message() { return message(); }

const char* error_name(CUresult code) {
  const Error* error = find(code);
  return error == nullptr ? nullptr : error->name;
}

}  // namespace simcuda

SIMCUDA_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  return simcuda::give(simcuda::error_name(error), text);
}

SIMCUDA_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  const simcuda::Error* found = simcuda::find(error);
  // PyTorch shows this text to the user. It names the refused kernel.
  const char* refused = simcuda::refused_kernel();
  if (error == CUDA_ERROR_NOT_SUPPORTED && refused != nullptr) return simcuda::give(refused, text);
  return simcuda::give(found == nullptr ? nullptr : found->text, text);
}
