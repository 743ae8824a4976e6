#pragma once

#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

// The operations at the two ends of a group of tensors: the first one makes one tensor of them
// (fused_tensor.h), the second one takes it apart. TensorFlow sends the one tensor.
constexpr char kFuseOp[] = "TensorwireFuse_import_tensorwire_tf_in_every_task";
constexpr char kSplitOp[] = "TensorwireSplit_import_tensorwire_tf_in_every_task";

constexpr RewriteSwitch kTensorFuse{"tensorwire_fuse", "tensor_fuse"};

}  // namespace tensorwire::plugin
