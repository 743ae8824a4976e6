#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "call_table.h"
#include "fd.h"
#include "mpsc_queue.h"
#include "tensorwire/wire/clock.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::wire {

// The owner of a descriptor that a reactor watches.
class EventTarget {
 public:
  virtual ~EventTarget() = default;
  virtual void OnEventsFromReactor(uint32_t epoll_events) = 0;
  // The engine stops: release everything.
  virtual void OnStopFromReactor() = 0;
};

// Counts as one while it lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>* number) : number_(number) { ++*number_; }
  ~Counted() { --*number_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>* const number_;
};

// One thread, one epoll instance, and the descriptors that belong to it. Reactors share nothing;
// other threads give a reactor work with Post. An iteration of its loop reads from all ready
// sockets, gathers what that completes into closures for the executor, and gathers what it sends
// into one write per connection.
class Reactor {
 public:
  Reactor(int index, const EngineOptions& options);
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  Status Start();  // starts the thread; without it, the caller of TurnFromReactor is the reactor
  void Stop();     // joins the thread; tasks posted afterwards are dropped

  Status Open();           // opens the descriptors; Start calls it
  void TurnFromReactor();  // one iteration of the loop

  // --- any thread ---
  void Post(std::function<void()> task);
  void PostLazily(std::function<void()> task);  // does not wake the reactor; runs kLazyMs later
  void PostAfter(int delay_ms, std::function<void()> task);
  uint64_t busy_us() const { return busy_us_.load(std::memory_order_relaxed); }
  std::atomic<int> seats{0};  // that accepted connections take
  bool IsCurrentThread() const { return current_ == this; }
  // The precondition of each method whose name ends in FromReactor.
  void AssertIsCurrent() const { assert(IsCurrentThread()); }

  // --- on the reactor ---
  Status WatchFromReactor(int fd, uint32_t epoll_events, std::shared_ptr<EventTarget> target);
  Status ModifyFromReactor(int fd, uint32_t epoll_events, EventTarget* target);
  void UnwatchFromReactor(int fd, EventTarget* target);
  // A task for later. It runs once, or never if it is cancelled before. A timer that has run, or
  // was never set, may be cancelled, too.
  struct Timer {
    int64_t time_ms = 0;
    uint64_t number = 0;
    auto operator<=>(const Timer&) const = default;
  };
  Timer AtFromReactor(int64_t time_ms, std::function<void()> task);
  void CancelFromReactor(const Timer& timer) {
    AssertIsCurrent();
    timers_.erase(timer);
  }
  size_t timers() const { return timers_.size(); }  // timers that have not run
  void CompleteFromReactor(CallTable::Entry call, Status status);
  // `run_on`: what Handler::HandleOn returned; not kReactor.
  void DispatchFromReactor(const std::shared_ptr<Handler>& handler, Request request, RunOn run_on);

  // What a connection has read. After much of it, calls that are complete end, and what was
  // gathered for sending leaves, before the turn is over.
  void CountReadFromReactor(size_t bytes) { read_bytes_ += bytes; }

  // The buffer for a connection's next bytes; free again after each event.
  static constexpr size_t kScratchBytes = 256u << 10;
  char* scratch() { return scratch_.get(); }

 private:
  static constexpr int kLazyMs = 2;
  static constexpr size_t kCompletionsPerClosure = 64;
  static constexpr size_t kFlushBytes = 2u << 20;
  // Up to this many calls and requests that arrive together still count as alone.
  static constexpr size_t kAlone = 2;

  struct Task : MpscNode {
    std::function<void()> run;
  };
  struct Completion {
    CallTable::Entry call;
    Status status;
  };
  struct Arrival {
    std::shared_ptr<Handler> handler;
    Request request;
    RunOn run_on = RunOn::kExecutor;
  };

  // The reactor of this thread. `constinit`, because otherwise each access would check whether it
  // has been initialised.
  static constinit thread_local const Reactor* current_;

  void Loop();
  void DropPosted();
  static bool DrainFromReactor(MpscQueue* queue);  // true if there was a task
  bool RunTimersFromReactor(int64_t now_us);       // as above
  void RunArrivedFromReactor();
  void RunAloneFromReactor();
  int SleepMsFromReactor(int64_t now_us) const;
  void AddBusyFromReactor(int64_t us);

  const int index_;
  const EngineOptions& options_;
  Fd epoll_;
  Fd wake_;
  Fd lazy_timer_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};

  MpscQueue inbox_;
  MpscQueue lazy_inbox_;  // drained only when the lazy timer fires
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> lazy_armed_{false};
  std::atomic<uint64_t> busy_us_{0};  // written by the reactor's thread only
  std::mutex drop_mutex_;

  // Touched by the reactor's thread only.
  // The clock is read twice per iteration, for the timers; busy_us_ uses the same readings.
  int64_t woke_us_ = 0;
  bool worked_ = false;
  size_t read_bytes_ = 0;  // since the last flush
  std::unordered_map<EventTarget*, std::shared_ptr<EventTarget>> targets_;
  std::vector<std::shared_ptr<EventTarget>> unwatched_;  // an event for them may still be pending
  std::map<Timer, std::function<void()>> timers_;        // of equal times, the first set runs first
  uint64_t last_timer_ = 0;
  std::vector<Completion> completions_;
  std::vector<Arrival> arrivals_;
  std::unique_ptr<char[]> scratch_;
};

}  // namespace tensorwire::wire
