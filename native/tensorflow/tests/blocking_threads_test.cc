#include "calls/blocking_threads.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "check.h"

namespace tensorwire::plugin {
namespace {

using std::chrono::milliseconds;

void WaitUntil(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(milliseconds(1));
}

// std::latch needs the library of GCC 11; the sysroot of the wheel has that of GCC 10.
void ArriveAndWait(std::atomic<int>* missing) {
  --*missing;
  WaitUntil([missing] { return *missing == 0; });
}

TEST(work_that_waits_for_later_work_does_not_keep_it_waiting) {
  constexpr int kMany = 40;
  std::atomic<int> all{kMany};
  BlockingThreads threads;
  for (int i = 0; i < kMany; ++i) threads.Schedule([&] { ArriveAndWait(&all); });
  WaitUntil([&] { return all == 0; });
  CHECK_EQ(threads.count(), size_t{kMany});
}

TEST(threads_that_have_nothing_to_do_end_and_come_again) {
  BlockingThreads threads(milliseconds(20));
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> both{2};
    threads.Schedule([&] { ArriveAndWait(&both); });
    threads.Schedule([&] { ArriveAndWait(&both); });
    WaitUntil([&] { return both == 0; });
    WaitUntil([&] { return threads.count() == 0; });
  }
}

TEST(an_idle_thread_is_used_again) {
  BlockingThreads threads(std::chrono::hours(1));
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> done{false};
    threads.Schedule([&] { done = true; });
    WaitUntil([&] { return done.load(); });
    // Usually the thread is idle by now; sometimes it is not yet, and another one is started.
  }
  CHECK(threads.count() < 20);
}

TEST(the_end_waits_for_what_was_scheduled) {
  std::atomic<int> done{0};
  {
    BlockingThreads threads;
    for (int i = 0; i < 100; ++i) {
      threads.Schedule([&] {
        std::this_thread::sleep_for(milliseconds(1));
        ++done;
      });
    }
  }
  CHECK_EQ(done.load(), 100);
}

}  // namespace
}  // namespace tensorwire::plugin

RUN_TESTS()
