#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "calls/status.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/status.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// Puts a protobuf into a message, as its payload. One of 2 GB or more cannot be serialized; gRPC's
// client words that like this.
inline absl::Status PutProto(const tensorflow::protobuf::MessageLite& proto,
                             wire::Message* message) {
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) {
    return absl::InternalError("Protobuf is too large to be serialized");
  }
  message->SetOwnedPayload(std::move(bytes));
  return absl::OkStatus();
}

// Answers a request with `status`, or with `response` if that is OK.
inline void ReplyWith(const wire::Request& request, absl::Status status,
                      const tensorflow::protobuf::MessageLite& response) {
  wire::Message reply;
  if (status.ok()) status = PutProto(response, &reply);
  if (status.ok()) {
    request.Reply(std::move(reply));
  } else {
    request.Fail(ToWire(status));
  }
}

// A call whose reply is one protobuf message, which it puts into `response`.
class ProtoCall : public wire::Call {
 public:
  ProtoCall(tensorflow::protobuf::MessageLite* response, tensorflow::StatusCallback done)
      : response_(response), done_(std::move(done)) {}

  wire::Status PrepareFromReactor(std::string_view /*metadata*/, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    if (payload_bytes >= wire::kMaxRequestPayloadBytes) {
      return wire::Status(wire::Code::kInternal, "a reply that is larger than a protobuf can be");
    }
    bytes_.resize(payload_bytes);
    into->push_back({bytes_.data(), bytes_.size()});
    return wire::Status();
  }

  void Done(const wire::Status& status) override {
    absl::Status outcome = FromWire(status);
    if (outcome.ok() && !response_->ParseFromString(bytes_)) {
      outcome = absl::InternalError("grpc++: a reply that cannot be parsed arrived");
    }
    done_(outcome);
  }

 private:
  tensorflow::protobuf::MessageLite* const response_;
  const tensorflow::StatusCallback done_;
  std::string bytes_;
};

}  // namespace tensorwire::plugin
