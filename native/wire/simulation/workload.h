#pragma once

#include <cstdint>

// The workload: tasks with engines that call each other while things break, and what must
// hold all the time and at the end.
namespace tensorwire::simulation {

struct Outcome {
  uint64_t hash = 0;  // of all that happened
  uint64_t calls = 0;
  uint64_t calls_ok = 0;
  uint64_t switches = 0;
  int64_t simulated_ns = 0;
};

// Runs one seed. Ends the process where an invariant does not hold.
Outcome RunSeed(uint64_t seed);

// Makes the workload break a promise, to see that it is noticed.
extern bool break_a_promise;

}  // namespace tensorwire::simulation
