#include "effects.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/numbers.h"
#include "blank.h"
#include "books.h"

namespace simcuda {
namespace {

// Copies of a batch have no order among themselves, so they may run backwards.
void perform_parts(const Op& op, bool backwards) {
  const size_t count = op.parts.size();
  for (size_t i = 0; i < count; ++i) {
    const Op::Part& part = op.parts[backwards ? count - 1 - i : i];
    const void* from =
        part.staged.empty() ? reinterpret_cast<const void*>(part.src.address) : part.staged.data();
    std::memmove(reinterpret_cast<void*>(part.dst.address), from, part.bytes);
  }
}

// The host reads zeros where nobody computed the bytes. It never reads what its own memory happens
// to hold.
void read_nothing(const Op& op) {
  const auto whole = [](const Op::Side& to, const Op::Side& from, size_t bytes, size_t rows) {
    for (size_t row = 0; to.host && !from.host && row < rows; ++row) {
      blank(reinterpret_cast<char*>(to.address) + row * to.pitch, bytes);
    }
  };
  for (const Op::Part& part : op.parts) whole(part.dst, part.src, part.bytes, 1);
  if (op.parts.empty()) whole(op.dst, op.src, op.bytes, op.rows);
}

}  // namespace

thread_local bool in_host_function = false;

bool Effects::read_table(Op* op) {
  struct Block {  // as the kernel declares it
    uint64_t dst, src, bytes;
  };
  op->parts.clear();
  op->bytes = op->rows = 0;
  if (!host_->pinned(op->table, op->blocks * sizeof(Block)) && op->blocks != 0) {
    books().violation("access to unmapped memory",
                      "a kernel's table at " + std::to_string(op->table), clock_->now_ns());
    return false;
  }
  const auto* table = reinterpret_cast<const Block*>(op->table);
  for (const Block* block = table; block != table + op->blocks; ++block) {
    if (block->bytes == 0) continue;
    // Unlike a copy, a kernel does not reach pageable memory, which counts as unmapped.
    const auto side = [&](uint64_t at) {
      return Op::Side{at, 0, host_->pinned(at, block->bytes), op->device};
    };
    Op::Part part;
    part.dst = side(block->dst);
    part.src = side(block->src);
    part.bytes = block->bytes;
    op->parts.push_back(std::move(part));
    op->bytes += block->bytes;
    op->rows = 1;
  }
  return true;
}

bool Effects::legal(const Op& op, const Op::Side& side, bool write) {
  if (side.host) {
    if (!side.pinned || host_->pinned(side.address, side.pitch * (op.rows - 1) + op.bytes)) {
      return true;
    }
    books().violation("access to unmapped memory",
                      "a graph's copy at " + std::to_string(side.address) +
                          ": pinned host memory when it was captured, and no more",
                      clock_->now_ns());
    return false;
  }
  for (size_t row = 0; row < op.rows; ++row) {
    const CUdeviceptr at = side.address + row * side.pitch;
    if (memory_->accessible(at, op.bytes, side.device, write)) continue;
    const bool mapped =
        memory_->page_at(at) != nullptr && memory_->page_at(at + op.bytes - 1) != nullptr;
    books().violation(mapped ? "access without grant" : "access to unmapped memory",
                      std::string(write ? "write to [" : "read of [") + std::to_string(at) + ", +" +
                          std::to_string(op.bytes) + ") by " + glake::device_text(side.device),
                      clock_->now_ns());
    return false;
  }
  return true;
}

bool Effects::legal(const Op& op) {
  if (!op.parts.empty()) {
    Op each;
    for (const Op::Part& part : op.parts) {
      each.bytes = part.bytes;
      if (!legal(each, part.src, false) || !legal(each, part.dst, true)) return false;
    }
    return true;
  }
  switch (op.kind) {
    case Op::Kind::kCopy:
      return legal(op, op.src, false) && legal(op, op.dst, true);
    case Op::Kind::kMemset:
    case Op::Kind::kWriteValue:
      return legal(op, op.dst, true);
    case Op::Kind::kCompute:
      return std::all_of(op.touched.begin(), op.touched.end(), [&](const Op::Touched& each) {
        Op piece;
        piece.bytes = each.bytes;
        // A kernel may use pinned host memory at the host's own address.
        const bool host = host_->pinned(each.address, each.bytes);
        return legal(piece, {each.address, 0, host, op.device}, each.write);
      });
    default:
      return true;
  }
}

bool Effects::satisfied(const Op& op) {
  if (phantom_ != nullptr && !op.dst.host) return true;
  if (!op.dst.host && !memory_->accessible(op.dst.address, op.width, op.dst.device, false)) {
    return false;
  }
  // A host thread may store the word at this moment. Work after the wait sees what that thread
  // wrote before.
  const uint64_t now =
      op.width == 8
          ? __atomic_load_n(reinterpret_cast<const uint64_t*>(op.dst.address), __ATOMIC_ACQUIRE)
          : __atomic_load_n(reinterpret_cast<const uint32_t*>(op.dst.address), __ATOMIC_ACQUIRE);
  const uint64_t mask = op.width == 8 ? UINT64_MAX : 0xffffffffu;
  switch (op.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return op.width == 8 ? static_cast<int64_t>(now - op.value) >= 0
                           : static_cast<int32_t>(now - op.value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == op.value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & op.value) != 0;
    default:
      return (~(now | op.value) & mask) != 0;
  }
}

Effects::Verdict Effects::judge(Op* op) {
  lost_->meet(op);
  if (op->fault != CUDA_SUCCESS) return Verdict::kFaulty;
  if ((op->table == 0 || read_table(op)) && legal(*op)) return Verdict::kRuns;
  lost_->lose(*op, CUDA_ERROR_ILLEGAL_ADDRESS);
  return Verdict::kIllegal;
}

// Moves the bytes. Phantom memory has none: there, only values for host memory are written.
void Effects::move(const Op& op) {
  if (op.covered) {
    if (op.kind == Op::Kind::kCopy) read_nothing(op);
    return;
  }
  if (phantom_ != nullptr && (op.kind != Op::Kind::kWriteValue || !op.dst.host)) {
    phantom_->perform(op);
    return;
  }
  if (!op.parts.empty()) {
    perform_parts(op, op.seq % 2 == 1);
    if (op.corrupt) *reinterpret_cast<char*>(op.parts[0].dst.address) ^= 1;
    return;
  }
  auto* to = reinterpret_cast<char*>(op.dst.address);
  switch (op.kind) {
    case Op::Kind::kCopy: {
      const char* from =
          op.staged.empty() ? reinterpret_cast<const char*>(op.src.address) : op.staged.data();
      const size_t pitch = op.staged.empty() ? op.src.pitch : op.bytes;
      for (size_t row = 0; row < op.rows; ++row) {
        std::memmove(to + row * op.dst.pitch, from + row * pitch, op.bytes);
      }
      if (op.corrupt) *to ^= 1;
      break;
    }
    case Op::Kind::kMemset:
      if (op.width == 1) {
        std::memset(to, static_cast<int>(op.value), op.bytes);
        break;
      }
      for (size_t i = 0; i < op.bytes; i += op.width) std::memcpy(to + i, &op.value, op.width);
      break;
    case Op::Kind::kWriteValue:
      if (op.width == 8) {
        __atomic_store_n(reinterpret_cast<uint64_t*>(to), op.value, __ATOMIC_RELEASE);
      } else {
        __atomic_store_n(reinterpret_cast<uint32_t*>(to), static_cast<uint32_t>(op.value),
                         __ATOMIC_RELEASE);
      }
      break;
    default:
      break;
  }
}

void Effects::perform(Op* op) {
  move(*op);
  op->landed = op->kind == Op::Kind::kCopy;
}

void Effects::conclude(const Op& op) {
  lost_->lose(op, op.fault);
  if (!op.landed) return;
  for (const Op::Part& part : op.parts) landings_->land(part.dst.address, part.bytes);
  for (size_t row = 0; op.parts.empty() && row < op.rows; ++row) {
    landings_->land(op.dst.address + row * op.dst.pitch, op.bytes);
  }
}

bool is_function(const Op& op) {
  return op.kind == Op::Kind::kHostFunction || op.kind == Op::Kind::kCompute;
}

// A computed kernel returns how it ended. A host function cannot.
CUresult call_function(const Op& op) {
  int result = CUDA_SUCCESS;
  in_host_function = true;
  if (op.kind == Op::Kind::kCompute) {
    result = op.compute(op.data);
  } else {
    op.function(op.data);
  }
  in_host_function = false;
  return static_cast<CUresult>(result);
}

}  // namespace simcuda
