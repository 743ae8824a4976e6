#include <cstdint>

#include "simulator.h"

// Functions that the engine's object files call for atomic operations (g++ -fno-inline-atomics).
// The simulator may switch to another thread there. There is only one real thread, so plain memory
// accesses are enough for the operation itself.

using tensorwire::simulation::Point;

#define FUNCTION(result, operation, bytes, ...)                                           \
  extern "C" result operation##bytes(__VA_ARGS__) asm("__atomic_" #operation "_" #bytes); \
  extern "C" result operation##bytes(__VA_ARGS__)
#define CHANGE(operation, bytes, type, expression)           \
  FUNCTION(type, operation, bytes, type* at, type by, int) { \
    Point();                                                 \
    const type before = *at;                                 \
    *at = static_cast<type>(expression);                     \
    return before;                                           \
  }
#define ATOMIC(bytes, type)                                                                 \
  FUNCTION(type, load, bytes, const type* at, int) {                                        \
    Point();                                                                                \
    return *at;                                                                             \
  }                                                                                         \
  FUNCTION(void, store, bytes, type* at, type value, int) {                                 \
    Point();                                                                                \
    *at = value;                                                                            \
  }                                                                                         \
  FUNCTION(bool, compare_exchange, bytes, type* at, type* expected, type value, int, int) { \
    Point();                                                                                \
    const bool equal = *at == *expected;                                                    \
    (equal ? *at : *expected) = equal ? value : *at;                                        \
    return equal;                                                                           \
  }                                                                                         \
  CHANGE(exchange, bytes, type, by)                                                         \
  CHANGE(fetch_add, bytes, type, before + by)                                               \
  CHANGE(fetch_sub, bytes, type, before - by)                                               \
  CHANGE(fetch_and, bytes, type, before& by)                                                \
  CHANGE(fetch_or, bytes, type, before | by)                                                \
  CHANGE(fetch_xor, bytes, type, before ^ by)
ATOMIC(1, uint8_t)
ATOMIC(2, uint16_t)
ATOMIC(4, uint32_t)
ATOMIC(8, uint64_t)
