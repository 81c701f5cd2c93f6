// Reads a cost file.
#include "costs.h"

#include <fstream>
#include <sstream>
#include <vector>

#include "base/json.h"

namespace simcuda {
namespace {

using glake::topology::Json;
using glake::topology::JsonError;

constexpr const char kPublished[] = "published";

std::vector<CallCost> read(const Json& table) {
  std::vector<CallCost> costs;
  for (const auto& [name, prices] : table.at("calls").members()) {
    const int symbol = find_symbol(name);
    if (symbol < 0) throw JsonError("calls: simcuda has no call " + name);
    std::vector<double> us;
    for (const Json& price : prices.items()) us.push_back(price.number());
    if (us.size() != 2 && us.size() != 3) {
      throw JsonError("calls: " + name +
                      ": expected [first, further] or [first, further, mapping]");
    }
    for (const double each : us) {
      if (!(each >= 0) || each > 1e9) {
        throw JsonError("calls: " + name + ": expected microseconds from 0");
      }
    }
    costs.push_back({symbol, us[0], us[1], us.back()});
  }
  return costs;
}

}  // namespace

CUresult read_costs(const Options& options, const std::string& beside,
                    std::vector<CallCost>* costs) {
  costs->clear();
  if (options.costs == kPublished) return CUDA_SUCCESS;
  const std::string path = options.cost_file.empty() ? beside : options.cost_file;
  std::ifstream file(path);
  if (!file) {
    return fail(CUDA_ERROR_FILE_NOT_FOUND,
                "no cost file at " + path + " (option cost_file, GLAKE_SIM_COST_FILE)");
  }
  std::stringstream text;
  text << file.rdbuf();
  try {
    const Json all = Json::parse(text.str());
    const std::string name = options.costs.empty() ? all.at("default").text() : options.costs;
    if (name == kPublished) return CUDA_SUCCESS;
    std::string names = kPublished;
    for (const char* kind : {"devices", "sources"}) {
      const Json* tables = all.find(kind);
      if (tables == nullptr) continue;
      if (const Json* table = tables->find(name)) {
        *costs = read(*table);
        return CUDA_SUCCESS;
      }
      for (const auto& [known, value] : tables->members()) names += ", " + known;
    }
    return fail(CUDA_ERROR_INVALID_VALUE,
                "no costs of " + name + " in " + path + "; it has " + names);
  } catch (const JsonError& error) {
    return fail(CUDA_ERROR_INVALID_VALUE, path + ": " + error.what());
  }
}

CUresult apply_costs(const Options& options, const std::string& beside) {
  std::vector<CallCost> costs;
  const CUresult result = read_costs(options, beside, &costs);
  if (result == CUDA_SUCCESS) books().use_costs(costs);
  return result;
}

CUresult read_kernel_costs(const Options& options, const std::string& beside, KernelCosts* costs) {
  const std::string path = options.cost_file.empty() ? beside : options.cost_file;
  std::ifstream file(path);
  if (!file) return CUDA_SUCCESS;  // the table is "published", else read_costs() has failed
  std::stringstream text;
  text << file.rdbuf();
  try {
    const Json all = Json::parse(text.str());
    const Json* given = all.find("kernel_copies");
    if (given == nullptr) return CUDA_SUCCESS;
    const double rate = given->at("rate").number(), start = given->at("start_ns").number();
    if (!(rate > 0) || rate > 1 || !(start >= 0) || start > 1e9) {
      throw JsonError("kernel_copies: a rate above 0, at most 1, and nanoseconds from 0");
    }
    *costs = {rate, static_cast<uint64_t>(start)};
  } catch (const JsonError& error) {
    return fail(CUDA_ERROR_INVALID_VALUE, path + ": " + error.what());
  }
  return CUDA_SUCCESS;
}

}  // namespace simcuda
