#include "plan/simplex.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

constexpr int kNone = INT_MAX;
constexpr double kTiny = 1e-9;
// Each row's limit is raised by this much more than that of the row before, so that no two rows are
// reached at once. Ties could make the method go in circles. The answer is computed with the given
// limits.
constexpr double kApart = 1e-7;

}  // namespace

Simplex::Simplex(std::vector<double> limits)
    : rows_(limits.size()),
      limits_(std::move(limits)),
      room_(limits_),
      inverse_(rows_ * rows_, 0.0),
      prices_(rows_, 0.0),
      direction_(rows_, 0.0),
      basis_(rows_),
      slack_basic_(rows_, true) {
  for (size_t row = 0; row < rows_; ++row) {
    room_[row] += kApart * static_cast<double>(row + 1);
    inverse_[row * rows_ + row] = 1;
    basis_[row] = ~static_cast<int>(row);
  }
}

int Simplex::add(const topology::Route& entries, double gain) {
  const size_t first = entries_.size();
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  columns_.push_back({first, entries_.size(), gain, false});
  return static_cast<int>(columns_.size()) - 1;
}

// The column that earns most above the prices of the rows that it loads, or a slack whose price has
// become negative.
int Simplex::entering(double* reward) const {
  int best = kNone;
  *reward = kTiny;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].basic) continue;
    double earns = columns_[c].gain;
    for (size_t e = columns_[c].first; e < columns_[c].last; ++e) {
      earns -= prices_[static_cast<size_t>(entries_[e].edge)] * entries_[e].share;
    }
    if (earns > *reward) *reward = earns, best = static_cast<int>(c);
  }
  for (size_t row = 0; row < rows_; ++row) {
    if (slack_basic_[row] || -prices_[row] <= *reward) continue;
    *reward = -prices_[row];
    best = ~static_cast<int>(row);
  }
  return best;
}

// How fast each basic column shrinks as the entering one grows.
void Simplex::direction(int entering) {
  std::fill(direction_.begin(), direction_.end(), 0.0);
  const auto accumulate = [&](size_t row, double weight) {
    for (size_t i = 0; i < rows_; ++i) direction_[i] += weight * inverse_[i * rows_ + row];
  };
  if (entering < 0) return accumulate(static_cast<size_t>(~entering), 1.0);
  const Column& column = columns_[static_cast<size_t>(entering)];
  for (size_t e = column.first; e < column.last; ++e) {
    accumulate(static_cast<size_t>(entries_[e].edge), entries_[e].share);
  }
}

int Simplex::leaving() const {
  int best = kNone;
  double step = 0;
  for (size_t row = 0; row < rows_; ++row) {
    if (direction_[row] <= kTiny) continue;
    const double reach = room_[row] / direction_[row];
    if (best != kNone && reach >= step) continue;
    best = static_cast<int>(row);
    step = reach;
  }
  return best;
}

void Simplex::pivot(int entering, int row, double reward) {
  const auto out = static_cast<size_t>(row);
  double* pivoted = &inverse_[out * rows_];
  const double scale = 1 / direction_[out];
  for (size_t i = 0; i < rows_; ++i) pivoted[i] *= scale;
  room_[out] *= scale;
  for (size_t i = 0; i < rows_; ++i) {
    const double factor = direction_[i];
    if (i == out || factor == 0) continue;
    double* line = &inverse_[i * rows_];
    for (size_t j = 0; j < rows_; ++j) line[j] -= factor * pivoted[j];
    room_[i] = std::max(room_[i] - factor * room_[out], 0.0);
  }
  for (size_t i = 0; i < rows_; ++i) prices_[i] += reward * pivoted[i];
  const auto set_basic = [&](int column, bool basic) {
    if (column < 0) {
      slack_basic_[static_cast<size_t>(~column)] = basic;
    } else {
      columns_[static_cast<size_t>(column)].basic = basic;
    }
  };
  set_basic(basis_[out], false);
  set_basic(entering, true);
  basis_[out] = entering;
}

void Simplex::solve() {
  // Every step keeps the limits, so an early end costs rate and never correctness.
  const int most = TransferTuning::kPivots +
                   TransferTuning::kPivotsARow * static_cast<int>(rows_ + columns_.size());
  for (; pivots_ < most; ++pivots_) {
    double reward = 0;
    const int in = entering(&reward);
    if (in == kNone) break;
    direction(in);
    const int out = leaving();
    if (out == kNone) break;  // the column loads no row, so its value has no bound
    pivot(in, out, reward);
  }
  values_.assign(columns_.size(), 0.0);
  for (size_t row = 0; row < rows_; ++row) {
    if (basis_[row] < 0) continue;
    const double* line = &inverse_[row * rows_];
    const double value = std::inner_product(line, line + rows_, limits_.begin(), 0.0);
    values_[static_cast<size_t>(basis_[row])] = std::max(value, 0.0);
  }
}

}  // namespace glake::transfer
