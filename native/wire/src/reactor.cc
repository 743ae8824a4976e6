#include "reactor.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "socket.h"

namespace tensorwire::wire {
namespace {

// Binds the calling thread to the `index`-th of the cores that the process may use.
void PinToCore(int index) {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  int left = index % std::max(1, CPU_COUNT(&usable));
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    return;
  }
}

}  // namespace

constinit thread_local const Reactor* Reactor::current_ = nullptr;

Reactor::Reactor(int index, const EngineOptions& options)
    : index_(index), options_(options), scratch_(new char[kScratchBytes]) {}

Reactor::~Reactor() {
  Stop();
  DropPosted();
}

void Reactor::DropPosted() {
  // A task that was posted after the end never runs, and may hold references that lead back here.
  // The lock lets only one thread at a time pop: the one that stops the reactor, or one that posts
  // too late.
  std::lock_guard lock(drop_mutex_);
  for (MpscQueue* queue : {&inbox_, &lazy_inbox_}) {
    while (MpscNode* node = queue->Pop()) delete static_cast<Task*>(node);
  }
}

Status Reactor::Open() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  lazy_timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid() || !lazy_timer_.valid()) {
    return Status(Code::kResourceExhausted, "no descriptors for a reactor: " + ErrorText(errno));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  for (const Fd* fd : {&wake_, &lazy_timer_}) {
    event.data.u64 = fd == &wake_ ? 0 : 1;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd->get(), &event) != 0) {
      return Status(Code::kResourceExhausted, "epoll: " + ErrorText(errno));
    }
  }
  return Status();
}

Status Reactor::Start() {
  if (Status s = Open(); !s.ok()) return s;
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  std::string("cannot start a thread for a reactor: ") + error.what());
  }
  return Status();
}

void Reactor::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  Post([] {});
  thread_.join();
  ended_.store(true, std::memory_order_release);
  // Read-modify-write as in Post: either a task is dropped below, or its poster sees ended_.
  sleeping_.exchange(false, std::memory_order_acq_rel);
  lazy_armed_.exchange(true, std::memory_order_acq_rel);
  targets_.clear();
  unwatched_.clear();
  timers_.clear();
  DropPosted();
}

void Reactor::Post(std::function<void()> task) {
  if (ended_.load(std::memory_order_acquire)) return;
  auto* node = new Task;
  node->run = std::move(task);
  inbox_.Push(node);
  // Read-modify-write on both sides: either the reactor sees the task before it sleeps, or this
  // thread sees that the reactor sleeps.
  if (sleeping_.exchange(false, std::memory_order_acq_rel)) {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t ignored = ::write(wake_.get(), &one, sizeof(one));
  }
  if (ended_.load(std::memory_order_acquire)) DropPosted();  // the reactor ended meanwhile
}

void Reactor::PostLazily(std::function<void()> task) {
  if (ended_.load(std::memory_order_acquire)) return;
  auto* node = new Task;
  node->run = std::move(task);
  lazy_inbox_.Push(node);
  if (!lazy_armed_.exchange(true, std::memory_order_acq_rel)) {
    itimerspec when{};
    when.it_value.tv_nsec = kLazyMs * 1'000'000L;
    timerfd_settime(lazy_timer_.get(), 0, &when, nullptr);
  }
  if (ended_.load(std::memory_order_acquire)) DropPosted();
}

Status Reactor::WatchFromReactor(int fd, uint32_t epoll_events,
                                 std::shared_ptr<EventTarget> target) {
  AssertIsCurrent();
  epoll_event event{};
  event.events = epoll_events;
  event.data.ptr = target.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status(Code::kResourceExhausted, "epoll: " + ErrorText(errno));
  }
  targets_.emplace(target.get(), std::move(target));
  return Status();
}

Status Reactor::ModifyFromReactor(int fd, uint32_t epoll_events, EventTarget* target) {
  AssertIsCurrent();
  epoll_event event{};
  event.events = epoll_events;
  event.data.ptr = target;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return Status();
  return Status(Code::kResourceExhausted, "epoll: " + ErrorText(errno));
}

void Reactor::UnwatchFromReactor(int fd, EventTarget* target) {
  AssertIsCurrent();
  const auto at = targets_.find(target);
  if (at == targets_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  unwatched_.push_back(std::move(at->second));
  targets_.erase(at);
}

void Reactor::PostAfter(int delay_ms, std::function<void()> task) {
  Post([this, delay_ms, task = std::move(task)]() mutable {
    if (delay_ms <= 0) {
      task();
    } else {
      AtFromReactor(NowMs() + delay_ms, std::move(task));
    }
  });
}

Reactor::Timer Reactor::AtFromReactor(int64_t time_ms, std::function<void()> task) {
  AssertIsCurrent();
  return timers_.emplace(Timer{time_ms, ++last_timer_}, std::move(task)).first->first;
}

void Reactor::CompleteFromReactor(CallTable::Entry call, Status status) {
  AssertIsCurrent();
  if (call.done_on == RunOn::kReactor) {
    call.call->Done(status);
    return;
  }
  completions_.push_back({std::move(call), std::move(status)});
}

void Reactor::DispatchFromReactor(const std::shared_ptr<Handler>& handler, Request request,
                                  RunOn run_on) {
  AssertIsCurrent();
  arrivals_.push_back({handler, std::move(request), run_on});
}

bool Reactor::DrainFromReactor(MpscQueue* queue) {
  // Tasks that these tasks post run after the next epoll_wait: a connection that keeps on writing
  // must not make the others wait.
  std::vector<std::unique_ptr<Task>> tasks;
  while (MpscNode* node = queue->Pop()) tasks.emplace_back(static_cast<Task*>(node));
  for (const auto& task : tasks) task->run();
  return !tasks.empty();
}

bool Reactor::RunTimersFromReactor(int64_t now_us) {
  bool any = false;
  while (!timers_.empty() && timers_.begin()->first.time_ms <= now_us / 1000) {
    auto task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
    any = true;
  }
  return any;
}

void Reactor::RunAloneFromReactor() {
  auto completions = std::exchange(completions_, {});
  for (Completion& completion : completions) {
    if (completion.call.done_on == RunOn::kReactorWhenAlone) {
      completion.call.call->Done(completion.status);
    } else {
      completions_.push_back(std::move(completion));
    }
  }
  auto arrivals = std::exchange(arrivals_, {});
  for (Arrival& arrival : arrivals) {
    if (arrival.run_on == RunOn::kReactorWhenAlone) {
      arrival.handler->Handle(std::move(arrival.request));
    } else {
      arrivals_.push_back(std::move(arrival));
    }
  }
}

void Reactor::RunArrivedFromReactor() {
  if (completions_.empty() && arrivals_.empty()) return;
  if (completions_.size() + arrivals_.size() <= kAlone) RunAloneFromReactor();

  for (size_t begin = 0; begin < completions_.size(); begin += kCompletionsPerClosure) {
    const size_t end = std::min(begin + kCompletionsPerClosure, completions_.size());
    auto batch = std::make_shared<std::vector<Completion>>(
        std::make_move_iterator(completions_.begin() + static_cast<ptrdiff_t>(begin)),
        std::make_move_iterator(completions_.begin() + static_cast<ptrdiff_t>(end)));
    options_.executor([batch] {
      for (Completion& completion : *batch) {
        completion.call.call->Done(completion.status);
        completion.call.call.reset();
      }
    });
  }
  completions_.clear();
  if (!arrivals_.empty()) {
    auto batch = std::make_shared<std::vector<Arrival>>(std::exchange(arrivals_, {}));
    options_.executor([batch] {
      for (Arrival& arrival : *batch) arrival.handler->Handle(std::move(arrival.request));
    });
  }
}

int Reactor::SleepMsFromReactor(int64_t now_us) const {
  if (timers_.empty()) return -1;
  const int64_t wait = timers_.begin()->first.time_ms - now_us / 1000;
  return static_cast<int>(std::clamp<int64_t>(wait, 0, 60'000));
}

void Reactor::AddBusyFromReactor(int64_t us) {
  const uint64_t so_far = busy_us_.load(std::memory_order_relaxed);
  busy_us_.store(so_far + static_cast<uint64_t>(us), std::memory_order_relaxed);
}

void Reactor::TurnFromReactor() {
  constexpr int kMaxEvents = 128;
  epoll_event events[kMaxEvents];
  current_ = this;

  const int64_t begun_us = NowUs();
  if (worked_) AddBusyFromReactor(begun_us - woke_us_);
  int sleep_ms = 0;
  if (!options_.polling) {
    sleep_ms = SleepMsFromReactor(begun_us);
    sleeping_.exchange(true, std::memory_order_acq_rel);
    SendBatch batch;
    if (DrainFromReactor(&inbox_)) {
      RunArrivedFromReactor();
      sleep_ms = 0;
      AddBusyFromReactor(NowUs() - begun_us);
    }
  }
  const int count = epoll_wait(epoll_.get(), events, kMaxEvents, sleep_ms);
  sleeping_.exchange(false, std::memory_order_acq_rel);
  woke_us_ = NowUs();

  SendBatch batch;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 <= 1) {
      const bool lazy = events[i].data.u64 == 1;
      uint64_t ignored_count = 0;
      [[maybe_unused]] ssize_t ignored =
          ::read(lazy ? lazy_timer_.get() : wake_.get(), &ignored_count, sizeof(ignored_count));
      if (lazy) {
        lazy_armed_.exchange(false, std::memory_order_acq_rel);
        DrainFromReactor(&lazy_inbox_);
      }
      continue;
    }
    auto* target = static_cast<EventTarget*>(events[i].data.ptr);
    if (targets_.count(target) != 0) target->OnEventsFromReactor(events[i].events);
    if (read_bytes_ >= kFlushBytes) {
      read_bytes_ = 0;
      RunArrivedFromReactor();
      batch.Flush();
    }
  }
  read_bytes_ = 0;
  worked_ = count > 0;
  if (DrainFromReactor(&inbox_)) worked_ = true;
  if (RunTimersFromReactor(woke_us_)) worked_ = true;
  RunArrivedFromReactor();
  unwatched_.clear();
}

void Reactor::Loop() {
  pthread_setname_np(pthread_self(), ("wire-" + std::to_string(index_)).c_str());
  if (options_.pin) PinToCore(index_);
  // At least once, because TurnFromReactor sets current_.
  do TurnFromReactor();
  while (!stopping_.load(std::memory_order_acquire));
  DrainFromReactor(&inbox_);
  const auto targets = targets_;  // a copy: OnStopFromReactor unwatches the target
  for (const auto& [key, target] : targets) target->OnStopFromReactor();
  RunArrivedFromReactor();
}

}  // namespace tensorwire::wire
