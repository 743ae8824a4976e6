#include "calls/blocking_threads.h"

#include <pthread.h>

#include <thread>
#include <utility>

namespace tensorwire::plugin {

BlockingThreads::BlockingThreads(std::chrono::milliseconds idle_limit) : idle_limit_(idle_limit) {}

BlockingThreads::~BlockingThreads() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return threads_ == 0; });
}

void BlockingThreads::Schedule(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(work));
  if (waiting_.size() <= idle_) {
    changed_.notify_one();
    return;
  }
  std::thread([this] { Run(); }).detach();
  ++threads_;
}

size_t BlockingThreads::count() const {
  std::lock_guard lock(mutex_);
  return threads_;
}

void BlockingThreads::Run() {
  pthread_setname_np(pthread_self(), "wire-blocking");  // else it has its creator's name
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    // Not wait_for, which needs glibc 2.30. If the clock is set, an idle thread ends early or late.
    changed_.wait_until(lock, std::chrono::system_clock::now() + idle_limit_,
                        [this] { return !waiting_.empty() || ending_; });
    --idle_;
    if (waiting_.empty()) break;
    {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
    }  // `work` is destroyed before the lock is taken
    lock.lock();
  }
  --threads_;
  // Under the lock: once it is released, the destructor may destroy the condition variable.
  if (ending_) changed_.notify_all();
}

}  // namespace tensorwire::plugin
