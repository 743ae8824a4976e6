#pragma once

#include <cstdint>

namespace tensorwire::plugin {

// The methods of the data plane. All other requests between tasks stay on gRPC.
enum Method : uint16_t {
  // metadata: step id (i64), standing order (u64, 0: none; see push_inbox.h), with an order its
  // session (u64; see ScopeOf) and PushStep::is_again (u8), rendezvous key. Reply: see
  // tensor_codec.h
  kRecvTensor = 1,
  kRunGraph = 2,      // payload: RunGraphRequest. Reply's payload: RunGraphResponse
  kCleanupGraph = 3,  // one way. metadata: step id (i64)
  // metadata: sender (u64), and unless that is 0: which of its streams (u32), number in the stream
  // (u64), the first number without an answer yet (u64); see EnqueueStream. payload:
  // EnqueueRequest. Reply's payload: EnqueueResponse
  kEagerEnqueue = 16,
  kEagerRunFunction = 17,   // payload: RunComponentFunctionRequest. Reply's: …Response
  kEagerCloseContext = 18,  // metadata: sender (u64) or 0. payload: CloseContextRequest
};

}  // namespace tensorwire::plugin
