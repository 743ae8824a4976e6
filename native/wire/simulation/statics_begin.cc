#include "statics.h"

// Linked before the engine's object files, so that their variables follow in each section.
namespace tensorwire::simulation {
char statics_begin[kMarkBytes] __attribute__((aligned(64))) = {1};
char zeroed_statics_begin[kMarkBytes] __attribute__((aligned(64)));
}  // namespace tensorwire::simulation
