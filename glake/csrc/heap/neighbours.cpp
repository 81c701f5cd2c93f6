#include "heap/neighbours.h"

#include <algorithm>

#include "base/tuning.h"
#include "heap/out_of_memory.h"

namespace glake {

bool Neighbours::give_hope(Device& device, const Error& error, int tries) {
  if (error.code() != GLAKE_OUT_OF_MEMORY || error.missing() == 0) return false;
  HotGuard hot(device.hot);
  // The refusal counts only if nobody helps. It is taken off the count now, and not after the
  // answers, because somebody may reset the counts meanwhile.
  if (device.stats.ooms != 0) --device.stats.ooms;
  hot.unlock();
  Answer answer;
  try {
    answer = device.neighbours->ask(device.number, error.missing());
  } catch (...) {
    hot.lock();
    ++device.stats.ooms;
    throw;
  }
  hot.lock();
  // A process that lies gives no more than the device has.
  answer.given = std::min(answer.given, device.memory.total());
  ++device.stats.neighbours_asked;
  device.stats.neighbours_gave += answer.given;
  if ((answer.given != 0 || answer.late != 0) && tries < Tuning::kNeighbourTries) return true;
  ++device.stats.ooms;
  throw Error(GLAKE_OUT_OF_MEMORY, error.what() + text(answer, error.missing()));
}

std::string Neighbours::text(const Answer& answer, Bytes missing) {
  std::string text;
  if (answer.asked != 0) {
    text = std::to_string(answer.asked) + " of this user's processes gave " +
           size_text(answer.given) + " back, and " + size_text(missing) + " are missing";
  } else if (answer.hindrance.empty() && answer.left == 0) {
    text = "no other process of this user cooperates on this GPU (GLAKE_COOPERATE=1)";
  } else {
    text = "no other process gave memory back (GLAKE_COOPERATE=1)";
  }
  if (answer.silent != 0) text += ", and " + std::to_string(answer.silent) + " did not answer";
  if (answer.left != 0) {
    text += ", and " + std::to_string(answer.left) + " were not asked, because others took " +
            std::to_string(Tuning::kNeighbourMostMs / 1000) + " s";
  }
  if (!answer.hindrance.empty()) text += ", and others could not be asked: " + answer.hindrance;
  return OutOfMemory::line(text);
}

}  // namespace glake
