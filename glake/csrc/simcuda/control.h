// What the control interface needs of the driver.
#pragma once

#include <string>

namespace simcuda {

int configure(const std::string& key, const std::string& value);
int price(const std::string& symbol, double* first_us, double* further_us);
void reset();
// The books of one device and of the process, as one JSON object; "{}" before cuInit.
std::string ledger_json(int device);

}  // namespace simcuda
