#pragma once

#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace tensorwire::plugin {

// Makes the devices of a task as TensorFlow would, but with CPU devices that allocate from the
// PoolAllocator. So a peer on this host can read their tensors, and the next step finds the pages
// mapped. If the task has devices other than plain CPUs, none uses the pool: an accelerator's host
// memory has to be pinned. Null if the pool is not shared; then TensorFlow makes the devices
// itself.
absl::Status MakePooledCpuDevices(const tensorflow::ServerDef& server_def,
                                  std::unique_ptr<tensorflow::DeviceMgr>* out);

}  // namespace tensorwire::plugin
