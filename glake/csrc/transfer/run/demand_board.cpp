#include "transfer/run/demand_board.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json_text.h"

namespace glake::transfer {
namespace {

int shown_node(const Place& place) { return place.host() ? place.node : 0; }

}  // namespace

DemandBoard::~DemandBoard() {
  if (event_ >= 0) close(event_);
}

std::array<int, 4> DemandBoard::demand_of(const Demand& demand) {
  const Place &src = demand.src, &dst = demand.dst;
  return {src.gpu, shown_node(src), dst.gpu, shown_node(dst)};
}

bool DemandBoard::use(const Request& request) {
  uint32_t used = 0;
  for (const Place& place : {request.src, request.dst}) {
    if (!place.host() && place.gpu < gpus_) used |= uint32_t{1} << place.gpu;
  }
  if ((used & ~used_.load(std::memory_order_relaxed)) == 0) return false;
  used_ |= used;
  return true;
}

void DemandBoard::tell(Demands now) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (event_ < 0 || now == told_) return;
  told_ = std::move(now);
  const uint64_t one = 1;
  // A write fails only when the counter is full (2^64 - 2). Then the event is readable already.
  if (write(event_, &one, sizeof one) < 0) return;
}

void DemandBoard::signal() {
  std::lock_guard<std::mutex> guard(mutex_);
  const uint64_t one = 1;
  if (event_ >= 0 && write(event_, &one, sizeof one) < 0) return;  // it is readable already
}

int DemandBoard::event() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (event_ < 0) event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) throw Error(GLAKE_DRIVER_ERROR, "the system gives no event descriptor");
  return event_;
}

std::string DemandBoard::json(const Demands& now) const {
  std::string list;
  for (const auto& ends : now) {
    std::string one;
    for (const int number : ends) one += (one.empty() ? "[" : ", ") + std::to_string(number);
    list += (list.empty() ? "" : ", ") + one + "]";
  }
  return JsonText().raw("gpus", gpus_text(used())).raw("demands", "[" + list + "]").done();
}

std::string DemandBoard::gpus_text(uint32_t bits) const {
  std::string list;
  for (int gpu = 0; gpu < gpus_; ++gpu) {
    if ((bits >> gpu & 1) != 0) list += (list.empty() ? "" : ", ") + std::to_string(gpu);
  }
  return "[" + list + "]";
}

}  // namespace glake::transfer
