#pragma once

#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

// Halves the bytes of a training step: the floats of pulled variables and the pushed gradients are
// sent between tasks in 16 bits. Results change, so it is not one of kExactRewrites.
// docs/decisions/rewrites.md.

// The name of a custom optimizer in a session's RewriterConfig. Its parameters are `dtype`,
// "bfloat16" or "float16", or "float32" for none; and `exclude`: shell patterns of names, separated
// by commas. TENSORWIRE_REWRITES has the dtype as a word, and float32=PATTERN for each pattern.
constexpr RewriteSwitch kWireDtype{"tensorwire_wire_dtype", "wire_dtype"};

// Our own operations. The first one converts floats to its attribute T, bfloat16 or half. It rounds
// to the nearest value, to even if halfway. With attribute `by_chance` it rounds up or down by
// chance, so that the mean of many is the float; then a finite value stays finite in bfloat16. The
// second one converts back to floats.
constexpr char kNarrowOp[] = "TensorwireNarrow_import_tensorwire_tf_in_every_task";
constexpr char kWidenOp[] = "TensorwireWiden_import_tensorwire_tf_in_every_task";

}  // namespace tensorwire::plugin
