#pragma once

#include "graph_rewrite.h"

namespace tensorwire::plugin {

// The operations at the two ends of a group of tensors: the first one takes all tensors of the
// group, the second one yields them.
constexpr char kFuseSendOp[] = "TensorwireFuseSend_import_tensorwire_tf_in_every_task";
constexpr char kFuseReceiveOp[] = "TensorwireFuseReceive_import_tensorwire_tf_in_every_task";

constexpr RewriteSwitch kTensorFuse{"tensorwire_fuse", "TENSORWIRE_TENSOR_FUSE"};

}  // namespace tensorwire::plugin
