#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace tensorwire::plugin {

// Threads for work that may wait for other such work. Their number is not limited, so that no work
// waits for a free thread. A thread that is idle for a while ends: with TensorFlow's
// UnboundedWorkQueue, whose threads stay, a worker kept 200 of them. Thread-safe.
class BlockingThreads {
 public:
  explicit BlockingThreads(std::chrono::milliseconds idle_limit = std::chrono::seconds(10));
  // Waits until all scheduled work is done.
  ~BlockingThreads();
  BlockingThreads(const BlockingThreads&) = delete;
  BlockingThreads& operator=(const BlockingThreads&) = delete;

  void Schedule(std::function<void()> work);

  size_t count() const;

 private:
  void Run();

  const std::chrono::milliseconds idle_limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  size_t threads_ = 0;
  size_t idle_ = 0;
  bool ending_ = false;
};

}  // namespace tensorwire::plugin
