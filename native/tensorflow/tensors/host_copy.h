#pragma once

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire::plugin {

// Host memory from and to which an accelerator copies fast; null if `device` is a CPU. The
// allocator lives as long as the process.
tensorflow::Allocator* PinnedMemory(tensorflow::Device* device);

// True if memory of `device` with these attributes is the accelerator's own, and not the host's.
bool IsAcceleratorMemory(tensorflow::Device* device,
                         const tensorflow::AllocatorAttributes& attributes);

// True if a tensor that `device` has made has to be copied before the host can read it.
// `attributes`: of the tensor's memory.
bool IsOnAccelerator(tensorflow::Device* device, const tensorflow::AllocatorAttributes& attributes,
                     const tensorflow::Tensor& tensor, bool is_dead);

// Copies such a tensor to the host. `done` gets the copy, or the reason why there is none; it may
// run in another thread. `name` is for the device's log.
void CopyToHost(tensorflow::Device* device, tensorflow::DeviceContext* context,
                std::string_view name, const tensorflow::Tensor& tensor,
                std::function<void(const absl::Status&, const tensorflow::Tensor&)> done);

}  // namespace tensorwire::plugin
