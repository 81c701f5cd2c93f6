// User objects. CUDA Driver API, Graph Management: cuUserObjectCreate and the calls for such
// objects.
#include "driver.h"
#include "user_objects.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

CUresult cuUserObjectCreate(CUuserObject* object, void* pointer, CUhostFn destroy,
                            unsigned int count, unsigned int flags) {
  return locked(CALL(cuUserObjectCreate), 0, [&](Driver& driver) -> CUresult {
    if (object == nullptr || destroy == nullptr || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
      return fail(CUDA_ERROR_INVALID_VALUE,
                  "cuUserObjectCreate: flags must be CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, and a "
                  "destructor is needed");
    }
    if (count == 0 || count > INT32_MAX) return bad_count("cuUserObjectCreate", count);
    *object = reinterpret_cast<CUuserObject>(driver.user_objects.add(pointer, destroy, count));
    return CUDA_SUCCESS;
  });
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  return locked(CALL(cuUserObjectRetain), 0, [&](Driver& driver) -> CUresult {
    UserObjects::Owned* owned = driver.user_objects.find(object);
    if (owned == nullptr || owned->count == 0) return bad_handle("user object");
    if (count == 0 || count > INT32_MAX) return bad_count("cuUserObjectRetain", count);
    owned->count += count;
    return CUDA_SUCCESS;
  });
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  const CUresult result = locked(CALL(cuUserObjectRelease), 0, [&](Driver& driver) -> CUresult {
    UserObjects::Owned* owned = driver.user_objects.find(object);
    return owned == nullptr ? bad_handle("user object") : UserObjects::release(owned, count);
  });
  bury();
  return result;
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  return locked(CALL(cuGraphRetainUserObject), 0, [&](Driver& driver) -> CUresult {
    Graph* graph = driver.graphs.find(handle);
    UserObjects::Owned* owned = driver.user_objects.find(object);
    if (graph == nullptr) return bad_handle("graph");
    UserObjectPtr kept = owned == nullptr ? nullptr : owned->object.lock();
    if (kept == nullptr) return bad_handle("user object");
    if (count == 0 || count > INT32_MAX) return bad_count("cuGraphRetainUserObject", count);
    if ((flags & ~CU_GRAPH_USER_OBJECT_MOVE) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_GRAPH_USER_OBJECT_MOVE) != 0) {
      const CUresult moved = UserObjects::release(owned, count);
      if (moved != CUDA_SUCCESS) return moved;
    }
    HeldObject& held = graph->objects[reinterpret_cast<uint64_t>(object)];
    held.object = std::move(kept);
    held.count += count;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  const CUresult result =
      locked(CALL(cuGraphReleaseUserObject), 0, [&](Driver& driver) -> CUresult {
        Graph* graph = driver.graphs.find(handle);
        if (graph == nullptr) return bad_handle("graph");
        const auto held = graph->objects.find(reinterpret_cast<uint64_t>(object));
        if (held == graph->objects.end()) return bad_handle("user object");
        if (count == 0 || count > held->second.count) {
          return bad_count("cuGraphReleaseUserObject", count);
        }
        held->second.count -= count;
        if (held->second.count == 0) graph->objects.erase(held);
        return CUDA_SUCCESS;
      });
  bury();
  return result;
}
