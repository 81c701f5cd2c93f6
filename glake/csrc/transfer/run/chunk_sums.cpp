#include "transfer/run/chunk_sums.h"

#include <cstring>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"

namespace glake::transfer {
namespace {

// Each step is invertible, so one changed word always changes the sum. Several changed words leave
// it unchanged in one of 2^64 cases.
uint64_t add_bytes(uint64_t sum, Address at, Bytes bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  const auto* from = reinterpret_cast<const char*>(at);
  uint64_t word = 0;
  for (; bytes >= sizeof word; bytes -= sizeof word, from += sizeof word) {
    std::memcpy(&word, from, sizeof word);
    sum = (sum ^ word) * kOdd;
    sum ^= sum >> 29;
  }
  word = 0;
  std::memcpy(&word, from, bytes);
  return (sum ^ word ^ bytes << 56) * kOdd;
}

}  // namespace

// The host computes the sums of both ends. Bytes of a GPU are first read back, each by a direct
// copy.
std::string ChunkSums::difference(const Flight& flight) {
  try {
    const uint64_t sent = sum_at(flight, Side::kSrc), arrived = sum_at(flight, Side::kDst);
    if (sent == arrived) return "";
    return "the checksums of " + std::to_string(flight.range.bytes()) + " bytes that " +
           flight.run->name() + " brought differ";
  } catch (const std::exception& e) {
    return std::string("a checksum: ") + e.what();
  }
}

uint64_t ChunkSums::sum_at(const Flight& flight, Side side) {
  const Request& request = flight.transfer->request;
  const Place place = side == Side::kSrc ? request.src : request.dst;
  auto at = [&](const Piece& piece) { return side == Side::kSrc ? piece.src : piece.dst; };
  request.parts.pieces(flight.range, &pieces_);
  uint64_t sum = 0;
  if (place.host()) {
    for (const Piece& piece : pieces_) sum = add_bytes(sum, at(piece), piece.bytes);
    return sum;
  }
  Flight back;
  back.device = place.gpu;
  back.stage = tools_.slots.lend(Place{}, flight.range.bytes());
  const Address copy = back.stage.at();
  DeviceScope scope(tools_.driver, place.gpu);
  Status s = scope.status();
  if (s.ok())
    s = streams_.next(place.gpu, Hop{place, place, {}}, TransferTuning::kLeastFlows, false,
                      &back.stream);
  if (s.ok()) s = streams_.event(place.gpu, &back.event);
  for (size_t i = 0; s.ok() && i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    s = tools_.driver.copy(copy + piece.offset - flight.range.begin, at(piece), piece.bytes,
                           back.stream);
  }
  if (s.ok()) s = tools_.driver.record(place.gpu, back.event.id(), back.stream);
  if (s.ok()) s = tools_.driver.wait_event(back.event.id(), TransferTuning::kMostWait);
  if (!s.ok()) {
    if (back.stream != 0 && !copier_.quiesce(back)) {
      const ChunkBook::Lock lock = tools_.book.lock();
      lost_.add(std::move(back));
    }
    throw Error(GLAKE_DRIVER_ERROR, tools_.driver.describe(s));
  }
  for (const Piece& piece : pieces_) {
    sum = add_bytes(sum, copy + piece.offset - flight.range.begin, piece.bytes);
  }
  return sum;
}

}  // namespace glake::transfer
