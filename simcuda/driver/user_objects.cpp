#include "user_objects.h"

#include <string>

namespace simcuda {

CUresult bad_count(const char* call, uint64_t count) {
  return fail(CUDA_ERROR_INVALID_VALUE,
              std::string(call) + ": " + std::to_string(count) + " references");
}

uint64_t UserObjects::add(void* pointer, CUhostFn destroy, uint64_t count) {
  Owned made;
  made.kept = std::make_shared<UserObject>(pointer, destroy);
  made.object = made.kept;
  made.count = count;
  return owned_.add(std::move(made));
}

CUresult UserObjects::release(Owned* owned, uint64_t count) {
  if (count == 0 || count > owned->count) return bad_count("a release of a user object", count);
  owned->count -= count;
  if (owned->count == 0) owned->kept.reset();
  return CUDA_SUCCESS;
}

}  // namespace simcuda
