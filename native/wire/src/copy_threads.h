#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "borrow.h"

namespace tensorwire::wire {

// The threads that copy large loans. They are not the executor's threads, because there a step's
// small work would wait behind a copy of many milliseconds. They let other threads run first.
// Copies under way take turns, part by part, so that a small one ends sooner.
class CopyThreads {
 public:
  CopyThreads() = default;
  ~CopyThreads() { Stop(); }
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  // The number of threads.
  static size_t Count();
  // Queues a copy; the first call starts the threads. After Stop the copy is cancelled. Any thread.
  void Add(const std::shared_ptr<LoanCopy>& copy);
  // Cancels the remaining copies and joins the threads. Must not be called on one of them.
  void Stop();

 private:
  bool HasThreadsLocked();
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<LoanCopy>> copies_;
  std::vector<std::thread> threads_;
  bool stopped_ = false;
};

}  // namespace tensorwire::wire
