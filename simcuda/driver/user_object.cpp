#include "user_object.h"

#include <mutex>
#include <vector>

namespace simcuda {
namespace {

struct Ended {
  void* pointer;
  CUhostFn destroy;
};
struct Graveyard {
  std::mutex mutex;
  std::vector<Ended> ended;
};
Graveyard& graveyard() {
  // Never destroyed, because objects may end while the process does.
  static auto* kept = new Graveyard;
  return *kept;
}

}  // namespace

UserObject::~UserObject() {
  std::lock_guard<std::mutex> lock(graveyard().mutex);
  graveyard().ended.push_back({pointer_, destroy_});
}

void bury() {
  std::vector<Ended> ended;
  {
    std::lock_guard<std::mutex> lock(graveyard().mutex);
    ended.swap(graveyard().ended);
  }
  for (const Ended& each : ended) each.destroy(each.pointer);
}

}  // namespace simcuda
