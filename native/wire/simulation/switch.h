#pragma once

#include <cstddef>

// Changes from one stack to another.
namespace tensorwire::simulation {

// The stack pointer with which SwitchStack begins `entry` on a fresh stack.
void* PrepareStack(char* stack, size_t bytes, void (*entry)());

// Saves where this thread is in *`save`, and goes on where `load` was saved.
extern "C" void tensorwire_switch_stack(void** save, void* load);

}  // namespace tensorwire::simulation
