#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "data_plane.h"
#include "tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// Another task's request for a tensor that is made here (RecvTensor), from its arrival to its
// answer. It is in one place at a time, which owns it:
//
//   TensorFlow's rendezvous --- made, and wanted ---> a device's copy to the host ---> answered
//            |   |                                     (of an accelerator's tensor)      ^
//            |   `----------------- made in host memory, or the step failed -------------'
//            `--- made, and nobody wants it ---> the tensor goes back; the request ends unanswered
//
// The answer may never be: so it keeps neither the connection nor its descriptor when who asked has
// gone.
class TensorRequest {
 public:
  // Answers at once what needs no tensor, and otherwise when there is one. On the reactor.
  static void Serve(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request);

 private:
  using Rendezvous = tensorflow::Rendezvous;
  using Tensor = tensorflow::Tensor;

  TensorRequest(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request,
                int64_t step_id, std::string key, tensorflow::Device* device, bool ordered,
                TensorCounters* counters);

  // Called by TensorFlow's rendezvous with the tensor. `self` has left it.
  static void OnMade(std::unique_ptr<TensorRequest> self, const absl::Status& status,
                     const Rendezvous::Args& send_args, const Tensor& value, bool is_dead);
  static void CopyToHost(std::unique_ptr<TensorRequest> self, const Tensor& value,
                         tensorflow::DeviceContext* context);

  // False when nobody waits for an answer any more.
  bool FindAsker(wire::Request* asker) const;
  // Whoever asked has gone. Another connection may have asked for the tensor, or may ask yet.
  void PutBack(const Rendezvous::Args& send_args, const Tensor& value, bool is_dead) const;
  void Answer(const wire::Request& asker, const Tensor& tensor, uint8_t flags) const;

  tensorflow::WorkerEnv* const env_;
  DataPlane* const plane_;
  const int64_t step_id_;
  const std::string key_;
  tensorflow::Device* const device_;  // that makes it
  const bool ordered_;                // the asker's order was accepted
  TensorCounters* const counters_;
  const int64_t asked_us_;
  uint32_t waited_us_ = 0;  // for the tensor to be made

  // The connection of the request.
  const std::weak_ptr<wire::Connection> connection_;
  const uint64_t connection_id_;
  const uint64_t id_;
  const bool one_way_;
  const wire::Claim claim_;
};

}  // namespace tensorwire::plugin
