#include "phantom.h"

#include <cstring>

#include "blank.h"

namespace simcuda {
namespace {

Op::Side row_of(const Op::Side& side, size_t row) {
  Op::Side made = side;
  made.address += row * side.pitch;
  return made;
}

Op::Side taken(const std::vector<char>& staged, size_t offset) {
  Op::Side made;
  made.address = reinterpret_cast<uint64_t>(staged.data() + offset);
  made.host = true;
  return made;
}

}  // namespace

// The device that has the memory. The stream's device may be another one.
int PhantomMemory::owner(uint64_t address, int otherwise) {
  const Page* page = memory_->page_at(address);
  return page == nullptr ? otherwise : memory_->handle_of(*page)->prop.location.id;
}

void PhantomMemory::copy(int device, const Op::Side& dst, const Op::Side& src, size_t bytes) {
  auto* to = reinterpret_cast<char*>(dst.address);
  const auto* from = reinterpret_cast<const char*>(src.address);
  if (dst.host && src.host) {
    std::memmove(to, from, bytes);
  } else if (dst.host) {
    blank(to, bytes);
    known_->read(src.address, to, bytes);
  } else if (src.host) {
    known_->write(owner(dst.address, device), dst.address, from, bytes);
  } else {
    known_->copy(owner(dst.address, device), dst.address, src.address, bytes);
  }
}

// Copies between a collective's memory and the host memory where it is staged. Large memory is not
// staged: its `known` is null.
void PhantomMemory::stage(int device, const Op::Part& part) {
  auto* to = reinterpret_cast<char*>(part.dst.address);
  const auto* from = reinterpret_cast<const char*>(part.src.address);
  if (part.dst.host) {
    if (part.known != nullptr) *part.known = known_->read(part.src.address, to, part.bytes);
  } else if (part.known != nullptr && *part.known == part.bytes) {
    known_->write(device, part.dst.address, from, part.bytes);
  } else {
    known_->forget(part.dst.address, part.bytes);
  }
}

void PhantomMemory::fill(const Op& op) {
  for (size_t row = 0; row < op.rows; ++row) {
    const uint64_t at = op.dst.address + row * op.dst.pitch;
    if (op.bytes > Known::kMostOfOne) {
      known_->forget(at, op.bytes);
      continue;
    }
    std::vector<char> bytes(op.bytes);
    for (size_t i = 0; i < op.bytes; i += op.width) std::memcpy(&bytes[i], &op.value, op.width);
    known_->write(op.device, at, bytes.data(), bytes.size());
  }
}

void PhantomMemory::perform(const Op& op) {
  if (op.launch) known_->forget_all(op.device);
  if (op.kind == Op::Kind::kMemset) {
    fill(op);
  } else if (op.kind == Op::Kind::kWriteValue) {
    known_->write(op.device, op.dst.address, &op.value, op.width);
  } else if (op.kind == Op::Kind::kCopy && op.parts.empty()) {
    for (size_t row = 0; row < op.rows; ++row) {
      copy(op.device, row_of(op.dst, row),
           op.staged.empty() ? row_of(op.src, row) : taken(op.staged, row * op.bytes), op.bytes);
    }
  } else if (op.kind == Op::Kind::kCopy) {
    for (const Op::Part& part : op.parts) {
      if (op.staging) {
        stage(op.device, part);
      } else {
        copy(op.device, part.dst, part.staged.empty() ? part.src : taken(part.staged, 0),
             part.bytes);
      }
    }
  }
}

}  // namespace simcuda
