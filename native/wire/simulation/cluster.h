#pragma once

#include <functional>

#include "ledger.h"
#include "plan.h"
#include "simulator.h"

namespace tensorwire::simulation {

// The machines and tasks of a world. Makes them according to the plan, and starts and ends them.
class Cluster {
 public:
  Cluster(Random& random, World* world, Ledger* ledger);

  // A lower bound for what the slowest link carries when many reads and writes are small.
  int64_t bytes_per_s() const { return bytes_per_s_; }
  Task* AnyTask();
  void StartAll();  // starts machines that are off and tasks that do not run
  void StartLater(Task* task);
  void Stop(Task* task);
  void Kill(Task* task, bool silently);
  void Freeze(Task* task);
  void Thaw(Task* task);
  void PowerOff(int machine);
  void PowerOn(int machine);
  bool AllHaveEnded() const;

 private:
  void MakeLinks(Random& random);
  void MakeTasks(Random& random);
  void Start(Task* task);
  void OnEnd(Task* task);

  World* const world_;
  Ledger* const ledger_;
  int64_t bytes_per_s_ = kNever;
};

}  // namespace tensorwire::simulation
