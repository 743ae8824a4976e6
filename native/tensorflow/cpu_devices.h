#pragma once

#include <memory>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace tensorwire::plugin {

// The devices of a task as TensorFlow would make them, but for one thing: what its CPU devices
// allocate comes from the PoolAllocator, so that a peer on this host can read it and the next step
// finds its pages. Not where there are other devices than plain CPUs: an accelerator's host memory
// has to be pinned. Null where the pool is not shared: then TensorFlow makes its devices itself.
absl::Status MakePooledCpuDevices(const tensorflow::ServerDef& server_def,
                                  std::unique_ptr<tensorflow::DeviceMgr>* out);

}  // namespace tensorwire::plugin
