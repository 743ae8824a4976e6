#include "switch.h"

#include <cstdint>
#include <cstring>

// Saves and loads the callee-saved registers and the stack pointer. (swapcontext does the same, but
// with two system calls for a signal mask that is not used here.)
namespace tensorwire::simulation {

#if defined(__x86_64__)

asm(R"(
.text
.globl tensorwire_switch_stack
.type tensorwire_switch_stack, @function
tensorwire_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tensorwire_switch_stack, .-tensorwire_switch_stack
)");

void* PrepareStack(char* stack, size_t bytes, void (*entry)()) {
  constexpr size_t kRegisters = 6;
  auto* top = reinterpret_cast<uint64_t*>(stack + bytes);
  *--top = 0;  // no return address; also aligns the stack as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  top -= kRegisters;
  std::memset(top, 0, kRegisters * sizeof(uint64_t));
  return top;
}

#elif defined(__aarch64__)

asm(R"(
.text
.globl tensorwire_switch_stack
.type tensorwire_switch_stack, %function
tensorwire_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size tensorwire_switch_stack, .-tensorwire_switch_stack
)");

void* PrepareStack(char* stack, size_t bytes, void (*entry)()) {
  constexpr size_t kSaved = 20;
  constexpr size_t kLinkRegister = 11;
  auto* top = reinterpret_cast<uint64_t*>(stack + bytes) - kSaved;
  std::memset(top, 0, kSaved * sizeof(uint64_t));
  top[kLinkRegister] = reinterpret_cast<uint64_t>(entry);
  return top;
}

#else
#error "the simulation changes stacks on x86-64 and aarch64 only"
#endif

}  // namespace tensorwire::simulation
