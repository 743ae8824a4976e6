#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// The client's side: lets TensorFlow's CallOptions cancel a call even before it has an id. With
// patience, the call ends with the other task's answer to the cancellation, if that arrives in
// time.
class Cancellation {
 public:
  explicit Cancellation(std::shared_ptr<wire::Channel> channel, int64_t patience_ms = 0)
      : channel_(std::move(channel)), patience_ms_(patience_ms) {}
  void SetId(uint64_t id) {
    id_.store(id);
    if (wanted_.load()) Cancel(id);
  }
  void Cancel() {
    wanted_.store(true);
    if (const uint64_t id = id_.load(); id != 0) Cancel(id);
  }
  bool wanted() const { return wanted_.load(); }

 private:
  void Cancel(uint64_t id) {
    if (patience_ms_ > 0) {
      channel_->CancelPatiently(id, patience_ms_);
    } else {
      channel_->Cancel(id);
    }
  }

  const std::shared_ptr<wire::Channel> channel_;
  const int64_t patience_ms_;
  std::atomic<uint64_t> id_{0};
  std::atomic<bool> wanted_{false};
};

// The server's side: the running requests, which their clients or the loss of the connection can
// cancel. Thread-safe.
class RunningRequests {
 public:
  void Add(const wire::Request& request, std::shared_ptr<tensorflow::CallOptions> options) {
    std::lock_guard lock(mutex_);
    running_[{request.connection_id(), request.id}] = std::move(options);
  }
  void Remove(const wire::Request& request) {
    std::lock_guard lock(mutex_);
    running_.erase({request.connection_id(), request.id});
  }
  void Cancel(uint64_t connection_id, uint64_t request_id) {
    std::shared_ptr<tensorflow::CallOptions> options;
    {
      std::lock_guard lock(mutex_);
      const auto at = running_.find({connection_id, request_id});
      if (at != running_.end()) options = at->second;
    }
    if (options != nullptr) options->StartCancel();
  }
  void CancelAll(uint64_t connection_id) {
    std::vector<std::shared_ptr<tensorflow::CallOptions>> all;
    {
      std::lock_guard lock(mutex_);
      for (auto at = running_.lower_bound({connection_id, 0});
           at != running_.end() && at->first.first == connection_id; ++at) {
        all.push_back(at->second);
      }
    }
    for (const auto& options : all) options->StartCancel();
  }

 private:
  std::mutex mutex_;
  // Keys are a connection and a request.
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<tensorflow::CallOptions>> running_;
};

}  // namespace tensorwire::plugin
