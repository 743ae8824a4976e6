#include "workload.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernel.h"
#include "pool.h"
#include "simulator.h"
#include "tensorwire/wire/buffer_pool.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::simulation {

bool break_a_promise = false;

namespace {

using wire::BufferPool;
using wire::Call;
using wire::Channel;
using wire::Code;
using wire::Engine;
using wire::EngineOptions;
using wire::Message;
using wire::MetadataReader;
using wire::MutableBuffer;
using wire::Request;
using wire::RunOn;
using wire::Status;

// --- what payloads are made of ----------------------------------------------------------------

constexpr size_t kPatternBytes = 20u << 20;
constexpr size_t kMostOffset = 8u << 20;

const char* Pattern() {
  static const std::unique_ptr<char[]> pattern = [] {
    std::unique_ptr<char[]> bytes(new char[kPatternBytes]);
    Random random(1);
    for (size_t i = 0; i < kPatternBytes; i += sizeof(uint64_t)) {
      const uint64_t word = random.Next();
      std::memcpy(bytes.get() + i, &word, sizeof(word));
    }
    return bytes;
  }();
  return pattern.get();
}

// --- the plan ----------------------------------------------------------------------------------

// How far an engine may be behind what it promised: its threads lose their cores.
constexpr int64_t kSlackNs = 60 * kMs;
constexpr int64_t kPromptNs = 250 * kMs;
constexpr int64_t kAuditNs = 20 * kMs;

// What a seed chose.
struct Plan {
  int tasks = 2;
  int machines = 2;
  int calls = 10;  // of each caller
  int callers = 1;
  int64_t fault_ns = 200 * kMs;
  int64_t longest_pause_ns = 5 * kMs;  // between two calls of a caller
  int64_t most_bytes = 64 << 10;
  int64_t large_bytes = 0;  // of one reply in three
  int64_t longest_deadline_ns = 100 * kMs;
  bool long_deadlines = false;  // of calls that end long before
  bool shared_memory = false;
  bool checksum = false;
  bool refusing_address = false;  // tasks have another address, at which nobody listens
  bool silent_address = false;    // or one that no machine has
  bool stop_early = false;
  uint64_t unanswered_bytes = uint64_t{1} << 30;
  int silent_ms = 1000;
  int connect_ms = 2000;
  int handshake_ms = 1000;
  int64_t slowest_closure_ns = 0;

  // What breaks.
  bool kills = false;
  bool restarts = false;
  bool power = false;
  bool resets = false;
  bool half_open = false;
  bool clogs = false;
  bool long_clogs = false;
  bool freezes = false;
  bool long_freezes = false;
  bool flips = false;
  bool epoll_failures = false;
  bool descriptor_failures = false;

  // Whether a connection may be lost, and whether anything takes longer than the work itself.
  bool loses() const {
    return kills || restarts || power || resets || long_clogs || long_freezes || flips ||
           epoll_failures || descriptor_failures;
  }
  bool prompt() const {
    return !(power || half_open || clogs || freezes || flips || descriptor_failures ||
             silent_address || slowest_closure_ns > 0);
  }
};

Plan Choose(Random& random, World* w) {
  Plan plan;
  plan.tasks = static_cast<int>(random.Between(2, 4));
  plan.machines = static_cast<int>(random.Between(1, plan.tasks));
  plan.callers = static_cast<int>(random.Between(1, 2));
  plan.calls = static_cast<int>(random.AnySize(4, 24));
  plan.fault_ns = random.AnySize(20, 600) * kMs;
  plan.longest_pause_ns = random.OneIn(3) ? 0 : plan.fault_ns / plan.calls;
  plan.most_bytes = random.OneIn(3) ? 200 : int64_t{8 << 10} << random.Below(6);
  plan.longest_deadline_ns = random.AnySize(5, 300) * kMs;
  plan.long_deadlines = random.OneIn(3);
  plan.shared_memory = random.OneIn(5);
  plan.checksum = random.OneIn(4);
  plan.refusing_address = plan.machines > 1 && random.OneIn(8);
  plan.silent_address = random.OneIn(10);
  plan.stop_early = random.OneIn(5);
  if (random.OneIn(5)) plan.unanswered_bytes = static_cast<uint64_t>(random.Between(1, 20'000));
  plan.silent_ms = static_cast<int>(300 * random.Between(1, 6));
  plan.connect_ms = static_cast<int>(random.Between(300, 4000));
  plan.handshake_ms = static_cast<int>(random.Between(300, 2000));
  if (random.OneIn(5)) plan.slowest_closure_ns = random.AnySize(1, 200) * kMs;
  if (random.OneIn(plan.shared_memory ? 3 : 20)) plan.large_bytes = 1200 << 10;
  if (random.OneIn(40)) {
    // Large enough to be fetched in ranges, or copied by several threads.
    plan.large_bytes = 10 << 20;
    plan.calls = static_cast<int>(random.Between(1, 4));
    plan.callers = 1;
    plan.tasks = 2;
    plan.machines = static_cast<int>(random.Between(1, 2));
  }

  if (!random.OneIn(6)) {
    plan.kills = random.OneIn(5);
    plan.restarts = random.OneIn(6);
    plan.power = random.OneIn(8);
    plan.resets = random.OneIn(5);
    plan.half_open = plan.resets && random.OneIn(3);
    plan.clogs = random.OneIn(4);
    plan.long_clogs = plan.clogs && random.OneIn(2);
    plan.freezes = random.OneIn(5);
    plan.long_freezes = plan.freezes && random.OneIn(3);
    plan.epoll_failures = random.OneIn(10);
    plan.descriptor_failures = random.OneIn(12);
    plan.flips = plan.checksum && random.OneIn(2);
  }
  if (plan.freezes && !plan.long_freezes) plan.silent_ms = std::max(plan.silent_ms, 1200);
  // Long enough for a call to a task that is not there to be seen to wait.
  if (plan.kills || plan.restarts) plan.fault_ns = std::max(plan.fault_ns, 700 * kMs);
  // Who waits for less than what happens to it must lose what it waits for.
  if (plan.clogs || plan.freezes || plan.power) {
    plan.connect_ms = std::max(plan.connect_ms, 6000);
    plan.handshake_ms = std::max(plan.handshake_ms, 3000);
  }

  w->switch_one_in = random.OneIn(4) ? 0 : uint64_t{1} << random.Between(2, 11);
  w->stall_one_in = random.OneIn(3) ? 0 : uint64_t{1} << random.Between(3, 9);
  w->longest_stall_ns = random.AnySize(10 * kUs, 5 * kMs);
  w->call_ns = random.Between(50, 2000);
  w->partial_one_in = random.OneIn(3) ? 0 : static_cast<uint64_t>(random.Between(1, 30));
  w->interrupt_one_in = random.OneIn(2) ? 0 : static_cast<uint64_t>(random.Between(5, 100));
  w->buffer_bytes = size_t{4 << 10} << random.Below(8);
  if (plan.large_bytes > 0) w->buffer_bytes = std::max<size_t>(w->buffer_bytes, 128 << 10);
  return plan;
}

// --- what has been asked, and what became of it ------------------------------------------------

enum Method : uint16_t { kBytes = 1, kLate, kUnanswered, kFail, kPushes, kOneWay };

struct Ask {
  uint32_t record = 0;
  uint16_t method = kBytes;
  uint8_t handle_on = 0;
  uint64_t request_offset = 0;
  uint64_t request_bytes = 0;
  uint64_t reply_offset = 0;
  uint64_t reply_bytes = 0;  // of kFail: of the error's message
  bool operator==(const Ask&) const = default;
};

struct Task;

struct Record {
  Ask ask;
  Task* task = nullptr;
  int incarnation = 0;  // of the task that asked
  int64_t begun_ns = 0;
  int64_t frozen_before_ns = 0;
  int64_t end_by_ns = kNever;  // its deadline, or when it was cancelled
  bool has_deadline = false;
  bool cancelled = false;
  bool ended = false;
  bool must_succeed = false;
  bool on_reactor = false;  // its end waits for no executor
  int handled = 0;
  Code code = Code::kOk;
};

struct Task {
  int index = 0;
  int machine = 0;
  int port = 0;
  std::string name;
  std::string host;
  std::string address;  // where the others look for it
  std::vector<int> targets;
  int reactors = 1;
  int streams = 1;
  int silent_ms = 1000;
  wire::Transport transport = wire::Transport::kAuto;

  Process* process = nullptr;  // null: it does not run
  int incarnation = 0;
  int callers_left = 0;
  bool stop = false;
  bool probe = false;
  bool probed = false;
  bool expected_to_end = false;
  bool starts = false;  // soon
  int64_t frozen_ns = 0;
  int64_t frozen_since_ns = 0;         // 0: it is not
  std::multiset<int64_t> handed_over;  // when each closure was that waits or runs
  int payloads = 0;                    // that somebody holds
  struct Held {
    uint64_t bytes = 0;
    uint64_t largest = 0;
  };
  std::map<uint64_t, Held> held;  // by connection: what is not answered
  std::set<uint64_t> gone;        // connections that have had their OnDisconnect
  size_t pool_bytes = 0;
  int pushes_under_way = 0;
};

struct Ledger {
  Plan plan;
  std::vector<std::unique_ptr<Task>> tasks;
  std::deque<Record> records;  // references to them stay
  uint64_t bytes = 0;
  bool faults_over = false;
  bool ending = false;  // the tasks stop, one after the other
  bool answer_all = false;
  uint64_t ok = 0;
};
Ledger* ledger = nullptr;

int64_t FrozenNs(const Task& task) {
  return task.frozen_ns + (task.frozen_since_ns > 0 ? world->now_ns - task.frozen_since_ns : 0);
}

std::string Describe(const Record& record) {
  return "call " + std::to_string(record.ask.record) + " of " + record.task->name + " (method " +
         std::to_string(record.ask.method) + ", " + std::to_string(record.ask.request_bytes) +
         " bytes there, " + std::to_string(record.ask.reply_bytes) + " back, begun at " +
         std::to_string(static_cast<double>(record.begun_ns) / kMs) + " ms)";
}

// Since the call began: what its process was not there.
int64_t SlackNs(const Record& record) {
  return kSlackNs + FrozenNs(*record.task) - record.frozen_before_ns;
}

// --- in a task's process -----------------------------------------------------------------------

int64_t NowNs() { return world->now_ns; }

void SleepNs(int64_t ns) {
  if (ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

RunOn ChooseRunOn() { return static_cast<RunOn>(world->random.Below(3)); }

std::string ErrorText(const Ask& ask) {
  std::string text(ask.reply_bytes, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + (ask.record + i) % 26);
  return text;
}

bool AllowedFailure(const Record& record, const Status& status) {
  const Plan& plan = ledger->plan;
  switch (status.code()) {
    case Code::kDeadlineExceeded:
      return record.has_deadline && NowNs() >= record.end_by_ns;
    case Code::kCancelled:
      return record.cancelled || record.task->stop;
    case Code::kUnavailable:
      return plan.loses() || record.task->stop || ledger->ending;
    case Code::kFailedPrecondition:
      return plan.flips;
    case Code::kDataLoss:
      return plan.flips;
    case Code::kOutOfRange:
      return record.ask.method == kFail && status.message() == ErrorText(record.ask);
    case Code::kResourceExhausted:
      return plan.unanswered_bytes < (uint64_t{1} << 30);
    default:
      return false;
  }
}

// The bytes of a reply or push as they come in.
class Incoming {
 public:
  void Prepare(uint64_t bytes, std::vector<MutableBuffer>* into) {
    uint64_t left = bytes;
    do {
      const uint64_t size =
          world->random.OneIn(2)
              ? left
              : static_cast<uint64_t>(world->random.AnySize(0, static_cast<int64_t>(left)));
      pieces_.push_back({std::unique_ptr<char[]>(new char[size]), size});
      into->push_back({pieces_.back().bytes.get(), size});
      left -= size;
    } while (left > 0);
  }
  bool Is(uint64_t offset, uint64_t bytes) const {
    uint64_t at = 0;
    for (const Piece& piece : pieces_) {
      if (std::memcmp(piece.bytes.get(), Pattern() + offset + at, piece.size) != 0) return false;
      at += piece.size;
    }
    return at == bytes;
  }

 private:
  struct Piece {
    std::unique_ptr<char[]> bytes;
    uint64_t size;
  };
  std::vector<Piece> pieces_;
};

class SimulatedCall final : public Call {
 public:
  explicit SimulatedCall(uint32_t record) : record_(record) {}
  ~SimulatedCall() override {
    if (ledger->records[record_].ended) return;
    KernelMode kernel;
    Violated(Describe(ledger->records[record_]) + " was dropped without an end");
  }
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    MetadataReader reader(metadata);
    uint32_t record = 0;
    reader.Get(&record);
    const Ask& ask = ledger->records[record_].ask;
    const uint64_t expected = ask.method == kFail ? 0 : ask.reply_bytes;
    if (record != record_ || payload_bytes != expected || prepared_) {
      KernelMode kernel;
      Violated(Describe(ledger->records[record_]) + " got the head of another reply");
    }
    prepared_ = true;
    incoming_.Prepare(payload_bytes, into);
    return Status();
  }
  void Done(const Status& status) override {
    const bool intact = !status.ok() || incoming_.Is(ledger->records[record_].ask.reply_offset,
                                                     ledger->records[record_].ask.reply_bytes);
    KernelMode kernel;
    Record& record = ledger->records[record_];
    Trace("done", record_, static_cast<int64_t>(status.code()));
    if (show_trace && !status.ok()) TraceText(status.message().substr(0, 200));
    if (record.ended) Violated(Describe(record) + " ended twice");
    record.ended = true;
    record.code = status.code();
    if (status.ok()) {
      ++ledger->ok;
      if (record.ask.method == kFail) Violated(Describe(record) + " did not fail");
      if (!intact) Violated(Describe(record) + " got other bytes than were sent");
      if (!prepared_) Violated(Describe(record) + " succeeded without a reply");
    } else if (record.must_succeed || !AllowedFailure(record, status)) {
      Violated(Describe(record) + " failed with code " +
               std::to_string(static_cast<int>(status.code())) + ": " +
               status.message().substr(0, 200));
    }
    const int64_t decided_ns =
        current->handed_over_ns > 0 && !record.on_reactor ? current->handed_over_ns : world->now_ns;
    if (record.end_by_ns != kNever && decided_ns > record.end_by_ns + SlackNs(record)) {
      Violated(Describe(record) + " ended " +
               std::to_string((decided_ns - record.end_by_ns) / kMs) +
               " ms after its deadline or cancellation");
    }
  }

 private:
  const uint32_t record_;
  Incoming incoming_;
  bool prepared_ = false;
};

// A push names its bytes by their place in the pattern.
class SimulatedPush final : public Call {
 public:
  SimulatedPush(Task* task, uint64_t what) : task_(task), what_(what) { ++task_->pushes_under_way; }
  ~SimulatedPush() override {
    KernelMode kernel;
    if (!ended_) Violated("a push to " + task_->name + " was dropped without an end");
    --task_->pushes_under_way;
  }
  Status PrepareFromReactor(std::string_view, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    bytes_ = payload_bytes;
    incoming_.Prepare(payload_bytes, into);
    return Status();
  }
  void Done(const Status& status) override {
    const bool intact = !status.ok() || incoming_.Is(what_, bytes_);
    KernelMode kernel;
    Trace("push done", static_cast<int64_t>(what_), static_cast<int64_t>(status.code()));
    if (ended_) Violated("a push to " + task_->name + " ended twice");
    ended_ = true;
    if (!intact) Violated("a push to " + task_->name + " got other bytes than were sent");
    if (!status.ok() && !ledger->plan.loses() && !task_->stop && !ledger->ending) {
      Violated("a push to " + task_->name + " failed: " + status.message());
    }
  }

 private:
  Task* const task_;
  const uint64_t what_;
  uint64_t bytes_ = 0;
  Incoming incoming_;
  bool ended_ = false;
};

class Receiver final : public wire::PushReceiver {
 public:
  explicit Receiver(Task* task) : task_(task) {}
  std::unique_ptr<Call> BeginFromReactor(uint64_t what) override {
    if (what >= kMostOffset) return nullptr;  // not wanted
    return std::make_unique<SimulatedPush>(task_, what);
  }
  void OnLost(const Status&) override {}

 private:
  Task* const task_;
};

class Service final : public wire::Handler {
 public:
  Service(Task* task, BufferPool* pool) : task_(task), pool_(pool) {}

  RunOn HandleOn(const Request& request) const override {
    return static_cast<RunOn>(Read(request).handle_on);
  }
  std::shared_ptr<char> PlaceFromReactor(uint16_t, uint64_t payload_bytes) override {
    if (world->random.OneIn(2)) return nullptr;
    return {new char[payload_bytes], std::default_delete<char[]>()};
  }
  void Handle(Request request) override {
    const Ask ask = Read(request);
    const uint64_t bytes = request.placed != nullptr ? ask.request_bytes : request.payload.size();
    const char* const data =
        request.placed != nullptr ? request.placed.get() : request.payload.data();
    const bool intact = bytes == ask.request_bytes &&
                        std::memcmp(data, Pattern() + ask.request_offset, ask.request_bytes) == 0;
    {
      KernelMode kernel;
      Trace("handle", ask.record);
      Record& record = ledger->records[ask.record];
      if (!(record.ask == ask)) Violated(Describe(record) + ": another request arrived");
      if (++record.handled > 1) Violated(Describe(record) + " was handled twice");
      if (!intact) Violated(Describe(record) + ": other bytes arrived than were sent");
    }
    {
      KernelMode kernel;
      if (task_->gone.count(request.connection_id()) > 0) {
        Violated(Describe(ledger->records[ask.record]) +
                 " is handled after its connection's OnDisconnect");
      }
      Task::Held& held = task_->held[request.connection_id()];
      held.bytes += request.metadata.size() + bytes;
      held.largest = std::max(held.largest, request.metadata.size() + bytes);
      // The one that used it up is admitted; they are not handled in the order in which they came.
      if (held.bytes > ledger->plan.unanswered_bytes + held.largest) {
        Violated("unanswered requests of one connection hold " + std::to_string(held.bytes) +
                 " bytes; the limit is " + std::to_string(ledger->plan.unanswered_bytes));
      }
    }
    {
      std::lock_guard lock(mutex_);
      if (ask.method == kLate || ask.method == kUnanswered) {
        kept_.push_back(std::move(request));
        return;
      }
    }
    Answer(std::move(request));
  }
  void OnCancel(uint64_t connection_id, uint64_t request_id) override {
    TakeIf([&](const Request& request) {
      return request.connection_id() == connection_id && request.id == request_id;
    });
  }
  void OnDisconnect(uint64_t connection_id) override {
    {
      KernelMode kernel;
      if (!task_->gone.insert(connection_id).second) {
        Violated("OnDisconnect twice for one connection");
      }
    }
    TakeIf([&](const Request& request) { return request.connection_id() == connection_id; });
  }

  // Answers some of what has been kept.
  void AnswerLate() {
    std::vector<Request> answered;
    {
      std::lock_guard lock(mutex_);
      for (auto at = kept_.begin(); at != kept_.end();) {
        const bool all = ledger->answer_all;
        if (all || (at->method == kLate && world->random.OneIn(2))) {
          answered.push_back(std::move(*at));
          at = kept_.erase(at);
        } else {
          ++at;
        }
      }
    }
    for (Request& request : answered) Answer(std::move(request));
  }
  void Clear() {
    TakeIf([](const Request&) { return true; });
  }

 private:
  static Ask Read(const Request& request) {
    MetadataReader reader(request.metadata);
    Ask ask;
    ask.method = request.method;
    reader.Get(&ask.record);
    reader.Get(&ask.handle_on);
    reader.Get(&ask.request_offset);
    reader.Get(&ask.request_bytes);
    reader.Get(&ask.reply_offset);
    reader.Get(&ask.reply_bytes);
    if (ask.record >= ledger->records.size()) {
      KernelMode kernel;
      Violated("a request arrived that nobody sent");
    }
    return ask;
  }
  void TakeIf(const std::function<bool(const Request&)>& wanted) {
    std::vector<Request> taken;  // go without the lock
    std::lock_guard lock(mutex_);
    for (auto at = kept_.begin(); at != kept_.end();) {
      if (wanted(*at)) {
        Release(*at);
        taken.push_back(std::move(*at));
        at = kept_.erase(at);
      } else {
        ++at;
      }
    }
  }
  void Release(const Request& request) {
    const Ask ask = Read(request);
    KernelMode kernel;
    task_->held[request.connection_id()].bytes -= request.metadata.size() + ask.request_bytes;
  }

  // `bytes` of the pattern at `offset`, in memory of which it is known when it is let go of.
  Message Payload(uint64_t offset, uint64_t bytes) {
    Message message;
    if (bytes == 0) return message;
    Task* const task = task_;
    ++task->payloads;
    if (bytes < (64u << 10) && !world->random.OneIn(4)) {
      message.AddPayload(Pattern() + offset, bytes);
      message.KeepAlive({Pattern(), [task](const char*) { --task->payloads; }});
      return message;
    }
    // What is lent is overwritten as soon as it has been returned: who reads on finds other bytes.
    BufferPool* const pool = pool_;
    auto* const block = static_cast<char*>(pool->Acquire(bytes));
    if (block == nullptr) {  // the range for shared blocks is used up
      message.AddPayload(Pattern() + offset, bytes);
      message.KeepAlive({Pattern(), [task](const char*) { --task->payloads; }});
      return message;
    }
    std::memcpy(block, Pattern() + offset, bytes);
    const uint64_t cut = world->random.OneIn(2) ? 0 : bytes / 3;
    message.AddPayload(block, cut);
    message.AddPayload(block + cut, bytes - cut);
    message.KeepAlive({block, [task, pool, bytes](char* at) {
                         constexpr size_t kStep = 2048;
                         for (size_t i = 0; i < bytes; i += kStep) {
                           at[i] = static_cast<char>(~at[i]);
                         }
                         pool->Release(at);
                         --task->payloads;
                       }});
    return message;
  }

  void Answer(Request request) {
    const Ask ask = Read(request);
    Release(request);
    if (ask.method == kFail) {
      request.Fail(Status(Code::kOutOfRange, ErrorText(ask)));
      return;
    }
    if (ask.method == kPushes) {
      const auto pusher = request.pusher();
      for (int i = 0; i < 3; ++i) {
        const uint64_t what = (ask.reply_offset * 7 + static_cast<uint64_t>(i)) % (2 * kMostOffset);
        if (world->random.OneIn(2) && !pusher.IsTaken()) continue;
        pusher.Push(what, Payload(what % kMostOffset, ask.reply_bytes));
      }
    }
    Message reply = Payload(ask.reply_offset, ask.reply_bytes);
    reply.Put<uint32_t>(ask.record);
    request.Reply(std::move(reply));
  }

  Task* const task_;
  BufferPool* const pool_;
  std::mutex mutex_;
  std::vector<Request> kept_;
};

Message ToMessage(const Ask& ask) {
  Message message(ask.method);
  message.Put(ask.record);
  message.Put(ask.handle_on);
  message.Put(ask.request_offset);
  message.Put(ask.request_bytes);
  message.Put(ask.reply_offset);
  message.Put(ask.reply_bytes);
  message.AddPayload(Pattern() + ask.request_offset, ask.request_bytes);
  return message;
}

Ask ChooseAsk() {
  Random& random = world->random;
  const Plan& plan = ledger->plan;
  Ask ask;
  constexpr Method kMethods[] = {kBytes,      kBytes, kBytes,  kBytes, kLate,
                                 kUnanswered, kFail,  kPushes, kOneWay};
  ask.method = kMethods[random.Below(std::size(kMethods))];
  ask.handle_on = static_cast<uint8_t>(ChooseRunOn());
  ask.request_offset = random.Below(kMostOffset);
  ask.request_bytes = static_cast<uint64_t>(random.AnySize(0, plan.most_bytes));
  ask.reply_offset = random.Below(kMostOffset);
  ask.reply_bytes = static_cast<uint64_t>(random.AnySize(0, plan.most_bytes));
  if (random.OneIn(8)) std::swap(ask.reply_bytes, ask.request_bytes);
  if (plan.large_bytes > 0 && random.OneIn(3)) {
    ask.reply_bytes =
        static_cast<uint64_t>(random.Between(plan.large_bytes / 5 * 4, plan.large_bytes));
    if (random.OneIn(3)) ask.reply_bytes /= 4;
  }
  if (ask.method == kFail) {
    ask.reply_bytes = random.OneIn(6) ? static_cast<uint64_t>(random.Between(60'000, 140'000))
                                      : random.Below(200);
  }
  if (ask.method == kPushes) ask.reply_bytes = std::min<uint64_t>(ask.reply_bytes, 1 << 20);
  return ask;
}

void MakeCall(Task* task, Channel* channel, bool probe) {
  Ask ask = ChooseAsk();
  wire::CallOptions options;
  bool cancels = false;
  uint32_t number = 0;
  const Plan& plan = ledger->plan;
  Random& random = world->random;
  if (probe) {
    ask.method = kBytes;
  } else {
    if (ask.method == kUnanswered || random.OneIn(3)) {
      options.deadline_ms = random.AnySize(1, plan.longest_deadline_ns / kMs);
    }
    if (plan.long_deadlines && ask.method != kUnanswered) options.deadline_ms = 200'000;
    cancels = random.OneIn(6);
    options.done_on = ChooseRunOn();
  }
  {
    KernelMode kernel;
    number = static_cast<uint32_t>(ledger->records.size());
    ask.record = number;
    Record record;
    record.ask = ask;
    record.task = task;
    record.incarnation = task->incarnation;
    record.begun_ns = world->now_ns;
    record.frozen_before_ns = FrozenNs(*task);
    record.must_succeed = probe;
    record.has_deadline = options.deadline_ms > 0;
    // What is fetched in ranges ends on the executor all the same.
    record.on_reactor = options.done_on == RunOn::kReactor && !cancels && record.has_deadline &&
                        ask.reply_bytes < (8 << 20);
    record.ended = ask.method == kOneWay;
    if (record.has_deadline) {
      // The engine has milliseconds, and takes the whole ones of now.
      record.end_by_ns = (world->now_ns / kMs + options.deadline_ms) * kMs;
    }
    ledger->records.push_back(record);
    ledger->bytes += ask.request_bytes + 4 * ask.reply_bytes;
    Trace("call", number, ask.method, static_cast<int64_t>(ask.reply_bytes));
  }
  if (ask.method == kOneWay) {
    channel->Notify(ToMessage(ask), random.OneIn(2));
    return;
  }
  const uint64_t id =
      channel->Start(ToMessage(ask), std::make_unique<SimulatedCall>(number), options);
  if (!cancels) return;
  SleepNs(random.AnySize(0, plan.longest_deadline_ns));
  {
    KernelMode kernel;
    Record& record = ledger->records[number];
    if (!record.ended) Trace("cancel", number);
    record.cancelled = true;
    if (world->now_ns < record.end_by_ns) {
      record.end_by_ns = world->now_ns;
      record.frozen_before_ns = FrozenNs(*task);
    }
  }
  channel->Cancel(id);
}

void Await(const bool* flag) {
  KernelMode kernel;
  while (!*flag) world->Block(flag);
}

void RunTask(Task* task) {
  const Plan& plan = ledger->plan;
  BufferPool::Options pool_options;
  pool_options.shared = plan.shared_memory;
  pool_options.kept_ms = 500;
  BufferPool pool(pool_options);
  wire::Pool threads;
  auto service = std::make_shared<Service>(task, &pool);

  EngineOptions options;
  options.name = task->name;
  options.reactors = task->reactors;
  options.streams = task->streams;
  options.transport = task->transport;
  options.checksum = plan.checksum;
  options.pool = &pool;
  options.unanswered_bytes = plan.unanswered_bytes;
  options.connect_timeout_ms = plan.connect_ms;
  options.handshake_timeout_ms = plan.handshake_ms;
  options.silent_timeout_ms = task->silent_ms;
  options.ping_after_ms = task->silent_ms / 3;
  options.executor = [task, &threads](std::function<void()> closure) {
    int64_t at_ns = 0;
    {
      KernelMode kernel;
      at_ns = world->now_ns;
      task->handed_over.insert(at_ns);
    }
    threads.Run([task, at_ns, closure = std::move(closure)]() mutable {
      const int64_t slowest_ns = ledger->faults_over ? 0 : ledger->plan.slowest_closure_ns;
      if (slowest_ns > 0 && world->random.OneIn(4)) SleepNs(world->random.AnySize(0, slowest_ns));
      current->handed_over_ns = at_ns;
      closure();
      current->handed_over_ns = 0;
      closure = nullptr;
      KernelMode kernel;
      task->handed_over.erase(task->handed_over.find(at_ns));
    });
  };
  options.log = [](wire::LogLevel, const std::string& line) {
    KernelMode kernel;
    TraceText(line);
  };
  std::unique_ptr<Engine> engine;
  int port = 0;
  Status started = Engine::Create(std::move(options), &engine);
  if (started.ok()) {
    started = engine->Listen(task->host, task->port, service, &port);
  }
  if (!started.ok()) {
    KernelMode kernel;
    if (!plan.descriptor_failures) Violated("a task does not start: " + started.message());
    task->expected_to_end = true;
  }
  if (started.ok()) {
    std::vector<std::shared_ptr<Channel>> channels;
    for (const int target : task->targets) {
      const Task& peer = *ledger->tasks[static_cast<size_t>(target)];
      auto channel = engine->Connect(peer.address, peer.name);
      channel->SetPushReceiver(std::make_shared<Receiver>(task));
      channels.push_back(std::move(channel));
    }
    SleepNs(20 * kMs);  // the others start, too
    std::vector<std::thread> callers;
    for (int i = 0; i < plan.callers; ++i) {
      callers.emplace_back([&] {
        const int calls = ledger->faults_over ? 1 : plan.calls;
        for (int call = 0; call < calls && !task->stop; ++call) {
          SleepNs(world->random.AnySize(0, plan.longest_pause_ns));
          MakeCall(task, channels[world->random.Below(channels.size())].get(), /*probe=*/false);
        }
        --task->callers_left;
      });
    }
    std::thread late([&] {
      while (!task->stop) {
        SleepNs(ledger->answer_all ? 100 * kMs : world->random.AnySize(1 * kMs, 20 * kMs));
        service->AnswerLate();
      }
    });
    std::thread prober([&] {
      Await(&task->probe);
      if (task->stop) return;
      for (const auto& channel : channels) MakeCall(task, channel.get(), /*probe=*/true);
      task->probed = true;
    });
    Await(&task->stop);
    if (world->random.OneIn(2)) engine->Stop();
    for (auto& caller : callers) caller.join();
    late.join();
    prober.join();
    if (world->random.OneIn(2)) channels.clear();
    engine->Stop();
  }
  engine.reset();
  service->Clear();
  task->pool_bytes = 0;
}

// --- what happens to them ----------------------------------------------------------------------

class Scene {
 public:
  Scene(uint64_t seed, World* w) : world_(w) {
    Random random(seed ^ 0x5eed);
    ledger_.plan = Choose(random, w);
    ledger = &ledger_;
    const Plan& plan = ledger_.plan;
    w->machines.resize(static_cast<size_t>(plan.machines));
    for (int from = 0; from < plan.machines; ++from) {
      for (int to = 0; to < plan.machines; ++to) {
        Link& link = w->LinkBetween(from, to);
        link.latency_ns = from == to ? 5 * kUs : random.AnySize(10 * kUs, 2 * kMs);
        link.bytes_per_s = plan.large_bytes > (8 << 20)
                               ? random.Between(10'000'000, 200'000'000)
                               : random.Between(100'000'000, 2'000'000'000);
        // A buffer's bytes in each round trip, in reads and writes of which many are small.
        const int64_t least =
            static_cast<int64_t>(w->buffer_bytes) * kSecond / (40 * (link.latency_ns + 100 * kUs));
        bytes_per_s_ = std::min({bytes_per_s_, least, link.bytes_per_s / 4});
      }
    }
    for (int i = 0; i < plan.tasks; ++i) {
      auto task = std::make_unique<Task>();
      task->index = i;
      task->machine = i < plan.machines
                          ? i
                          : static_cast<int>(random.Below(static_cast<uint64_t>(plan.machines)));
      task->port = 7000 + i;
      task->name = "task" + std::to_string(i);
      task->host = "10.0.0." + std::to_string(task->machine + 1);
      task->address = task->host + ":" + std::to_string(task->port);
      if (plan.refusing_address) {
        task->address = "10.0.0." + std::to_string((task->machine + 1) % plan.machines + 1) + "," +
                        task->address;
      } else if (plan.silent_address) {
        task->address = "10.0.0.99," + task->address;
      }
      task->reactors = static_cast<int>(random.Between(1, 3));
      task->streams = static_cast<int>(random.Between(0, 3));
      task->silent_ms = plan.silent_ms;
      if (random.OneIn(5)) task->transport = wire::Transport::kTcp;
      for (int target = 0; target < plan.tasks; ++target) {
        if (target != i && (target == (i + 1) % plan.tasks || random.OneIn(2))) {
          task->targets.push_back(target);
        }
      }
      ledger_.tasks.push_back(std::move(task));
    }
    if (plan.freezes && !plan.long_freezes && !plan.clogs) {
      // The first is frozen for longer than it waits for a sign of life, and the others wait
      // longer.
      ledger_.tasks[0]->silent_ms = 200;
    }
  }
  ~Scene() { ledger = nullptr; }

  Outcome Play() {
    const Plan& plan = ledger_.plan;
    for (const auto& task : ledger_.tasks) StartTask(task.get());
    const int64_t begun_ns = world_->now_ns;
    if (plan.loses() || plan.clogs || plan.freezes) Misfortune();
    if (plan.epoll_failures || plan.flips || plan.descriptor_failures) {
      world_->After(25 * kMs, [this] {
        if (ledger_.plan.epoll_failures) world_->epoll_failure_one_in = 20;
        if (ledger_.plan.flips) world_->flip_one_in = 40;
        if (ledger_.plan.descriptor_failures) world_->descriptor_failure_one_in = 4;
      });
    }
    Audit();
    world_->At(begun_ns + 20 * kMs + plan.fault_ns, [this] { EndFaults(); });
    world_->Run([this] { return over_; });
    Outcome outcome;
    outcome.calls = ledger_.records.size();
    outcome.calls_ok = ledger_.ok;
    outcome.switches = world_->switches();
    outcome.simulated_ns = world_->now_ns - begun_ns;
    Trace("end", static_cast<int64_t>(outcome.calls), static_cast<int64_t>(outcome.calls_ok));
    outcome.hash = trace_hash;
    return outcome;
  }

 private:
  Task* AnyTask() { return ledger_.tasks[world_->random.Below(ledger_.tasks.size())].get(); }

  void StartTask(Task* task) {
    task->starts = false;
    if (!world_->machines[static_cast<size_t>(task->machine)].up) return;
    ++task->incarnation;
    task->stop = false;
    task->expected_to_end = false;
    task->callers_left = ledger_.plan.callers;
    task->probe = false;
    task->probed = false;
    task->handed_over.clear();
    task->payloads = 0;
    task->held.clear();
    task->gone.clear();
    task->pushes_under_way = 0;
    task->process = world_->Start(task->name, task->machine, [task] { RunTask(task); });
    task->process->at_end = [this, task] { OnEnd(task); };
  }

  // Of a task that has ended by itself.
  void OnEnd(Task* task) {
    Process* const process = task->process;
    if (!task->stop && !task->expected_to_end) Violated(task->name + " ended by itself");
    for (const Record& record : ledger_.records) {
      if (record.task == task && record.incarnation == task->incarnation && !record.ended) {
        Violated(Describe(record) + " has not ended, and its engine has");
      }
    }
    if (OpenDescriptors(process) > 0) {
      Violated(task->name + " leaves " + std::to_string(OpenDescriptors(process)) +
               " descriptors open");
    }
    if (task->payloads > 0) Violated(task->name + " leaves payloads that nobody let go of");
    if (!process->mappings.empty()) Violated(task->name + " leaves memory mapped");
    if (const std::string leaks = world_->Leaks(process); !leaks.empty()) {
      Violated(task->name + " leaks blocks of so many bytes:" + leaks);
    }
    task->process = nullptr;
    if (!ledger_.ending) StartLater(task);
    FinishIfAllHaveEnded();
  }

  void FinishIfAllHaveEnded() {
    over_ =
        ledger_.ending && std::all_of(ledger_.tasks.begin(), ledger_.tasks.end(),
                                      [](const auto& task) { return task->process == nullptr; });
  }

  void StartLater(Task* task) {
    if (task->starts) return;
    task->starts = true;
    world_->After(world_->random.AnySize(1 * kMs, 2000 * kMs), [this, task] {
      if (task->starts && task->process == nullptr && !ledger_.ending) StartTask(task);
    });
  }

  void Drop(Task* task, bool silently) {
    if (task->process == nullptr) return;
    // What its process had asked goes with it.
    for (Record& record : ledger_.records) {
      if (record.task == task && record.incarnation == task->incarnation) record.ended = true;
    }
    Unfreeze(task);
    world_->Kill(task->process, silently);
    task->process = nullptr;
  }

  void Stop(Task* task) {
    if (task->process == nullptr || task->stop) return;
    task->stop = true;
    task->probe = true;
    world_->WakeAll(&task->stop);
    world_->WakeAll(&task->probe);
  }

  void Unfreeze(Task* task) {
    if (task->frozen_since_ns == 0) return;
    task->frozen_ns += world_->now_ns - task->frozen_since_ns;
    task->frozen_since_ns = 0;
    world_->Thaw(task->process);
  }

  // One after the other until the faults end.
  void Misfortune() {
    const Plan& plan = ledger_.plan;
    Random& random = world_->random;
    world_->After(random.AnySize(1 * kMs, plan.fault_ns / 2 + 25 * kMs), [this] {
      if (ledger_.faults_over) return;
      Befall();
      Misfortune();
    });
  }

  void Befall() {
    const Plan& plan = ledger_.plan;
    Random& random = world_->random;
    std::vector<std::function<void()>> possible;
    Task* const task = AnyTask();
    if (plan.kills) {
      possible.emplace_back([this, task] {
        Drop(task, /*silently=*/false);
        StartLater(task);
      });
    }
    if (plan.restarts) possible.emplace_back([this, task] { Stop(task); });
    if (plan.power) possible.emplace_back([this, task] { PowerOff(task->machine); });
    if (plan.resets) {
      possible.emplace_back([this, task] {
        ResetConnections(task->machine, AnyTask()->machine, ledger_.plan.half_open);
      });
    }
    if (plan.clogs && world_->now_ns >= unclogged_ns_) {
      possible.emplace_back([this, task, &plan, &random] {
        const int64_t most_ns = plan.long_clogs ? 2000 * kMs : plan.silent_ms * kMs / 5;
        const int64_t for_ns = random.AnySize(1 * kMs, most_ns);
        const int to = AnyTask()->machine;
        Trace("clog", task->machine, to, for_ns);
        world_->LinkBetween(task->machine, to).clogged_until_ns = world_->now_ns + for_ns;
        if (random.OneIn(2)) {
          world_->LinkBetween(to, task->machine).clogged_until_ns = world_->now_ns + for_ns;
        }
        unclogged_ns_ = world_->now_ns + (plan.long_clogs ? 1 : 3) * for_ns;
      });
    }
    if (plan.freezes && world_->now_ns >= thawed_ns_) {
      possible.emplace_back([this, &plan, &random] {
        Task* const frozen = plan.long_freezes ? AnyTask() : ledger_.tasks[0].get();
        if (frozen->process == nullptr || frozen->frozen_since_ns > 0) return;
        const int64_t for_ns = plan.long_freezes
                                   ? random.AnySize(1 * kMs, 3000 * kMs)
                                   : random.Between(1 * kMs, plan.silent_ms * kMs / 3);
        world_->Freeze(frozen->process);
        frozen->frozen_since_ns = world_->now_ns;
        thawed_ns_ = world_->now_ns + (plan.long_freezes ? 1 : 3) * for_ns;
        world_->After(for_ns, [this, frozen] { Unfreeze(frozen); });
      });
    }
    if (!possible.empty()) possible[random.Below(possible.size())]();
  }

  void PowerOff(int machine) {
    Machine& off = world_->machines[static_cast<size_t>(machine)];
    if (!off.up) return;
    Trace("power off", machine);
    off.up = false;
    ++off.boots;
    for (const auto& task : ledger_.tasks) {
      if (task->machine == machine) Drop(task.get(), /*silently=*/true);
    }
    world_->After(world_->random.AnySize(1 * kMs, 1000 * kMs),
                  [this, machine] { PowerOn(machine); });
  }
  void PowerOn(int machine) {
    Machine& on = world_->machines[static_cast<size_t>(machine)];
    if (on.up) return;
    Trace("power on", machine);
    on.up = true;
    for (const auto& task : ledger_.tasks) {
      if (task->machine == machine && task->process == nullptr) StartTask(task.get());
    }
  }

  // Looks at what is under way.
  void Audit() {
    const Plan& plan = ledger_.plan;
    const int64_t now = world_->now_ns;
    // What all transfers together may take on the slowest link.
    const int64_t prompt_ns =
        kPromptNs + static_cast<int64_t>(ledger_.bytes) * kSecond / bytes_per_s_;
    for (const Record& record : ledger_.records) {
      if (record.ended) continue;
      const Task& task = *record.task;
      if (task.frozen_since_ns > 0) continue;
      const int64_t late_ns =
          record.end_by_ns == kNever ? kNever : record.end_by_ns + SlackNs(record);
      if (late_ns < now - kSlackNs &&
          (record.on_reactor || task.handed_over.empty() || *task.handed_over.begin() > late_ns)) {
        Violated(Describe(record) + " has not ended, " +
                 std::to_string((now - record.end_by_ns) / kMs) +
                 " ms after its deadline or cancellation");
      }
      const bool at_once =
          record.ask.method == kBytes || record.ask.method == kFail || record.ask.method == kPushes;
      if (plan.prompt() && at_once && now - record.begun_ns > prompt_ns) {
        Violated(Describe(record) + " takes long, and nothing holds it up");
      }
    }
    if (!over_) world_->After(kAuditNs, [this] { Audit(); });
  }

  void EndFaults() {
    Trace("faults over");
    ledger_.faults_over = true;
    world_->epoll_failure_one_in = 0;
    world_->descriptor_failure_one_in = 0;
    world_->flip_one_in = 0;
    for (int from = 0; from < ledger_.plan.machines; ++from) {
      for (int to = 0; to < ledger_.plan.machines; ++to) {
        world_->LinkBetween(from, to).clogged_until_ns = 0;
      }
    }
    for (const auto& task : ledger_.tasks) Unfreeze(task.get());
    for (int machine = 0; machine < ledger_.plan.machines; ++machine) PowerOn(machine);
    for (const auto& task : ledger_.tasks) {
      if (task->process == nullptr) StartTask(task.get());
    }
    if (ledger_.plan.stop_early) {
      StopAll();
      return;
    }
    ledger_.answer_all = true;
    // What is lost is found to be so by then, and everything ends.
    const Plan& plan = ledger_.plan;
    settle_by_ns_ = world_->now_ns + 10 * kSecond + 2 * plan.fault_ns +
                    2 * kMs * (plan.silent_ms + plan.connect_ms + plan.handshake_ms);
    Settle();
  }

  void Settle() {
    const bool running =
        std::all_of(ledger_.tasks.begin(), ledger_.tasks.end(), [](const auto& task) {
          return task->process != nullptr && !task->stop && task->callers_left == 0;
        });
    const auto open = std::find_if(ledger_.records.begin(), ledger_.records.end(),
                                   [](const Record& record) { return !record.ended; });
    if (running && open == ledger_.records.end()) {
      const Plan& plan = ledger_.plan;
      world_->After(
          kMs * (plan.silent_ms * 3 / 2 + std::max(plan.handshake_ms, plan.connect_ms)) + 500 * kMs,
          [this] { Probe(); });
      return;
    }
    if (world_->now_ns > settle_by_ns_) {
      Violated(open != ledger_.records.end()
                   ? Describe(*open) + " has not ended long after the last fault"
                   : "a task does not come back after the last fault");
    }
    world_->After(20 * kMs, [this] { Settle(); });
  }

  // All is well now, and so must be a call on each channel.
  void Probe() {
    for (const auto& task : ledger_.tasks) {
      task->probe = true;
      world_->WakeAll(&task->probe);
    }
    probed_by_ns_ = world_->now_ns + 5 * kSecond;
    AwaitProbes();
  }
  void AwaitProbes() {
    const bool done = std::all_of(ledger_.tasks.begin(), ledger_.tasks.end(),
                                  [](const auto& task) { return task->probed; }) &&
                      std::all_of(ledger_.records.begin(), ledger_.records.end(),
                                  [](const Record& record) { return record.ended; });
    if (done) {
      world_->After(1500 * kMs, [this] {
        CheckRest();
        StopAll();
      });
      return;
    }
    if (world_->now_ns > probed_by_ns_) Violated("a call after the last fault does not end");
    world_->After(20 * kMs, [this] { AwaitProbes(); });
  }

  // Nothing is under way: little is held.
  void CheckRest() {
    for (const auto& task : ledger_.tasks) {
      if (task->payloads > 0) Violated(task->name + ": payloads are held that nobody waits for");
      if (task->pushes_under_way > 0) Violated(task->name + ": a push has not ended");
      size_t connections = 1;
      for (const auto& other : ledger_.tasks) {
        const auto streams =
            static_cast<size_t>(other->streams > 0 ? other->streams : other->reactors);
        connections += streams * static_cast<size_t>(std::count(other->targets.begin(),
                                                                other->targets.end(), task->index));
      }
      const auto streams = static_cast<size_t>(task->streams > 0 ? task->streams : task->reactors);
      connections += streams * task->targets.size();
      const auto reactors = static_cast<size_t>(task->reactors);
      const size_t descriptors = OpenDescriptors(task->process);
      if (descriptors > 3 * reactors + 1 + connections) {
        Violated(task->name + " has " + std::to_string(descriptors) + " descriptors open at rest");
      }
      const size_t blocks = task->process->block_count;
      const size_t most = 60 + 10 * reactors + 12 * connections;
      Trace("at rest", static_cast<int64_t>(blocks), static_cast<int64_t>(most));
      if (blocks > most) {
        Violated(task->name + " has " + std::to_string(blocks) +
                 " blocks of memory at rest; with " + std::to_string(connections) +
                 " connections it ought to have " + std::to_string(most) + " at most");
      }
    }
  }

  void StopAll() {
    ledger_.ending = true;
    if (break_a_promise) ledger_.records.push_back(Broken());
    for (const auto& task : ledger_.tasks) {
      world_->After(world_->random.AnySize(0, 20 * kMs), [this, t = task.get()] { Stop(t); });
    }
    FinishIfAllHaveEnded();
    ledger_.answer_all = true;
  }

  Record Broken() {
    Record record;
    record.task = ledger_.tasks[0].get();
    record.incarnation = record.task->incarnation;
    record.begun_ns = world_->now_ns;
    return record;
  }

  World* const world_;
  Ledger ledger_;
  int64_t bytes_per_s_ = kNever;
  int64_t settle_by_ns_ = 0;
  int64_t probed_by_ns_ = 0;
  int64_t unclogged_ns_ = 0;
  int64_t thawed_ns_ = 0;
  bool over_ = false;
};

}  // namespace

Outcome RunSeed(uint64_t number) {
  seed = number;
  trace_hash = number;
  Pattern();
  World w(number);
  Scene scene(number, &w);
  return scene.Play();
}

}  // namespace tensorwire::simulation
