#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client.h"
#include "keys.h"
#include "serve.h"

namespace tensorwire::bench {
namespace {

using Clock = std::chrono::steady_clock;

Clients* const the_clients = new Clients;  // used by threads that run until the process ends
uint64_t the_incarnation = 0;

// A closed loop: a client that has received a tensor requests the next one that no client has
// requested. Lives until its last request has ended, so that a late one can still use it.
class Round : public std::enable_shared_from_this<Round> {
 public:
  Round(int64_t step_id, int64_t count)
      : step_id_(step_id),
        latency_us_(static_cast<size_t>(count)),
        asked_by_(static_cast<size_t>(count)) {
    // Made in advance, as a worker's graph makes its keys in advance, too.
    for (int64_t i = 0; i < count; ++i) keys_.push_back(KeyOf(i, the_incarnation));
  }

  absl::Status Run(size_t busy, int in_flight, double timeout_s, tensorwire_bench_asked* asked,
                   float* latency_us, int64_t* answers) {
    const auto begin = Clock::now();
    // Every client has its first requests, however fast the others are.
    const size_t first = std::min(busy * static_cast<size_t>(in_flight), keys_.size());
    next_.store(first, std::memory_order_relaxed);
    for (size_t index = 0; index < first; ++index) Ask(index % busy, index);
    std::unique_lock lock(mutex_);
    const bool ended = condition_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                           [this] { return ended_ == latency_us_.size(); });
    if (!status_.ok()) return status_;
    if (!ended) {
      return absl::DeadlineExceededError(std::to_string(ended_.load()) + " of " +
                                         std::to_string(latency_us_.size()) +
                                         " requests were answered in time");
    }
    asked->seconds = std::chrono::duration<double>(last_ - begin).count();
    asked->bytes = bytes_.load();
    std::memcpy(latency_us, latency_us_.data(), latency_us_.size() * sizeof(float));
    std::fill_n(answers, the_clients->size(), 0);
    for (const size_t client : asked_by_) ++answers[client];
    return absl::OkStatus();
  }

 private:
  void AskNext(size_t client) {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index < keys_.size()) Ask(client, index);
  }

  void Ask(size_t client, size_t index) {
    asked_by_[index] = client;
    (*the_clients)[client]->Ask(
        step_id_, keys_[index],
        [self = shared_from_this(), client, index, begin = Clock::now()](
            const absl::Status& status, const tensorflow::Tensor& tensor) {
          self->latency_us_[index] =
              std::chrono::duration<float, std::micro>(Clock::now() - begin).count();
          self->AskNext(client);  // first, because the next request's time runs already
          self->End(status, tensor);
        });
  }

  void End(const absl::Status& status, const tensorflow::Tensor& tensor) {
    const auto data = tensor.tensor_data();
    const bool whole = !data.empty() && static_cast<uint8_t>(data[data.size() - 1]) == kFill;
    bytes_.fetch_add(static_cast<int64_t>(data.size()), std::memory_order_relaxed);
    if (!status.ok() || !whole) {
      std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = status.ok() ? absl::DataLossError("not what was sent") : status;
    }
    if (ended_.fetch_add(1) + 1 < latency_us_.size()) return;
    std::lock_guard lock(mutex_);
    last_ = Clock::now();
    condition_.notify_all();
  }

  const int64_t step_id_;
  std::vector<std::string> keys_;
  std::vector<float> latency_us_;
  std::vector<size_t> asked_by_;  // by request: the index of its client
  std::atomic<size_t> next_{0};
  std::atomic<size_t> ended_{0};
  std::atomic<int64_t> bytes_{0};
  std::mutex mutex_;
  std::condition_variable condition_;
  Clock::time_point last_;
  absl::Status status_;
};

}  // namespace
}  // namespace tensorwire::bench

extern "C" const char* tensorwire_bench_connect(const char* protocol, const char* address,
                                                int clients, uint64_t incarnation) {
  using namespace tensorwire::bench;
  the_incarnation = incarnation;
  const auto make = std::string(protocol) == "grpc" ? GrpcClients : WireClients;
  return Words(make(address, clients, the_clients));
}

extern "C" const char* tensorwire_bench_ask(int64_t step_id, int64_t count, int busy, int in_flight,
                                            double timeout_s, tensorwire_bench_asked* asked,
                                            float* latency_us, int64_t* answers) {
  using namespace tensorwire::bench;
  const auto round = std::make_shared<Round>(step_id, count);
  return Words(
      round->Run(static_cast<size_t>(busy), in_flight, timeout_s, asked, latency_us, answers));
}
