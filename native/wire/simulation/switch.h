#pragma once

#include <cstddef>

// Changes from one stack to another. AddressSanitizer is told of each.
namespace tensorwire::simulation {

struct Stack {
  char* bottom = nullptr;
  size_t bytes = 0;
  void* pointer = nullptr;  // where it was left
};

// Who switches to it begins with `entry`.
void PrepareStack(Stack* stack, void (*entry)());

// Comes back when somebody switches to *`here`; `for_ever`: nobody will.
void SwitchStack(Stack* here, const Stack& there, bool for_ever = false);

// What `entry` does first. *`from`: where it came from.
void BeginStack(Stack* from);

// It was left and will not be come back to: another one may have its memory.
void ForgetStack(Stack* stack);

}  // namespace tensorwire::simulation
