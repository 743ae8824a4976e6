#pragma once

#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

// Independent operations of one kind run as one: a ps with hundreds of tables has one lookup and
// one update per step, not one per table. A bundle is the call of a function with copies of these
// operations, so results are the same, bit by bit. Its arguments and results are the inputs and
// outputs of its members, one after the other.
constexpr RewriteSwitch kBundles{"tensorwire_bundles", "bundles"};

// The operation that calls a bundle's function.
constexpr char kBundleOp[] = "TensorwireBundle_import_tensorwire_tf_in_every_task";

// How the names of bundles' functions begin. The rest is a random number: tasks send functions to
// each other, and two of them must not use one name.
constexpr const char* kBundlePrefix = "TensorwireBundle_";

}  // namespace tensorwire::plugin
