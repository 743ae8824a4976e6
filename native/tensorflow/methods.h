#pragma once

#include <cstdint>

namespace tensorwire::plugin {

// What a task asks another for on the data plane. Everything else stays on gRPC.
enum Method : uint16_t {
  kRecvTensor = 1,    // metadata: step id (i64), rendezvous key. Reply: see tensor_codec.h
  kRunGraph = 2,      // payload: RunGraphRequest. Reply's payload: RunGraphResponse
  kCleanupGraph = 3,  // one way. metadata: step id (i64)
};

}  // namespace tensorwire::plugin
