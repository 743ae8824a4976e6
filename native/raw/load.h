#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// Shared by all implementations of rpc.h: the requests of one call of tensorwire_rpc_ask, when
// each began and how long it took.

namespace tensorwire::raw {

// A closed loop. Its requests keep it alive, so that a late one can still use it.
class Load {
 public:
  Load(int64_t requests, uint64_t response_bytes)
      : response_bytes_(response_bytes), began_(static_cast<size_t>(requests)), took_us_(began_) {}

  // Begins the next request and its time measurement; -1 if all have begun. Any thread.
  int64_t Begin() {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= began_.size()) return -1;
    began_[index] = NowUs();
    return static_cast<int64_t>(index);
  }
  // Called when a request was answered, or failed for the reason `error`. Any thread.
  void End(int64_t request, uint64_t response_bytes, const std::string& error = "") {
    const size_t index = static_cast<size_t>(request);
    took_us_[index] = NowUs() - began_[index];
    if (!error.empty() || response_bytes != response_bytes_) Fail(error);
    if (ended_.fetch_add(1, std::memory_order_acq_rel) + 1 == began_.size()) Finish();
  }

  // Waits for the last request. Returns an error message, or "".
  std::string Wait(double timeout_s, double* seconds, float* latency_us);

 private:
  static double NowUs() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void Fail(const std::string& error);
  void Finish();

  const uint64_t response_bytes_;
  std::vector<double> began_;
  std::vector<double> took_us_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> ended_{0};
  std::mutex mutex_;
  double last_us_ = 0;
  bool finished_ = false;
  std::string error_;
};

// The two ends of an implementation. Made once per process and never deleted: the threads run until
// the process ends.
class Server {
 public:
  virtual ~Server() = default;
  // Returns an error message, or "".
  virtual std::string Listen(const std::string& host, int port, int threads, int64_t response_bytes,
                             int* bound_port) = 0;
};

class Client {
 public:
  virtual ~Client() = default;
  virtual std::string Connect(const std::string& address, int channels, int threads,
                              double timeout_s) = 0;
  // Begins a request of `load` on a channel, and the next one on it each time one has ended. All
  // requests carry the same `payload`.
  virtual void Ask(const std::shared_ptr<Load>& load, int channel,
                   const std::shared_ptr<const std::string>& payload) = 0;
  virtual int channels() const = 0;
};

std::unique_ptr<Server> MakeServer();
std::unique_ptr<Client> MakeClient();
std::string Implementation();

}  // namespace tensorwire::raw
