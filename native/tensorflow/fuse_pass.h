#pragma once

#include "graph_rewrite.h"

namespace tensorwire::plugin {

// The attributes and labels that the pass writes into a graph and the kernels read.
//
// If no tensor of a group can be dead, one node sends the group and one receives it; both are our
// own operations. If a branch may be dead, each tensor has a node at either end. These are
// TensorFlow's operations _Send and _Recv, whose attribute "_kernel" names our kernels: the
// executor runs only these two operations with a dead input, and lets only them yield a dead
// output.
constexpr char kFuseSendOp[] = "TensorwireFuseSend_import_tensorwire_tf_in_every_task";
constexpr char kFuseReceiveOp[] = "TensorwireFuseReceive_import_tensorwire_tf_in_every_task";
constexpr char kFusePartLabel[] = "tensorwire_fuse_part";        // of a _Send or _Recv
constexpr char kFuseReceiveLabel[] = "tensorwire_fuse_receive";  // of the _Recv before the parts
constexpr char kFusePartAttr[] = "_tensorwire_part";             // which of the group's tensors
constexpr char kFusePartsAttr[] = "_tensorwire_parts";           // how many it has

constexpr RewriteSwitch kTensorFuse{"tensorwire_fuse", "TENSORWIRE_TENSOR_FUSE"};

}  // namespace tensorwire::plugin
