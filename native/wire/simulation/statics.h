#pragma once

#include <cstddef>

// The engine's static variables are between two marks in .data and two in .bss of this program.
// Each simulated process has its own copy of them.
namespace tensorwire::simulation {
constexpr size_t kMarkBytes = 64;
extern char statics_begin[kMarkBytes];
extern char statics_end[kMarkBytes];
extern char zeroed_statics_begin[kMarkBytes];
extern char zeroed_statics_end[kMarkBytes];
}  // namespace tensorwire::simulation
