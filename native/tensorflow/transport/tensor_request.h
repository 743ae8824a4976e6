#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "metrics/tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorwire/wire/engine.h"
#include "transport/data_plane.h"

namespace tensorwire::plugin {

// Another task's request for a tensor that is made here (RecvTensor), from its arrival to its
// answer. At any time exactly one of these places owns it:
//
//   TensorFlow's rendezvous --- made, and wanted ---> a device's copy to the host ---> answered
//            |   |                                     (of an accelerator's tensor)      ^
//            |   `----------------- made in host memory, or the step failed -------------'
//            `--- made, and not for this client ---> the tensor goes back; the request ends
//
// The tensor may never be made. So a request whose client has gone keeps neither the connection nor
// its descriptor.
class TensorRequest {
 public:
  // Runs on the reactor. Answers at once if no tensor is needed, otherwise when it is made.
  static void Serve(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request);

 private:
  using Rendezvous = tensorflow::Rendezvous;
  using Tensor = tensorflow::Tensor;

  TensorRequest(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request,
                int64_t step_id, const Order& order, PushSteps::Taken taken);

  // Called by TensorFlow's rendezvous with the tensor; `self` is no longer in the rendezvous.
  static void OnMade(std::unique_ptr<TensorRequest> self, const absl::Status& status,
                     const Rendezvous::Args& send_args, const Tensor& value, bool is_dead);
  static void CopyAndAnswer(std::unique_ptr<TensorRequest> self, const Tensor& value,
                            tensorflow::DeviceContext* context);

  // False if the connection of the request is gone.
  bool FindAsker(wire::Request* asker) const;
  // Puts the tensor back into the rendezvous: another connection may have asked for it, or may ask
  // later.
  void PutBack(const Rendezvous::Args& send_args, const Tensor& value, bool is_dead) const;
  static void Answer(std::unique_ptr<TensorRequest> self, const wire::Request& asker,
                     const Tensor& tensor, uint8_t flags);
  void Reply(const wire::Request& asker, const Tensor& tensor, uint8_t flags) const;

  tensorflow::WorkerEnv* const env_;
  DataPlane* const plane_;
  const int64_t step_id_;
  const std::string key_;
  tensorflow::Device* const device_;  // makes the tensor
  const PushSteps::Taken taken_;      // the request's standing order
  TensorCounters* const counters_;
  const int64_t asked_us_;
  uint32_t waited_us_ = 0;  // until the tensor was made

  // The connection of the request.
  const std::weak_ptr<wire::Connection> connection_;
  const uint64_t connection_id_;
  const uint64_t id_;
  const bool one_way_;
  const wire::Claim claim_;
};

}  // namespace tensorwire::plugin
