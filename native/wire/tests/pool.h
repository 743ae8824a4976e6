#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace tensorwire::wire {

// Runs closures on two threads, and joins them.
class Pool {
 public:
  Pool() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void Run(std::function<void()> closure) {
    {
      std::lock_guard lock(mutex_);
      closures_.push(std::move(closure));
    }
    wake_.notify_one();
  }

 private:
  void Loop() {
    for (;;) {
      std::function<void()> closure;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ended_ || !closures_.empty(); });
        if (closures_.empty()) return;
        closure = std::move(closures_.front());
        closures_.pop();
      }
      closure();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> closures_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tensorwire::wire
