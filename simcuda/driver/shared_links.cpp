#include "shared_links.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <vector>

namespace simcuda {
namespace {

uint64_t system_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // this clock is the same in every process
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

struct SharedLinks::Flow {
  Stage stage;
  int32_t slot;  // of the process
  uint32_t edges;
  int32_t edge[kMostEdges];
  double share[kMostEdges];
  double left;  // bytes
  uint64_t start_ns, end_ns;
};

struct SharedLinks::State {
  pthread_mutex_t mutex;  // robust
  uint64_t epoch_ns, pace, now_ns, next_ns;
  uint32_t used;  // the number of flow slots ever used
  Flow flow[kMostShared];
};

class SharedLinks::Guard {
 public:
  explicit Guard(State* state) : state_(state) {
    // A process may have died while it held the lock. Then at most one step of one flow is missing.
    if (pthread_mutex_lock(&state->mutex) == EOWNERDEAD) pthread_mutex_consistent(&state->mutex);
  }
  ~Guard() { pthread_mutex_unlock(&state_->mutex); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  State* state_;
};

// Called under the machine's joining lock, so that nobody else opens or makes the file meanwhile.
CUresult SharedLinks::open(const std::string& directory, uint64_t pace, int slot,
                           const Topology& links, std::unique_ptr<SharedLinks>* made) {
  const std::string path = directory + "/links";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  struct stat info{};
  const bool fresh = fd >= 0 && fstat(fd, &info) == 0 && info.st_size == 0;
  void* at = MAP_FAILED;
  if (fd >= 0 && (!fresh || posix_fallocate(fd, 0, sizeof(State)) == 0)) {
    at = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  if (at == MAP_FAILED) {
    return fail(CUDA_ERROR_OPERATING_SYSTEM, path + ": " + strerror(error));
  }
  std::unique_ptr<SharedLinks> found(new SharedLinks);
  found->state_ = static_cast<State*>(at);
  found->links_ = &links;
  found->pace_ = pace;
  found->slot_ = slot;
  State& state = *found->state_;
  if (fresh) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state.mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state.epoch_ns = system_ns();
    state.pace = pace;
  }
  if (state.pace != pace) {
    return fail(CUDA_ERROR_INVALID_VALUE, "the machine's processes have pace " +
                                              std::to_string(state.pace) + ", this one asks for " +
                                              std::to_string(pace));
  }
  // Copies that a dead process left in this slot go on until they are over, as on a GPU.
  *made = std::move(found);
  return CUDA_SUCCESS;
}

SharedLinks::~SharedLinks() { munmap(state_, sizeof(State)); }

uint64_t SharedLinks::now_ns() const { return (system_ns() - state_->epoch_ns) / pace_; }

// Moves the bytes of all flows from the last call until now, one change of rates after the other.
void SharedLinks::advance(uint64_t now_ns) {
  State& state = *state_;
  if (now_ns <= state.now_ns) return;
  std::vector<Flow*> moving;
  std::vector<Route> routes;
  std::vector<const Route*> given;
  while (true) {
    moving.clear();
    routes.clear();
    given.clear();
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < state.used; ++i) {
      Flow& flow = state.flow[i];
      if (flow.stage != Stage::kMoving) continue;
      if (flow.start_ns > state.now_ns) {
        next = std::min(next, flow.start_ns);
      } else {
        moving.push_back(&flow);
      }
    }
    for (const Flow* flow : moving) {
      Route route;
      for (uint32_t e = 0; e < flow->edges; ++e) route.push_back({flow->edge[e], flow->share[e]});
      routes.push_back(std::move(route));
    }
    for (const Route& route : routes) given.push_back(&route);
    const std::vector<double> rates = links_->rates(given);
    for (size_t i = 0; i < moving.size(); ++i) {
      const double left = std::ceil(moving[i]->left / rates[i]);
      if (left < 1e18) {
        next = std::min(next, state.now_ns + std::max<uint64_t>(1, static_cast<uint64_t>(left)));
      }
    }
    state.next_ns = next;
    const uint64_t to = std::min(next, now_ns);
    if (to <= state.now_ns) return;
    const auto step = static_cast<double>(to - state.now_ns);
    state.now_ns = to;
    for (size_t i = 0; i < moving.size(); ++i) {
      moving[i]->left -= rates[i] * step;
      if (moving[i]->left > 0) continue;
      moving[i]->end_ns = to;
      moving[i]->stage = Stage::kOver;
    }
  }
}

int SharedLinks::enter(const Route& route, uint64_t start_ns, double bytes) {
  if (route.size() > kMostEdges) return -1;
  const Guard guard(state_);
  advance(now_ns());
  State& state = *state_;
  int found = -1;
  for (uint32_t i = 0; i < state.used && found < 0; ++i) {
    if (state.flow[i].stage == Stage::kFree) found = static_cast<int>(i);
  }
  if (found < 0 && state.used < kMostShared) found = static_cast<int>(state.used++);
  if (found < 0) return -1;
  Flow& flow = state.flow[found];
  flow.slot = slot_;
  flow.edges = static_cast<uint32_t>(route.size());
  for (size_t i = 0; i < route.size(); ++i) {
    flow.edge[i] = route[i].edge;
    flow.share[i] = route[i].share;
  }
  flow.left = bytes;
  flow.start_ns = std::max(start_ns, state.now_ns);  // never in the past
  flow.stage = Stage::kMoving;
  state.next_ns = std::min(state.next_ns, flow.start_ns);
  return found;
}

bool SharedLinks::over(int number, uint64_t now_ns, uint64_t* end_ns) {
  const Guard guard(state_);
  advance(now_ns);
  Flow& flow = state_->flow[number];
  if (flow.stage != Stage::kOver) return false;
  *end_ns = flow.end_ns;
  flow.stage = Stage::kFree;
  return true;
}

uint64_t SharedLinks::next_ns() const {
  const Guard guard(state_);
  return state_->next_ns;
}

}  // namespace simcuda
