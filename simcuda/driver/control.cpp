// The control interface (simcuda.h).
#include "control.h"

#include <sys/prctl.h>

#include <algorithm>

#include "driver.h"
#include "simcuda/simcuda.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

int simcuda_configure(const char* key, const char* value) {
  if (key == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return configure(key, value);
}

int simcuda_reset(void) {
  reset();
  return CUDA_SUCCESS;
}

int simcuda_fail(const char* symbol, int64_t k, int code, int64_t times) {
  return books().arm(symbol, k, code, times);
}

int64_t simcuda_calls(const char* symbol) { return symbol == nullptr ? -1 : books().calls(symbol); }

double simcuda_cost_us(const char* symbol) {
  return symbol == nullptr ? -1 : books().cost_us(symbol);
}

int simcuda_price(const char* symbol, double* first_us, double* further_us) {
  if (symbol == nullptr || first_us == nullptr || further_us == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CallCost found{};
  const int result = price(symbol, &found);
  if (result != CUDA_SUCCESS) return result;
  *first_us = found.first_us;
  *further_us = found.further_us;
  return CUDA_SUCCESS;
}

int64_t simcuda_further_pages(const char* symbol) {
  return symbol == nullptr ? -1 : books().further_pages(symbol);
}

int64_t simcuda_further_mappings(const char* symbol) {
  return symbol == nullptr ? -1 : books().further_mappings(symbol);
}

int simcuda_mapping_price(const char* table, const char* symbol, double* mapping_us) {
  if (symbol == nullptr || mapping_us == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CallCost found{};
  const int result = table == nullptr ? price(symbol, &found) : table_price(table, symbol, &found);
  if (result == CUDA_SUCCESS) *mapping_us = found.mapping_us;
  return result;
}

int simcuda_table_price(const char* table, const char* symbol, double* first_us,
                        double* further_us) {
  if (table == nullptr || symbol == nullptr || first_us == nullptr || further_us == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CallCost found{};
  const int result = table_price(table, symbol, &found);
  if (result != CUDA_SUCCESS) return result;
  *first_us = found.first_us;
  *further_us = found.further_us;
  return CUDA_SUCCESS;
}

void simcuda_reset_calls(void) { books().reset_calls(); }

uint64_t simcuda_now_ns(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return 0;
  std::lock_guard<std::mutex> lock(driver->mutex);
  return driver->scheduler->clock().now_ns();
}

int simcuda_polled(void) {
  Driver* driver = running.load(std::memory_order_acquire);
  return driver != nullptr && !forked && driver->scheduler->waits().polled() ? 1 : 0;
}

int simcuda_sleep(uint64_t ns) {
  constexpr uint64_t kWakeNs = 8000;
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked) return CUDA_ERROR_NOT_INITIALIZED;
  const int slack = prctl(PR_GET_TIMERSLACK);
  Lock lock(driver->mutex);
  driver->scheduler->waits().sleep(&lock, ns + static_cast<uint64_t>(std::max(slack, 0)) + kWakeNs);
  return CUDA_SUCCESS;
}

void simcuda_tick(uint64_t ticks) {
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver != nullptr) driver->tick_clock.add(ticks);
}

size_t simcuda_ledger(int device, char* json, size_t capacity) {
  return answer(ledger_json(device), json, capacity);
}

size_t simcuda_violations(char* json, size_t capacity, int clear) {
  return answer(books().violations_json(clear != 0), json, capacity);
}

size_t simcuda_last_message(char* text, size_t capacity) {
  return answer(last_message(), text, capacity);
}
