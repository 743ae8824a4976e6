#include "copy_threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>

#include "cores.h"

namespace tensorwire::wire {
namespace {

// More threads would not be faster: one core copies 10 to 20 GB/s, and four use up the memory's
// bandwidth. Each thread also takes a core from the rest of the step.
constexpr int kMostThreads = 4;
constexpr uint64_t kSliceNs = 100'000'000;

// struct sched_attr of linux/sched/types.h, its first version.
struct SchedulerAttributes {
  uint32_t size = sizeof(SchedulerAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

// Asks the scheduler for long time slices. A thread that wakes and has the usual short slice then
// runs at once, instead of after this thread's slice. The share of CPU time stays the same. Has no
// effect before Linux 6.12.
void LetOthersGoFirst() {
  SchedulerAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

size_t CopyThreads::Count() {
  static const auto count = static_cast<size_t>(std::clamp(UsableCores() / 2, 1, kMostThreads));
  return count;
}

void CopyThreads::Add(const std::shared_ptr<LoanCopy>& copy) {
  bool stopped = false;
  bool taken = false;
  {
    std::lock_guard lock(mutex_);
    stopped = stopped_;
    taken = !stopped && HasThreadsLocked();
    if (taken) copies_.push_back(copy);
  }
  if (stopped) {
    copy->Cancel();
  } else if (!taken) {
    while (copy->CopyPartOnce()) {
    }
  } else {
    for (size_t i = copy->threads(); i > 0; --i) wake_.notify_one();
  }
}

bool CopyThreads::HasThreadsLocked() {
  while (threads_.size() < Count()) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {
      break;  // fewer threads work, too, but slower
    }
  }
  return !threads_.empty();
}

void CopyThreads::Stop() {
  std::deque<std::shared_ptr<LoanCopy>> left;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    left.swap(copies_);
  }
  wake_.notify_all();
  for (const auto& copy : left) copy->Cancel();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void CopyThreads::Loop() {
  pthread_setname_np(pthread_self(), "wire-copy");
  LetOthersGoFirst();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopped_ || !copies_.empty(); });
    if (stopped_) return;
    std::shared_ptr<LoanCopy> copy = std::move(copies_.front());
    copies_.pop_front();
    // It stays queued, so that other threads may copy further parts meanwhile.
    copies_.push_back(copy);
    lock.unlock();
    const bool had_part = copy->CopyPartOnce();
    lock.lock();
    if (!had_part) std::erase(copies_, copy);
  }
}

}  // namespace tensorwire::wire
