// A packing program: the largest sum of gain x value over columns, none of whose rows may exceed
// its limit. All entries of a start at nought are feasible, so the revised simplex method needs no
// first phase; its prices say which rows hold the solution, and its solutions use few columns.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/topology.h"

namespace glake::transfer {

class Simplex {
 public:
  // Rows by their limits, which are not negative.
  explicit Simplex(std::vector<double> limits);

  // A column of entries (row, weight), in any order, rows at most once each. Its number counts from
  // 0.
  int add(const topology::Route& entries, double gain);
  void solve();

  double value(int column) const { return values_[static_cast<size_t>(column)]; }
  // What one more unit of the row's limit would add: nought where the row has room.
  double price(int row) const { return prices_[static_cast<size_t>(row)]; }
  int pivots() const { return pivots_; }

 private:
  struct Column {
    size_t first, last;  // in entries_
    double gain;
    bool basic;
  };
  int entering(double* reward) const;  // column, or rows() + row of a slack by ~; kNone
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
