#pragma once

#include <cstdint>

// The workload: tasks with engines call each other while faults happen. Checks what must hold at
// all times and at the end.
namespace tensorwire::simulation {

struct Outcome {
  uint64_t hash = 0;  // of everything that happened
  uint64_t calls = 0;
  uint64_t calls_ok = 0;
  uint64_t switches = 0;
  int64_t simulated_ns = 0;
};

// Runs one seed. Ends the process if an invariant does not hold.
Outcome RunSeed(uint64_t seed);

// Makes the workload break an invariant, to test that this is noticed.
extern bool break_a_promise;

}  // namespace tensorwire::simulation
