#include <atomic>
#include <cstddef>
#include <cstdint>

#include "simulator.h"

// The engine's object files are compiled as for ThreadSanitizer. These are the functions that they
// call then: an atomic operation is where another thread may have its turn, and an access to memory
// is nothing to look at. (With one real thread, what the operations do needs no more than to be
// done.)

using tensorwire::simulation::Point;

#define ACCESS(name)           \
  extern "C" void name(void*); \
  extern "C" void name(void*) {}
#define ACCESSES(bytes)                 \
  ACCESS(__tsan_read##bytes)            \
  ACCESS(__tsan_write##bytes)           \
  ACCESS(__tsan_unaligned_read##bytes)  \
  ACCESS(__tsan_unaligned_write##bytes) \
  ACCESS(__tsan_volatile_read##bytes)   \
  ACCESS(__tsan_volatile_write##bytes)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
ACCESS(__tsan_vptr_read)
ACCESS(__tsan_func_entry)
extern "C" {
void __tsan_vptr_update(void**, void*);
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_exit();
void __tsan_func_exit() {}
void __tsan_init();
void __tsan_init() {}
void __tsan_read_range(void*, size_t);
void __tsan_read_range(void*, size_t) {}
void __tsan_write_range(void*, size_t);
void __tsan_write_range(void*, size_t) {}
void __tsan_atomic_thread_fence(int);
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int);
void __tsan_atomic_signal_fence(int) {}
}

#define CHANGE(bits, type, name, expression)                                      \
  extern "C" type __tsan_atomic##bits##_##name(volatile type*, type, int);        \
  extern "C" type __tsan_atomic##bits##_##name(volatile type* at, type by, int) { \
    Point();                                                                      \
    const type before = *at;                                                      \
    *at = static_cast<type>(expression);                                          \
    return before;                                                                \
  }
#define ATOMIC(bits, type)                                                                        \
  extern "C" type __tsan_atomic##bits##_load(const volatile type*, int);                          \
  extern "C" type __tsan_atomic##bits##_load(const volatile type* at, int) {                      \
    Point();                                                                                      \
    return *at;                                                                                   \
  }                                                                                               \
  extern "C" void __tsan_atomic##bits##_store(volatile type*, type, int);                         \
  extern "C" void __tsan_atomic##bits##_store(volatile type* at, type value, int) {               \
    Point();                                                                                      \
    *at = value;                                                                                  \
  }                                                                                               \
  CHANGE(bits, type, exchange, by)                                                                \
  CHANGE(bits, type, fetch_add, before + by)                                                      \
  CHANGE(bits, type, fetch_sub, before - by)                                                      \
  CHANGE(bits, type, fetch_and, before& by)                                                       \
  CHANGE(bits, type, fetch_or, before | by)                                                       \
  CHANGE(bits, type, fetch_xor, before ^ by)                                                      \
  extern "C" int __tsan_atomic##bits##_compare_exchange_strong(volatile type*, type*, type, int,  \
                                                               int);                              \
  extern "C" int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected, \
                                                               type value, int, int) {            \
    Point();                                                                                      \
    if (*at == *expected) {                                                                       \
      *at = value;                                                                                \
      return 1;                                                                                   \
    }                                                                                             \
    *expected = *at;                                                                              \
    return 0;                                                                                     \
  }                                                                                               \
  extern "C" int __tsan_atomic##bits##_compare_exchange_weak(volatile type*, type*, type, int,    \
                                                             int);                                \
  extern "C" int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected,   \
                                                             type value, int a, int b) {          \
    return __tsan_atomic##bits##_compare_exchange_strong(at, expected, value, a, b);              \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
