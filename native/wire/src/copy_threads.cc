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

// More copy no faster: one core moves 10 to 20 GB/s, four fill the memory's bandwidth. And each
// takes a core from the rest of a step.
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

// Asks for long slices: a thread that wakes and has the usual short one then runs at once, instead
// of when a slice of this thread is over. The share of the CPU time stays the same. Before Linux
// 6.12 nothing changes.
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
      break;  // with fewer it takes longer
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
    // Others may copy further parts of it meanwhile.
    copies_.push_back(copy);
    lock.unlock();
    const bool had_part = copy->CopyPartOnce();
    lock.lock();
    if (!had_part) std::erase(copies_, copy);
  }
}

}  // namespace tensorwire::wire
