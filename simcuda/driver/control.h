// The parts of the driver that the control interface needs.
#pragma once

#include <cstring>
#include <string>

#include "books.h"

namespace simcuda {

// Copies as much as fits, as snprintf does. Returns the whole length.
inline size_t answer(const std::string& text, char* out, size_t capacity) {
  if (out != nullptr && capacity > 0) {
    const size_t length = text.size() < capacity - 1 ? text.size() : capacity - 1;
    std::memcpy(out, text.data(), length);
    out[length] = 0;
  }
  return text.size();
}

int configure(const std::string& key, const std::string& value);
int price(const std::string& symbol, CallCost* found);
int table_price(const std::string& table, const std::string& symbol, CallCost* found);
void reset();
// The books of one device and of the process, as one JSON object; "{}" before cuInit.
std::string ledger_json(int device);

}  // namespace simcuda
