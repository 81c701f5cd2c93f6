#include "heap/neighbours.h"

#include "base/tuning.h"
#include "heap/out_of_memory.h"

namespace glake {

bool Neighbours::give_hope(Device& device, const Error& error, int tries) {
  if (error.code() != GLAKE_OUT_OF_MEMORY || error.missing() == 0) return false;
  const Answer answer = device.neighbours->ask(device.number, error.missing());
  HotGuard hot(device.hot);
  ++device.stats.neighbours_asked;
  device.stats.neighbours_gave += answer.given;
  if (answer.given != 0 && tries < Tuning::kNeighbourTries) {
    // The refusal does not count, and what the driver refused says nothing any more.
    if (device.stats.ooms != 0) --device.stats.ooms;
    return true;
  }
  std::string text = error.what();
  text += OutOfMemory::line(
      answer.asked == 0
          ? std::string("no other process of this user cooperates on this GPU (GLAKE_COOPERATE=1)")
          : std::to_string(answer.asked) + " of this user's processes gave " +
                size_text(answer.given) + " back, and " + size_text(error.missing()) +
                " are missing");
  if (answer.silent != 0) text += ", and " + std::to_string(answer.silent) + " did not answer";
  throw Error(GLAKE_OUT_OF_MEMORY, text);
}

}  // namespace glake
