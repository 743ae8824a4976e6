#pragma once

#include "graph_rewrite.h"

namespace tensorwire::plugin {

// Operations of one kind that depend on nothing of each other run as one: a ps with hundreds of
// tables has one lookup and one update in a step, and not one for each table. The kernel of a
// bundle runs TensorFlow's own kernels, so results are the same, bit by bit.
constexpr RewriteSwitch kBundles{"tensorwire_bundles", "TENSORWIRE_BUNDLES"};

// An operation of ours. Its inputs and outputs are those of its members, one after the other, apart
// from inputs that are constants and handles of variables: those are nodes in it.
constexpr char kBundleOp[] = "TensorwireBundle_import_tensorwire_tf_in_every_task";
// NodeDefs: first the constants and handles, then the members. An input of a member is ":i", the
// bundle's input i, or "i", the constant or handle i.
constexpr char kBundleNodesAttr[] = "nodes";
constexpr char kBundleFixedAttr[] = "fixed";  // how many constants and handles

}  // namespace tensorwire::plugin
