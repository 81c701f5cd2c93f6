#include "heap/driver_shortage.h"

namespace glake {

void DriverShortage::forget(Granules given) {
  full_ = false;
  had_ = had_ + given;
  view_said_.clear();
}

// The driver gives less than it reports. The difference counts until the driver has taken memory
// back.
void DriverShortage::refuse_growth(Granules reported, Granules had, bool at_most,
                                   const std::string& said) {
  Granules withheld = had < reported ? reported - had : Granules{0};
  if (full_ && at_most && withheld < withheld_) {
    withheld = withheld_;  // an earlier refusal withheld more
    had = withheld < reported ? reported - withheld : Granules{0};
  }
  had_ = had;
  withheld_ = withheld;
  said_ = said;
  now_ = full_ = true;
}

void DriverShortage::grown(Granules n) {
  if (had_ < n) withheld_ = {0};  // it had more than the last refusal said, so that is void
  had_ = n < had_ ? had_ - n : Granules{0};
}

Granules DriverShortage::gives(Granules reported) const {
  if (now_) return std::min(reported, had_);
  return reported - std::min(reported, withheld());
}

void DriverShortage::refuse_view(Granules most, const std::string& said) {
  view_most_ = most;
  view_said_ = said;
}

void DriverShortage::mapped_view(Granules n) {
  if (view_most_ < n) view_said_.clear();
}

}  // namespace glake
