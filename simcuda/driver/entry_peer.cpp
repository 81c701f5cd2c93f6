// Which devices reach each other, and peer access between contexts.
#include "driver.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

bool both(const Driver& driver, CUdevice a, CUdevice b) {
  return a >= 0 && b >= 0 && a < driver.devices && b < driver.devices;
}

bool peers(const Driver& driver, CUdevice a, CUdevice b) {
  return driver.topology.peers(driver.gpus.gpu(a), driver.gpus.gpu(b));
}

template <class Body>
CUresult with_peer(Symbol symbol, CUcontext handle, Body&& body) {
  return in_context(symbol, 0, [&](Driver& driver, Context& context) -> CUresult {
    const Context* peer = driver.contexts.live(handle);
    if (peer == nullptr || peer == &context) {
      return fail(CUDA_ERROR_INVALID_CONTEXT, "not another live context");
    }
    return body(driver, context, *peer);
  });
}

}  // namespace

CUresult cuDeviceCanAccessPeer(int* result, CUdevice device, CUdevice peer) {
  return call(CALL(cuDeviceCanAccessPeer), 0, [&](Driver& driver) -> CUresult {
    if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!both(driver, device, peer)) return no_device();
    *result = peers(driver, device, peer);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetP2PAttribute(int* result, CUdevice_P2PAttribute which, CUdevice device,
                                 CUdevice peer) {
  return call(CALL(cuDeviceGetP2PAttribute), 0, [&](Driver& driver) -> CUresult {
    if (result == nullptr || device == peer) return CUDA_ERROR_INVALID_VALUE;
    if (!both(driver, device, peer)) return no_device();
    const bool linked = driver.topology.linked(driver.gpus.gpu(device), driver.gpus.gpu(peer));
    switch (which) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *result = linked ? 0 : 1;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        *result = peers(driver, device, peer);
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *result = linked;
        return CUDA_SUCCESS;
      default:
        *result = 0;
        return CUDA_SUCCESS;
    }
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
  return with_peer(CALL(cuCtxEnablePeerAccess), handle,
                   [&](Driver& driver, Context& context, const Context& peer) -> CUresult {
                     if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
                     if (!peers(driver, context.device, peer.device)) {
                       return fail(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                                   "the devices cannot reach each other");
                     }
                     const uint32_t bit = 1u << peer.device;
                     if ((context.peers & bit) != 0) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
                     context.peers |= bit;
                     return CUDA_SUCCESS;
                   });
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  return with_peer(CALL(cuCtxDisablePeerAccess), handle,
                   [&](Driver&, Context& context, const Context& peer) -> CUresult {
                     const uint32_t bit = 1u << peer.device;
                     if ((context.peers & bit) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
                     context.peers &= ~bit;
                     return CUDA_SUCCESS;
                   });
}
