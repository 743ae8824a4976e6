#include "statics.h"

// Linked before the engine's object files: what follows in each section is theirs.
namespace tensorwire::simulation {
char statics_begin[kMarkBytes] __attribute__((aligned(64))) = {1};
char zeroed_statics_begin[kMarkBytes] __attribute__((aligned(64)));
}  // namespace tensorwire::simulation
