#pragma once

#include "absl/status/status.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::plugin {

// TensorFlow's statuses carry payloads that matter ("this error is derived from another"), so a
// status that travels is encoded, payloads and all, into the message of a wire::Status. A status
// made by the engine itself is plain text; FromWire reads both.
wire::Status ToWire(const absl::Status& status);
absl::Status FromWire(const wire::Status& status);

// The error of a request to `task`, worded as gRPC does: TensorFlow's coordinator looks for this
// text to know whether a ps or a worker has failed.
absl::Status FromTask(const absl::Status& status, const std::string& task);

}  // namespace tensorwire::plugin
