#include "group.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "simcuda/driver/per_thread.h"

namespace nccl {
namespace {

struct Group {
  struct Parts {
    std::shared_ptr<Engine> engine;
    CUstream stream;
    std::vector<Part> parts;
  };
  int depth = 0;
  std::vector<Parts> work;  // in the order of the calls
  std::vector<Joining> joinings;
};
Group& mine() { return simcuda::per_thread<Group, Group>(); }

// Stops at the first step that fails, because later ones would wait for ranks that never come.
ncclResult join(std::vector<Joining>* joinings) {
  using Step = ncclResult (Joining::*)();
  for (const Step step : {&Joining::publish, &Joining::enter, &Joining::wait}) {
    for (Joining& joining : *joinings) {
      const ncclResult result = (joining.*step)();
      if (result != ncclSuccess) return result;
    }
  }
  return ncclSuccess;
}

}  // namespace

void group_start() { ++mine().depth; }

ncclResult group_end() {
  Group& group = mine();
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  std::vector<Joining> joinings = std::exchange(group.joinings, {});
  const std::vector<Group::Parts> work = std::exchange(group.work, {});
  ncclResult result = join(&joinings);
  for (const Group::Parts& each : work) {
    const ncclResult one = each.engine->enqueue(each.stream, each.parts);
    if (result == ncclSuccess) result = one;
  }
  return result;
}

ncclResult submit(std::shared_ptr<Engine> engine, CUstream stream, const Part& part) {
  Group& group = mine();
  if (group.depth == 0) return engine->enqueue(stream, {part});
  const auto found = std::find_if(group.work.begin(), group.work.end(), [&](const auto& each) {
    return each.engine == engine && each.stream == stream;
  });
  if (found != group.work.end()) {
    found->parts.push_back(part);
  } else {
    group.work.push_back({std::move(engine), stream, {part}});
  }
  return ncclSuccess;
}

ncclResult submit(Joining joining) {
  Group& group = mine();
  if (group.depth == 0) return joining.run();
  group.joinings.push_back(std::move(joining));
  return ncclSuccess;
}

}  // namespace nccl
