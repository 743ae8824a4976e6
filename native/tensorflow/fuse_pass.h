#pragma once

#include "graph_rewrite.h"

namespace tensorwire::plugin {

// The attributes and labels that the pass writes into a graph and the kernels read.
//
// Tensors that travel as one, all of which are certainly there, are sent by one node and received
// by one, of operations of ours. Where a branch may be dead, each tensor has a node at either end,
// of TensorFlow's own operations _Send and _Recv, whose attribute "_kernel" names kernels of ours:
// the executor goes by the operation, and only these run when their input is dead, and may yield a
// dead output.
constexpr char kFuseSendOp[] = "TensorwireFuseSend_import_tensorwire_tf_in_every_task";
constexpr char kFuseReceiveOp[] = "TensorwireFuseReceive_import_tensorwire_tf_in_every_task";
constexpr char kFusePartLabel[] = "tensorwire_fuse_part";        // of a _Send or _Recv
constexpr char kFuseReceiveLabel[] = "tensorwire_fuse_receive";  // of the _Recv before the parts
constexpr char kFusePartAttr[] = "_tensorwire_part";             // which of the group's tensors
constexpr char kFusePartsAttr[] = "_tensorwire_parts";           // how many it has

constexpr RewriteSwitch kTensorFuse{"tensorwire_fuse", "TENSORWIRE_TENSOR_FUSE"};

}  // namespace tensorwire::plugin
