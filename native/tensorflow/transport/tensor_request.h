#pragma once

#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorwire/wire/engine.h"
#include "transport/data_plane.h"

namespace tensorwire::plugin {

// Serves another task's request for a tensor that is made here (RecvTensor). Runs on the reactor.
// Answers at once if no tensor is needed, otherwise when it is made.
void ServeTensorRequest(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request);

}  // namespace tensorwire::plugin
