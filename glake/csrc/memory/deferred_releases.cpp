#include "memory/deferred_releases.h"

#include <algorithm>

namespace glake {

bool DeferredReleases::attempt(DeferredRelease& deferred) {
  if (deferred.bytes != 0) {
    if (!refusals_.note("cuMemUnmap", driver_.unmap(deferred.at, deferred.bytes)).ok())
      return false;
    deferred.bytes = 0;
    idle_ += deferred.handles.size();
  }
  while (!deferred.handles.empty()) {
    if (!refusals_.note("cuMemRelease", driver_.release(deferred.handles.back())).ok())
      return false;
    deferred.handles.pop_back();
    --handles_;
    --idle_;
  }
  if (deferred.settled) deferred.settled();
  return true;
}

bool DeferredReleases::defer(DeferredRelease deferred) {
  handles_ += deferred.handles.size();
  if (deferred.bytes == 0) idle_ += deferred.handles.size();
  if (attempt(deferred)) return true;
  deferred_.push_back(std::move(deferred));
  return false;
}

bool DeferredReleases::settle() {
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    it = attempt(*it) ? deferred_.erase(it) : std::next(it);
  }
  return deferred_.empty();
}

void DeferredReleases::keep_mapped() {
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    DeferredRelease& deferred = *it;
    uint64_t kept = deferred.bytes != 0 && deferred.keep ? deferred.keep().count : 0;
    if (kept != 0) {
      deferred.bytes = 0;
      deferred.settled = nullptr;  // its addresses are in use again
      deferred.handles.erase(deferred.handles.begin(),
                             deferred.handles.begin() + static_cast<std::ptrdiff_t>(kept));
      handles_ -= kept;
      idle_ += deferred.handles.size();
    }
    it = kept != 0 && deferred.handles.empty() ? deferred_.erase(it) : std::next(it);
  }
}

bool DeferredReleases::take(Handle* handle) {
  for (auto it = deferred_.begin(); it != deferred_.end(); ++it) {
    if (it->bytes != 0 || it->handles.empty()) continue;
    *handle = it->handles.back();
    it->handles.pop_back();
    --handles_;
    --idle_;
    if (it->handles.empty()) {
      DeferredRelease paid = std::move(*it);
      deferred_.erase(it);
      if (paid.settled) paid.settled();
    }
    return true;
  }
  return false;
}

}  // namespace glake
