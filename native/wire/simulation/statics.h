#pragma once

#include <cstddef>

// The place of the engine's static variables in this program: between two marks in .data and two in
// .bss. Each simulated process has its own copy of what lies between them.
namespace tensorwire::simulation {
constexpr size_t kMarkBytes = 64;
extern char statics_begin[kMarkBytes];
extern char statics_end[kMarkBytes];
extern char zeroed_statics_begin[kMarkBytes];
extern char zeroed_statics_end[kMarkBytes];
}  // namespace tensorwire::simulation
