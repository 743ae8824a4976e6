#include "tensors/host_copy.h"

#include <memory>
#include <utility>

#include "tensorflow/core/common_runtime/copy_tensor.h"

namespace tensorwire::plugin {

using tensorflow::Allocator;
using tensorflow::AllocatorAttributes;
using tensorflow::Device;
using tensorflow::Tensor;

Allocator* PinnedMemory(Device* device) {
  if (device->tensorflow_accelerator_device_info() == nullptr) return nullptr;
  AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  return device->GetAllocator(attributes);
}

bool IsAcceleratorMemory(Device* device, const AllocatorAttributes& attributes) {
  return device->tensorflow_accelerator_device_info() != nullptr && !attributes.on_host();
}

bool IsOnAccelerator(Device* device, const AllocatorAttributes& attributes, const Tensor& tensor,
                     bool is_dead) {
  if (!is_dead && tensor.IsInitialized() && tensor.NumElements() > 0) {
    return IsAcceleratorMemory(device, attributes);
  }
  return false;
}

void CopyToHost(Device* device, tensorflow::DeviceContext* context, std::string_view name,
                const Tensor& tensor,
                std::function<void(const absl::Status&, const Tensor&)> done) {
  Allocator* const memory = PinnedMemory(device);
  auto copy = std::make_shared<Tensor>(memory, tensor.dtype(), tensor.shape());
  if (!copy->IsInitialized()) {
    done(absl::ResourceExhaustedError("grpc++: no memory on the host for a tensor of shape " +
                                      tensor.shape().DebugString() + " on " + device->name()),
         Tensor());
    return;
  }
  auto source = std::make_shared<Tensor>(tensor);  // stays until it has been copied, as `context`
  if (context != nullptr) context->Ref();
  // CopyDeviceToHost also copies variants whose elements are on the device.
  tensorflow::CopyDeviceToHost(
      source.get(), memory, memory, {name.data(), name.size()}, device, copy.get(), context,
      [done = std::move(done), context, source, copy](const absl::Status& status) {
        done(status, *copy);
        if (context != nullptr) context->Unref();
      });
}

}  // namespace tensorwire::plugin
