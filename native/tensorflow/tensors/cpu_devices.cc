#include "tensors/cpu_devices.h"

#include <algorithm>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/public/session_options.h"
#include "tensors/pool_allocator.h"

namespace tensorwire::plugin {

using tensorflow::Device;

absl::Status MakePooledCpuDevices(const tensorflow::ServerDef& server_def,
                                  std::unique_ptr<tensorflow::DeviceMgr>* out) {
  PoolAllocator* const allocator = PoolAllocator::Get();
  if (allocator == nullptr || allocator->pool()->shared_memory() == nullptr) {
    return absl::OkStatus();
  }
  tensorflow::SessionOptions options;
  options.config = server_def.default_session_config();
  const std::string prefix = "/job:" + server_def.job_name() +
                             "/replica:" + std::to_string(server_def.replica()) +
                             "/task:" + std::to_string(server_def.task_index());
  std::vector<std::unique_ptr<Device>> devices;
  TF_RETURN_IF_ERROR(tensorflow::DeviceFactory::AddDevices(options, prefix, &devices));
  auto is_plain = [](const std::unique_ptr<Device>& device) {
    const Device& made = *device;
    return typeid(made) == typeid(tensorflow::ThreadPoolDevice);
  };
  if (std::all_of(devices.begin(), devices.end(), is_plain)) {
    for (auto& device : devices) {
      device = std::make_unique<tensorflow::ThreadPoolDevice>(
          options, device->name(), tensorflow::Bytes(device->attributes().memory_limit()),
          device->attributes().locality(), allocator);
    }
  }
  *out = std::make_unique<tensorflow::DynamicDeviceMgr>(std::move(devices));
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
