#include "statics.h"

// Linked after the engine's object files.
namespace tensorwire::simulation {
char statics_end[kMarkBytes] __attribute__((aligned(64))) = {1};
char zeroed_statics_end[kMarkBytes] __attribute__((aligned(64)));
}  // namespace tensorwire::simulation
