#include "heap/region_book.h"

namespace glake {

RegionBook& RegionBook::instance() {
  static auto* const book = new RegionBook;
  return *book;
}

PoolId RegionBook::pool_of(const std::string& name) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i].name == name) return {kRegions, i + 1};
  }
  names_.emplace_back();
  names_.back().name = name;
  return {kRegions, names_.size()};
}

RegionName* RegionBook::find(PoolId id) {
  std::lock_guard<std::mutex> guard(mutex_);
  const bool ours = id.first == kRegions && id.second != 0 && id.second <= names_.size();
  return ours ? &names_[id.second - 1] : nullptr;
}

std::vector<PoolId> RegionBook::all() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<PoolId> ids;
  for (size_t i = 0; i < names_.size(); ++i) ids.emplace_back(kRegions, i + 1);
  return ids;
}

std::string RegionBook::text(PoolId id) {
  if (const RegionName* region = find(id)) return "region \"" + region->name + "\"";
  return "pool {" + std::to_string(id.first) + ", " + std::to_string(id.second) + "}";
}

std::string RegionBook::way_back(PoolId id) {
  const RegionName* region = find(id);
  return region == nullptr ? "glake_region_resume()"
                           : "glake.resume(\"" + region->name + "\") (in C: glake_region_resume)";
}

}  // namespace glake
