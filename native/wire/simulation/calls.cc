#include "calls.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "invariants.h"
#include "kernel.h"
#include "pool.h"
#include "tensorwire/wire/buffer_pool.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::simulation {

namespace {

using wire::BufferPool;
using wire::Call;
using wire::Channel;
using wire::Engine;
using wire::EngineOptions;
using wire::Message;
using wire::MetadataReader;
using wire::MutableBuffer;
using wire::Request;
using wire::RunOn;
using wire::Status;

constexpr size_t kPatternBytes = 20u << 20;
constexpr size_t kMostOffset = 8u << 20;

void SleepNs(int64_t ns) {
  if (ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

RunOn ChooseRunOn() { return static_cast<RunOn>(world->random.Below(3)); }

// The bytes of an incoming reply or push.
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
    KernelMode kernel;
    CheckDestroyed(ledger->records[record_]);
  }
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    MetadataReader reader(metadata);
    uint32_t number = 0;
    reader.Get(&number);
    {
      KernelMode kernel;
      CheckReply(ledger->records[record_], number, payload_bytes, !replied_);
    }
    replied_ = true;
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
    CheckEnd(record, status, replied_, intact);
    record.ended = true;
    if (status.ok()) ++ledger->ok;
  }

 private:
  const uint32_t record_;
  Incoming incoming_;
  bool replied_ = false;
};

// A payload as one buffer or as several, of which some are empty.
void AddPieces(Message* message, const char* data, uint64_t bytes) {
  for (auto pieces = world->random.OneIn(2) ? 1 : world->random.AnySize(2, 80); pieces > 1;
       --pieces) {
    const auto most = static_cast<int64_t>(2 * bytes) / pieces;
    const auto size = static_cast<uint64_t>(world->random.Between(0, most));
    message->AddPayload(data, size);
    data += size;
    bytes -= size;
  }
  message->AddPayload(data, bytes);
}

// The number of a push is the offset of its bytes in the pattern.
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
    CheckPush(*task_, status, intact);
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
  void OnLost(const Status& why) override {
    KernelMode kernel;
    CheckLost(*task_, why.message());
  }

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
      CheckRequest(task_, ask, request, bytes, intact);
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
    {
      KernelMode kernel;
      CheckCancel(*task_, connection_id, request_id);
    }
    TakeIf([&](const Request& request) {
      return request.connection_id() == connection_id && request.id == request_id;
    });
  }
  void OnDisconnect(uint64_t connection_id) override {
    {
      KernelMode kernel;
      CheckDisconnect(task_, connection_id);
    }
    TakeIf([&](const Request& request) { return request.connection_id() == connection_id; });
  }

  // Answers some of the kept requests.
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
      Violated("a request arrived that no task sent");
    }
    return ask;
  }
  void TakeIf(const std::function<bool(const Request&)>& wanted) {
    std::vector<Request> taken;  // destroyed after the lock is released
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

  // A message with `bytes` of the pattern at `offset`, in memory whose release is counted.
  Message Payload(uint64_t offset, uint64_t bytes) {
    Message message;
    if (bytes == 0) return message;
    Task* const task = task_;
    ++task->payloads;
    if (bytes < (64u << 10) && !world->random.OneIn(4)) {
      AddPieces(&message, Pattern() + offset, bytes);
      message.KeepAlive({Pattern(), [task](const char*) { --task->payloads; }});
      return message;
    }
    // Lent memory is overwritten as soon as it is returned, so that a reader that still reads finds
    // other bytes.
    BufferPool* const pool = pool_;
    auto* const block = static_cast<char*>(pool->Acquire(bytes));
    if (block == nullptr) {  // the range for shared blocks is used up
      message.AddPayload(Pattern() + offset, bytes);
      message.KeepAlive({Pattern(), [task](const char*) { --task->payloads; }});
      return message;
    }
    std::memcpy(block, Pattern() + offset, bytes);
    AddPieces(&message, block, bytes);
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
      request.Fail(Status(wire::Code::kOutOfRange, ErrorText(ask)));
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
  AddPieces(&message, Pattern() + ask.request_offset, ask.request_bytes);
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
  if (plan.large_bytes > 0 && ledger->larges < plan.larges && random.OneIn(3)) {
    ++ledger->larges;
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
    if (ask.method == kUnanswered || random.OneIn(plan.deadline_one_in)) {
      options.deadline_ms = random.AnySize(1, plan.longest_deadline_ns / kMs);
    }
    if (plan.long_deadlines && ask.method != kUnanswered) options.deadline_ms = 200'000;
    cancels = random.OneIn(plan.cancel_one_in);
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
    record.frozen_before_ns = task->FrozenNs();
    record.must_succeed = probe;
    record.has_deadline = options.deadline_ms > 0;
    // A payload that is fetched in ranges ends on the executor in any case.
    record.on_reactor = options.done_on == RunOn::kReactor && !cancels && record.has_deadline &&
                        ask.reply_bytes < (8 << 20);
    record.ended = ask.method == kOneWay;
    if (record.has_deadline) {
      // The engine counts in milliseconds and rounds the current time down.
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
  const bool patiently = plan.cancels_patiently && random.OneIn(2);
  const int64_t patience_ms = patiently ? random.AnySize(1, plan.longest_deadline_ns / kMs) : 0;
  {
    KernelMode kernel;
    Record& record = ledger->records[number];
    if (!record.ended) Trace("cancel", number, patience_ms);
    record.cancelled = true;
    const int64_t end_by_ns = patiently ? (world->now_ns / kMs + patience_ms) * kMs : world->now_ns;
    if (end_by_ns < record.end_by_ns) {
      record.end_by_ns = end_by_ns;
      record.frozen_before_ns = task->FrozenNs();
    }
  }
  if (patiently) {
    channel->CancelPatiently(id, patience_ms);
  } else {
    channel->Cancel(id);
  }
}

// The other tasks start, too. If there are no faults, no task may be called before it listens.
void AwaitOthers(Task* task) {
  task->listens = true;
  const auto listens = [](const auto& other) { return other->listens; };
  do {
    SleepNs(20 * kMs);
  } while (!ledger->plan.loses() && !task->stop &&
           !std::all_of(ledger->tasks.begin(), ledger->tasks.end(), listens));
}

void Await(const bool* flag) {
  KernelMode kernel;
  while (!*flag) world->Block(flag);
}

}  // namespace

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

std::string ErrorText(const Ask& ask) {
  std::string text(Pattern() + ask.reply_offset, ask.reply_bytes);
  for (char& letter : text) letter = static_cast<char>('a' + (letter & 15));
  return text;
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
  options.strangers = plan.strangers;
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
    AwaitOthers(task);
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
      for (const auto& channel : channels) {
        if (plan.leaves_channels && world->random.OneIn(3)) continue;
        MakeCall(task, channel.get(), /*probe=*/true);
      }
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
}

}  // namespace tensorwire::simulation
