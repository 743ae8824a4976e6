#include "calls/status.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/status.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::plugin {
namespace {

// The start of an encoded status. After it come length and text, and for each payload length and
// bytes of URL and value. No message for people starts with these bytes.
constexpr std::string_view kEncoded("\x01TFS", 4);

void PutString(absl::string_view text, std::string* out) {
  const auto size = static_cast<uint32_t>(text.size());
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(text.data(), text.size());
}

bool GetString(wire::MetadataReader* reader, std::string_view* out) {
  uint32_t size = 0;
  return reader->Get(&size) && reader->GetBytes(size, out);
}

}  // namespace

wire::Status ToWire(const absl::Status& status) {
  if (status.ok()) return wire::Status();
  std::string encoded(kEncoded);
  PutString(status.message(), &encoded);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    PutString(url, &encoded);
    PutString(std::string(value), &encoded);
  });
  return wire::Status(static_cast<wire::Code>(status.code()), std::move(encoded));
}

absl::Status FromWire(const wire::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.code());
  const std::string_view message(status.message());
  if (message.substr(0, kEncoded.size()) != kEncoded) {
    if (status.code() != wire::Code::kCancelled) {
      return absl::Status(code, "grpc++: " + status.message());
    }
    // The engine cancels nothing by itself, so this error is derived from another one. If that one
    // is a cancelled operation, and all errors that arrive of it are derived, too, StatusGroup
    // shows the error whose text is last in the alphabet. So this text starts with a character that
    // sorts before all letters.
    return tensorflow::StatusGroup::MakeDerived(
        absl::CancelledError("(grpc++: " + status.message() + ")"));
  }
  wire::MetadataReader reader(message.substr(kEncoded.size()));
  std::string_view text;
  GetString(&reader, &text);
  absl::Status decoded(code, absl::string_view(text.data(), text.size()));
  std::string_view url;
  std::string_view value;
  while (GetString(&reader, &url) && GetString(&reader, &value)) {
    decoded.SetPayload(absl::string_view(url.data(), url.size()),
                       absl::Cord(absl::string_view(value.data(), value.size())));
  }
  return decoded;
}

absl::Status FromTask(const absl::Status& status, const std::string& task) {
  const std::string origin = "GRPC error information from remote target " + task;
  if (status.ok() || absl::StrContains(status.message(), origin)) return status;
  return tensorflow::errors::CreateWithUpdatedMessage(
      status, absl::StrCat(status.message(), "\nAdditional ", origin));
}

}  // namespace tensorwire::plugin
