#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire::bench {

// A client of the ps with its own connection. Thread-safe.
class Client {
 public:
  using Done = std::function<void(const absl::Status&, const tensorflow::Tensor&)>;
  virtual ~Client() = default;
  // Asks the ps for a tensor. `done` is called once, in any thread.
  virtual void Ask(int64_t step_id, const std::string& key, Done done) = 0;
};

using Clients = std::vector<std::unique_ptr<Client>>;

// Make `count` clients of the ps's gRPC port, or of its data port. State that the clients share
// lives as long as the process.
absl::Status GrpcClients(const std::string& address, int count, Clients* out);
absl::Status WireClients(const std::string& address, int count, Clients* out);

}  // namespace tensorwire::bench
