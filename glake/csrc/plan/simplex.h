// Solves a packing program: it finds the values of columns with the largest sum of gain x value, so
// that no row exceeds its limit. The start, with all values zero, breaks no limit. So the revised
// simplex method needs no first phase. The prices say which rows bound the solution. A solution
// uses few columns.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/topology.h"

namespace glake::transfer {

class Simplex {
 public:
  // There is one row for each limit. No limit is negative.
  explicit Simplex(std::vector<double> limits);

  // Adds a column and returns its number; the first is 0. `entries` are (row, weight), in any
  // order, each row at most once.
  int add(const topology::Route& entries, double gain);
  void solve();

  double value(int column) const { return values_[static_cast<size_t>(column)]; }
  // What one more unit of the row's limit would add to the sum. It is zero where the row has room.
  double price(int row) const { return prices_[static_cast<size_t>(row)]; }
  int pivots() const { return pivots_; }

 private:
  struct Column {
    size_t first, last;  // in entries_
    double gain;
    bool basic;
  };
  int entering(double* reward) const;  // a column; ~row: that row's slack; or kNone
  void direction(int entering);
  int leaving() const;
  void pivot(int entering, int row, double reward);

  size_t rows_;
  const std::vector<double> limits_;
  std::vector<double> room_;  // value of each row's basic column, at first its slack
  std::vector<double> inverse_, prices_, direction_, values_;
  std::vector<int> basis_;  // column of each row; a row's slack is ~row
  std::vector<bool> slack_basic_;
  std::vector<Column> columns_;
  topology::Route entries_;
  int pivots_ = 0;
};

}  // namespace glake::transfer
