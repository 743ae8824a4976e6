#pragma once

#include <cstddef>

// Switches from one stack to another.
namespace tensorwire::simulation {

// The stack pointer with which tensorwire_switch_stack starts `entry` on a new stack.
void* PrepareStack(char* stack, size_t bytes, void (*entry)());

// Saves this thread's stack pointer in *`save`, and continues where `load` was saved.
extern "C" void tensorwire_switch_stack(void** save, void* load);

}  // namespace tensorwire::simulation
