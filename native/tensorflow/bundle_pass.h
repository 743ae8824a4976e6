#pragma once

#include "graph_rewrite.h"

namespace tensorwire::plugin {

// Independent operations of one kind run as one: a ps with hundreds of tables has one lookup and
// one update per step, not one per table. The kernel of a bundle runs TensorFlow's own kernels, so
// results are the same, bit by bit.
constexpr RewriteSwitch kBundles{"tensorwire_bundles", "TENSORWIRE_BUNDLES"};

// Our own operation. Its inputs and outputs are those of its members, one after the other.
// Constants and handles of variables are not among its inputs; they are nodes in it.
constexpr char kBundleOp[] = "TensorwireBundle_import_tensorwire_tf_in_every_task";
// NodeDefs: first the constants and handles, then the members. An input of a member is ":i", the
// bundle's input i, or "i", the constant or handle i.
constexpr char kBundleNodesAttr[] = "nodes";
constexpr char kBundleFixedAttr[] = "fixed";  // how many constants and handles

}  // namespace tensorwire::plugin
