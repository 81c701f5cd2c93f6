#include "plan/max_min_fair.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/transfer_tuning.h"
#include "plan/simplex.h"

namespace glake::transfer {
namespace {

using topology::Load;
using topology::Route;
using topology::Topology;

double alone(const Topology& topology, const Candidate& path) {
  double most = std::numeric_limits<double>::infinity();
  for (const Load& load : path.loads) {
    most = std::min(most, topology.limits()[static_cast<size_t>(load.edge)].limit / load.share);
  }
  return most;
}

// How much each path may carry. That is `fixed` if it is not negative. Otherwise it is the highest
// load of all paths times `alone`, which is what the path could carry alone. `tight` says whether
// the path would carry more without this limit.
struct Evenness {
  std::vector<double> fixed, alone;
  std::vector<bool> tight;
};

// One packing program. It has a row for each limit that can bind, and then one for each part of
// each demand.
class Program {
 public:
  Program(const Topology& topology, const std::vector<Party>& parties) : parties_(parties) {
    const auto& limits = topology.limits();
    std::vector<double> most(limits.size(), 0.0);
    for (const Party& party : parties) {
      for (const Candidate* path : party.paths) {
        const double rate = alone(topology, *path);
        for (const Load& load : path->loads) {
          most[static_cast<size_t>(load.edge)] += rate * load.share;
        }
      }
    }
    row_of_.assign(limits.size(), -1);
    for (size_t limit = 0; limit < limits.size(); ++limit) {
      if (most[limit] < limits[limit].limit * (1 - 1e-9)) continue;
      row_of_[limit] = static_cast<int>(room_.size());
      room_.push_back(limits[limit].limit);
    }
  }

  // `settled` is the total of each demand; it is negative if the demand may still grow. Returns the
  // rate that a growing demand of weight 1 gets. `held` says which growing demands cannot have
  // more.
  double solve(const std::vector<double>& settled, std::vector<Party>* answer,
               std::vector<bool>* held = nullptr, Evenness* even = nullptr) {
    std::vector<double> room = room_;
    std::vector<int> first;  // the row of each demand's part 0
    double weights = 0;
    for (size_t d = 0; d < parties_.size(); ++d) {
      first.push_back(static_cast<int>(room.size()));
      const double part = std::max(settled[d], 0.0) / parties_[d].parts;
      room.insert(room.end(), static_cast<size_t>(parties_[d].parts), part);
      if (settled[d] < 0) weights += parties_[d].weight;
    }
    const auto own = static_cast<int>(room.size());  // the row of the first path's own limit
    for (size_t i = 0; even != nullptr && i < even->fixed.size(); ++i) {
      room.push_back(std::max(even->fixed[i], 0.0));
    }
    Simplex program(std::move(room));
    Route shared, highest;
    for (size_t i = 0; even != nullptr && i < even->fixed.size(); ++i) {
      if (even->fixed[i] < 0) highest.push_back({own + static_cast<int>(i), -even->alone[i]});
    }
    if (!highest.empty()) program.add(highest, -TransferTuning::kUneven);
    int next = own;
    for (size_t d = 0; d < parties_.size(); ++d) {
      for (int part = 0; settled[d] < 0 && part < parties_[d].parts; ++part) {
        shared.push_back({first[d] + part, parties_[d].weight / parties_[d].parts});
      }
    }
    const int rate = shared.empty() ? -1 : program.add(shared, weights);
    std::vector<std::vector<int>> columns(parties_.size());
    for (size_t d = 0; d < parties_.size(); ++d) {
      const bool grows = settled[d] < 0;
      for (const Candidate* path : parties_[d].paths) {
        Route entries{{first[d] + path->part, grows ? -1.0 : 1.0}};
        double cost = 0;
        for (const Load& load : path->loads) {
          cost += load.share;
          const int row = row_of_[static_cast<size_t>(load.edge)];
          if (row >= 0) entries.push_back({row, load.share});
        }
        if (even != nullptr) entries.push_back({next++, 1.0});
        columns[d].push_back(program.add(
            entries, (grows ? 0 : TransferTuning::kSettled) - TransferTuning::kLoadCost * cost));
      }
    }
    program.solve();
    for (size_t d = 0; d < parties_.size(); ++d) {
      Party& party = (*answer)[d];
      party.rates.clear();
      for (const int column : columns[d]) party.rates.push_back(program.value(column));
      for (int part = 0; held != nullptr && part < parties_[d].parts; ++part) {
        if (program.price(first[d] + part) > TransferTuning::kStopped) (*held)[d] = true;
      }
    }
    for (size_t i = 0; even != nullptr && i < even->fixed.size(); ++i) {
      even->tight[i] = program.price(own + static_cast<int>(i)) > 1e-6;
    }
    return rate < 0 ? 0 : program.value(rate);
  }

 private:
  const std::vector<Party>& parties_;
  std::vector<int> row_of_;
  std::vector<double> room_;
};

// Rounding may leave a sum slightly over a limit. Then all rates are lowered by the same factor.
// Also sets the totals.
void tidy(const Topology& topology, std::vector<Party>* parties) {
  std::vector<double> load(topology.limits().size(), 0.0);
  for (const Party& party : *parties) {
    for (size_t p = 0; p < party.paths.size(); ++p) {
      for (const Load& each : party.paths[p]->loads) {
        load[static_cast<size_t>(each.edge)] += party.rates[p] * each.share;
      }
    }
  }
  double over = 1;
  for (size_t limit = 0; limit < load.size(); ++limit) {
    if (load[limit] > 0) over = std::max(over, load[limit] / topology.limits()[limit].limit);
  }
  for (Party& party : *parties) {
    for (Rate& rate : party.rates) rate /= over;
    party.total = std::accumulate(party.rates.begin(), party.rates.end(), 0.0);
  }
}

struct Entry {
  size_t party, path;
  double part;  // of the demand's rate
};

std::vector<Entry> by_rate(const std::vector<Party>& parties) {
  std::vector<Entry> entries;
  for (size_t d = 0; d < parties.size(); ++d) {
    for (size_t p = 0; p < parties[d].paths.size(); ++p) {
      entries.push_back({d, p, parties[d].rates[p] / std::max(parties[d].total, 1e-9)});
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.part < b.part; });
  return entries;
}

void erase(Party* party, size_t path) {
  party->paths.erase(party->paths.begin() + static_cast<std::ptrdiff_t>(path));
  party->rates.erase(party->rates.begin() + static_cast<std::ptrdiff_t>(path));
}

void drop_idle(std::vector<Party>* parties) {
  for (Party& party : *parties) {
    for (size_t p = party.paths.size(); p-- > 0;) {
      if (party.rates[p] <= 0) erase(&party, p);
    }
  }
}

bool without(const Topology& topology, const std::vector<double>& totals, const Entry& entry,
             std::vector<Party>* parties) {
  std::vector<Party> tried = *parties;
  erase(&tried[entry.party], entry.path);
  Program(topology, tried).solve(totals, &tried);
  tidy(topology, &tried);
  const double loss = entry.part < TransferTuning::kThinPath ? TransferTuning::kThinLoss
                                                             : TransferTuning::kOtherLoss;
  for (size_t d = 0; d < tried.size(); ++d) {
    if (tried[d].total < totals[d] * (1 - loss)) return false;
  }
  *parties = std::move(tried);
  drop_idle(parties);
  return true;
}

}  // namespace

void fill(const Topology& topology, std::vector<Party>* parties) {
  Program program(topology, *parties);
  std::vector<double> settled(parties->size(), -1.0);
  double before = 0;
  for (size_t round = 0; round < parties->size(); ++round) {
    std::vector<bool> held(parties->size(), false);
    const double rate = program.solve(settled, parties, &held);
    if (round > 0 && rate < before * TransferTuning::kSameRate) break;
    bool any = false, left = false;
    for (size_t d = 0; d < parties->size(); ++d) {
      if (settled[d] >= 0) continue;
      if (held[d]) settled[d] = rate * (*parties)[d].weight;
      (held[d] ? any : left) = true;
    }
    if (!any || !left) break;
    before = rate;
  }
  tidy(topology, parties);
}

bool keep_fattest(size_t most, std::vector<Party>* parties) {
  bool dropped = false;
  for (Party& party : *parties) {
    std::vector<size_t> order(party.paths.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return party.rates[a] > party.rates[b]; });
    if (order.size() <= most || party.rates[order[most]] <= 0) continue;
    // Each part first takes its path with the highest rate, so that no part is left without a path.
    std::vector<bool> served(static_cast<size_t>(party.parts), false);
    std::stable_partition(order.begin(), order.end(), [&](size_t path) {
      const auto part = static_cast<size_t>(party.paths[path]->part);
      const bool first = !served[part];
      served[part] = true;
      return first;
    });
    order.resize(most);
    std::sort(order.begin(), order.end());
    std::vector<const Candidate*> kept;
    for (const size_t path : order) kept.push_back(party.paths[path]);
    party.paths = std::move(kept);
    dropped = true;
  }
  return dropped;
}

void even_out(const Topology& topology, std::vector<Party>* parties) {
  std::vector<double> totals;
  Evenness even;
  for (const Party& party : *parties) {
    totals.push_back(party.total);
    for (const Candidate* path : party.paths) even.alone.push_back(alone(topology, *path));
  }
  // The direct path is not held back, because it has no buffers to fill first.
  for (const Party& party : *parties) {
    for (const Candidate* path : party.paths) {
      even.fixed.push_back(path->direct ? alone(topology, *path) : -1.0);
    }
  }
  even.tight.assign(even.alone.size(), false);
  std::vector<Party> tried = *parties;
  for (int round = 0; round < TransferTuning::kEvenRounds; ++round) {
    Program(topology, *parties).solve(totals, &tried, nullptr, &even);
    size_t path = 0;
    bool any = false;
    for (const Party& party : tried) {
      for (const Rate rate : party.rates) {
        if (even.fixed[path] < 0 && even.tight[path]) {
          even.fixed[path] = rate;
          any = true;
        }
        ++path;
      }
    }
    if (!any) break;
  }
  tidy(topology, &tried);
  for (size_t d = 0; d < tried.size(); ++d) {
    if (tried[d].total < totals[d] * (1 - TransferTuning::kOtherLoss)) return;
  }
  *parties = std::move(tried);
  drop_idle(parties);
}

void prune(const Topology& topology, std::vector<Party>* parties) {
  std::vector<double> totals;
  for (const Party& party : *parties) totals.push_back(party.total);
  drop_idle(parties);
  std::vector<const Candidate*> kept;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Entry& entry : by_rate(*parties)) {
      const Party& party = (*parties)[entry.party];
      const Candidate* path = party.paths[entry.path];
      if (party.paths.size() == 1 || std::count(kept.begin(), kept.end(), path) != 0) continue;
      changed = without(topology, totals, entry, parties);
      if (changed) break;
      kept.push_back(path);
    }
  }
}

}  // namespace glake::transfer
