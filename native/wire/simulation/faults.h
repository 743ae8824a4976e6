#pragma once

#include "cluster.h"
#include "ledger.h"
#include "simulator.h"

namespace tensorwire::simulation {

// Injects faults of the kinds that the plan allows into a cluster, at random times until End.
class Faults {
 public:
  Faults(World* world, const Ledger* ledger, Cluster* cluster)
      : world_(world), ledger_(ledger), cluster_(cluster) {}

  void Begin();
  // Ends all faults.
  void End();

 private:
  void NextLater();
  void Next();
  void BeginFailingCalls();
  void Clog(int from, int to);
  void FreezeOne();

  World* const world_;
  const Ledger* const ledger_;
  Cluster* const cluster_;
  int64_t unclogged_ns_ = 0;  // from then on there may be another clog
  int64_t thawed_ns_ = 0;
};

}  // namespace tensorwire::simulation
