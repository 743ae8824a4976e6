// Standing orders over real connections: a producer with its orders, and consumers with inboxes.
// Compiled as one unit with the plug-in's files (tests/plugin_unit.py).

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "calls/status.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "transport/push_inbox.h"
#include "transport/push_steps.h"
#include "transport/route.h"
#include "transport/standing_orders.h"

// TensorFlow's logging has macros of these names.
#undef CHECK
#undef CHECK_EQ
#include "../../wire/tests/check.h"

namespace tensorwire::plugin {
namespace {

using Expected = PushInbox::Expected;

const uint64_t kScope = ScopeOf("a session");
const std::string kKey = "/job:ps/replica:0/task:0/device:CPU:0;1;/job:worker;edge_1_x;0:0";

std::unique_ptr<wire::Engine> StartEngine() {
  static auto* const pool =
      new tensorflow::thread::ThreadPool(tensorflow::Env::Default(), "push_test", 4);
  wire::EngineOptions options;
  options.executor = [](std::function<void()> closure) { pool->Schedule(std::move(closure)); };
  std::unique_ptr<wire::Engine> engine;
  CHECK(wire::Engine::Create(std::move(options), &engine).ok());
  return engine;
}

// What TensorFlow's WorkerSession is in a task.
using Alive = std::shared_ptr<const int>;

PushSteps::StepPtr Begin(PushSteps* steps, int64_t step_id, const Alive& alive,
                         uint64_t scope = kScope, const Alive& peers = nullptr) {
  return steps->Begin(step_id, scope, [&alive] { return std::weak_ptr<const void>(alive); }, peers);
}

// Answers each request with the result of NoteRequest.
class ProducerHandler : public wire::Handler {
 public:
  wire::RunOn HandleOn(const wire::Request&) const override { return wire::RunOn::kReactor; }
  void Handle(wire::Request request) override {
    wire::MetadataReader reader(request.metadata);
    int64_t step_id = 0;
    Order order;
    reader.Get(&step_id);
    reader.Get(&order.number);
    order.key = reader.rest();
    order.pusher = request.pusher();
    order.counters = &counters_;
    PushSteps::Taken taken;
    const Asked asked = NoteRequest(&steps, step_id, kScope, /*is_again=*/false, order, &taken);
    wire::Message reply;
    reply.Put<uint64_t>(request.connection_id());
    reply.Put<uint8_t>(static_cast<uint8_t>(asked));
    reply.Put<uint8_t>(taken.is_accepted ? 1 : 0);
    reply.Put<uint64_t>(taken.since);
    for (const int64_t step_id : taken.not_in) reply.Put<int64_t>(step_id);
    request.Reply(std::move(reply));
  }
  void OnCancel(uint64_t, uint64_t) override {}
  void OnDisconnect(uint64_t connection_id) override { steps.Forget(connection_id); }

  Alive alive = std::make_shared<const int>(0);
  PushSteps steps;

 private:
  TensorCounters counters_;
};

// The engine's executor may tell `answers` of a lost connection after the producer is destroyed.
struct Producer {
  Producer() {
    int port = 0;
    CHECK(engine->Listen("127.0.0.1", 0, answers, &port).ok());
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~Producer() { engine->Stop(); }

  PushSteps& steps() { return answers->steps; }
  PushSteps::StepPtr Begin(int64_t step_id, uint64_t scope = kScope, const Alive& peers = nullptr) {
    return plugin::Begin(&steps(), step_id, answers->alive, scope, peers);
  }
  bool Push(int64_t step_id, uint64_t scope = kScope, int64_t elements = 4) {
    Tensor tensor(tensorflow::DT_FLOAT, {elements});
    tensor.flat<float>().setConstant(static_cast<float>(step_id));
    const auto step = Begin(step_id, scope);
    const ReservedPush reserved(step.get(), kKey);
    return reserved && reserved.Push(tensor, /*is_dead=*/false);
  }

  std::string address;
  std::shared_ptr<ProducerHandler> answers = std::make_shared<ProducerHandler>();
  std::unique_ptr<wire::Engine> engine = StartEngine();
};

struct Answer {
  uint64_t connection_id = 0;
  uint8_t asked = 0;
  uint8_t accepted = 0;
  std::vector<int64_t> numbers;
  Asked what() const { return static_cast<Asked>(asked); }
};

// A value that one thread sets and another waits for.
template <typename T>
class Event {
 public:
  void Set(T value) {
    std::lock_guard lock(mutex_);
    value_ = std::make_unique<T>(std::move(value));
    changed_.notify_all();
  }
  T Wait() {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return value_ != nullptr; });
    CHECK(came);
    return came ? *value_ : T();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<T> value_;
};

class AnswerCall : public wire::Call {
 public:
  AnswerCall(std::shared_ptr<Event<Answer>> answered, std::shared_ptr<PushInbox> inbox,
             PushInbox::Order order)
      : answered_(std::move(answered)), inbox_(std::move(inbox)), order_(std::move(order)) {}
  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t,
                                  std::vector<wire::MutableBuffer>*) override {
    wire::MetadataReader reader(metadata);
    reader.Get(&answer_.connection_id);
    reader.Get(&answer_.asked);
    reader.Get(&answer_.accepted);
    for (int64_t number = 0; reader.Get(&number);) answer_.numbers.push_back(number);
    if (answer_.accepted != 0) inbox_->AcceptFromReactor(order_, answer_.numbers, 100);
    return wire::Status();
  }
  void Done(const wire::Status& status) override {
    CHECK(status.ok());
    answered_->Set(answer_);
  }

 private:
  const std::shared_ptr<Event<Answer>> answered_;
  const std::shared_ptr<PushInbox> inbox_;
  const PushInbox::Order order_;
  Answer answer_;
};

class TestWaiter : public PushInbox::Waiter {
 public:
  void OnPush(Pushed pushed) override { came.Set(std::move(pushed)); }
  void OnLost(const absl::Status& why) override { lost.Set(why); }
  void Ask() override { asks.Set(true); }

  Event<Pushed> came;
  Event<absl::Status> lost;
  Event<bool> asks;
};

// A consumer with its own connection and inbox.
class Consumer {
 public:
  explicit Consumer(const std::string& address) : channel(engine->Connect(address, "")) {
    channel->SetPushReceiver(inbox);
  }
  ~Consumer() { engine->Stop(); }

  Answer Ask(int64_t step_id, bool with_order = true) {
    wire::Message request(1);
    request.Put<int64_t>(step_id);
    request.Put<uint64_t>(with_order ? order.number : 0);
    request.AppendMetadata(kKey);
    auto answered = std::make_shared<Event<Answer>>();
    channel->Start(std::move(request), std::make_unique<AnswerCall>(answered, inbox, order), {});
    return answered->Wait();
  }
  Expected Expect(int64_t step_id, Pushed* here) {
    return inbox->Expect(step_id, order, waiter, here);
  }
  // Takes the push for the step; waits for it if it is still under way.
  Pushed Take(int64_t step_id) {
    waiter = std::make_shared<TestWaiter>();
    Pushed here;
    return Expect(step_id, &here) == Expected::kHere ? here : waiter->came.Wait();
  }
  // Whether the tensor has arrived. The step cannot be used any more.
  bool Has(int64_t step_id) {
    waiter = std::make_shared<TestWaiter>();
    Pushed here;
    const bool has = Expect(step_id, &here) == Expected::kHere;
    inbox->Forget(step_id, order);
    return has;
  }

  std::unique_ptr<wire::Engine> engine = StartEngine();
  PushSteps steps;
  Alive alive = std::make_shared<const int>(0);
  std::shared_ptr<PushSession> session = Begin(&steps, 1000, alive)->session;
  std::shared_ptr<wire::Channel> channel;
  std::shared_ptr<PushInbox> inbox = std::make_shared<PushInbox>(&steps);
  std::shared_ptr<TestWaiter> waiter = std::make_shared<TestWaiter>();
  PushInbox::Order order = inbox->NewOrder(session);
};

float ValueOf(const Pushed& pushed) {
  CHECK(pushed.status.ok());
  return pushed.tensor.tensor().flat<float>()(3);
}

// Waits until all pushes have arrived: sends one more, for `free_step`, and waits for that.
void WaitForPushes(Producer* producer, Consumer* consumer, int64_t free_step) {
  CHECK(producer->Push(free_step));
  consumer->Take(free_step);
}

TEST(a_tensor_is_pushed_in_the_steps_after_the_order) {
  Producer producer;
  Consumer consumer(producer.address);
  CHECK(!producer.Push(1));  // there is no order
  const Answer answer = consumer.Ask(2);
  CHECK(answer.what() == Asked::kInRendezvous);
  CHECK(answer.accepted != 0);
  CHECK(!producer.Push(2));  // it was requested
  CHECK(producer.Push(3));
  CHECK_EQ(ValueOf(consumer.Take(3)), 3.0f);
}

// Such a step may have put the tensor into its rendezvous before it could know of the order.
TEST(an_order_does_not_hold_for_steps_that_had_begun) {
  Producer producer;
  Consumer consumer(producer.address);
  producer.Begin(5);
  const Answer answer = consumer.Ask(1);
  CHECK_EQ(answer.numbers.size(), 2u);
  CHECK_EQ(answer.numbers[1], int64_t{5});
  CHECK(!producer.Push(5));
  Pushed here;
  CHECK(consumer.Expect(5, &here) == Expected::kAsk);
  CHECK(consumer.Expect(6, &here) == Expected::kWait);
}

TEST(a_push_goes_to_the_session_that_ordered_it_only) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  CHECK(!producer.Push(2, ScopeOf("another session")));
  CHECK(producer.Push(3));
}

TEST(who_asks_for_what_was_pushed_over_another_connection_is_told_at_once) {
  Producer producer;
  Consumer first(producer.address);
  Consumer second(producer.address);
  first.Ask(1);
  CHECK(producer.Push(2));
  CHECK(second.Ask(2).what() == Asked::kGone);
  CHECK(first.Ask(2).what() == Asked::kOnItsWay);
}

// If both connections live, the first one must not wait for pushes that go to the other one.
TEST(who_loses_an_order_to_another_connection_is_told) {
  Producer producer;
  Consumer first(producer.address);
  Consumer second(producer.address);
  first.Ask(1);
  Pushed here;
  CHECK(first.Expect(3, &here) == Expected::kWait);
  second.Ask(2);
  CHECK(producer.Push(3));
  CHECK_EQ(ValueOf(second.Take(3)), 3.0f);
  CHECK(first.waiter->asks.Wait());
  CHECK(first.Expect(4, &here) == Expected::kAsk);
}

TEST(of_two_connections_that_ask_the_last_one_gets_the_tensor) {
  Producer producer;
  Consumer first(producer.address);
  Consumer second(producer.address);
  const uint64_t one = first.Ask(1).connection_id;
  const uint64_t two = second.Ask(1).connection_id;
  PushSteps::Taken taken;
  taken.step = producer.Begin(1);
  taken.since = 1;  // the only order has slot 0
  CHECK(!ClaimTensor(taken, one));
  CHECK(ClaimTensor(taken, two));
  CHECK(first.Ask(1).what() == Asked::kGone);
}

TEST(what_a_lost_connection_had_brought_stays) {
  auto producer = std::make_unique<Producer>();
  Consumer consumer(producer->address);
  consumer.Ask(1);
  CHECK(producer->Push(2));
  WaitForPushes(producer.get(), &consumer, 3);
  const auto waiting = std::make_shared<TestWaiter>();
  Pushed here;
  CHECK(consumer.inbox->Expect(4, consumer.order, waiting, &here) == Expected::kWait);
  producer.reset();
  CHECK(!waiting->lost.Wait().ok());
  CHECK_EQ(ValueOf(consumer.Take(2)), 2.0f);
  // The order is given again on the next connection.
  CHECK(consumer.inbox->Expect(5, consumer.order, waiting, &here) == Expected::kAsk);
}

// A request with the order may leave over the next connection, and the producer then follows it.
TEST(an_order_whose_connection_is_lost_before_it_is_sent_is_still_known) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.inbox->OnLost(wire::Status(wire::Code::kUnavailable, "lost"));
  CHECK_EQ(consumer.Ask(1).accepted, 1);
  CHECK(producer.Push(2));
  CHECK_EQ(ValueOf(consumer.Take(2)), 2.0f);
}

TEST(what_is_pushed_for_a_step_that_has_ended_is_dropped) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  for (const int64_t step : {int64_t{20}, int64_t{-20}}) {  // functions have negative step ids
    consumer.steps.EndStep(step);
    CHECK(producer.Push(step, kScope, 1 << 20));
    WaitForPushes(&producer, &consumer, step + 1);
    consumer.steps.EndStep(step + 1);
    CHECK_EQ(consumer.steps.live_steps(), 1u);  // the one that its constructor began
    CHECK(!consumer.Has(step));
  }
}

TEST(what_is_not_taken_goes_when_its_step_ends) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  for (const int64_t step : {int64_t{20}, int64_t{-20}}) {
    CHECK(producer.Push(step));
    WaitForPushes(&producer, &consumer, step + 1);
    consumer.steps.EndStep(step);
    CHECK(!consumer.Has(step));
  }
}

// A consumer whose part of the step begins late, or a loop whose producer runs ahead: a hundred
// thousand other steps end meanwhile.
TEST(a_push_is_kept_until_its_step_ends_however_long_that_takes) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  CHECK(producer.Push(2));
  WaitForPushes(&producer, &consumer, 3);
  for (int64_t step = 10'000; step < 110'000; ++step) consumer.steps.EndStep(step);
  Begin(&consumer.steps, 2, consumer.alive);
  CHECK_EQ(ValueOf(consumer.Take(2)), 2.0f);
}

TEST(what_arrives_while_its_step_ends_is_not_kept) {
  PushSteps steps;
  const Alive alive = std::make_shared<const int>(0);
  const auto session = Begin(&steps, 0, alive)->session;
  const auto inbox = std::make_shared<PushInbox>(&steps);
  const auto order = inbox->NewOrder(session);
  constexpr int64_t kSteps = 20'000;
  std::atomic<int64_t> prepared{0};
  std::atomic<int64_t> begun{0};
  std::atomic<int64_t> arrived{0};
  auto wait_for = [](const std::atomic<int64_t>& number, int64_t step) {
    while (number.load() != step) std::this_thread::yield();
  };
  std::thread reactor([&] {
    for (int64_t step = 1; step <= kSteps; ++step) {
      const auto call = inbox->BeginFromReactor(order.number);
      std::vector<wire::MutableBuffer> into;
      if (step % 2 == 0) wait_for(begun, step);
      // A push without a tensor; the inbox would keep its error.
      const wire::Status status = call->PrepareFromReactor(
          {reinterpret_cast<const char*>(&step), sizeof(step)}, /*payload_bytes=*/0, &into);
      CHECK(!status.ok());
      prepared.store(step);
      wait_for(begun, step);
      call->Done(status);
      arrived.store(step);
    }
  });
  for (int64_t step = 1; step <= kSteps; ++step) {
    if (step % 2 == 1) wait_for(prepared, step);
    begun.store(step);
    for (std::atomic<int64_t> spins{0}; spins < step % 256;) ++spins;
    steps.EndStep(step);
    wait_for(arrived, step);
  }
  reactor.join();
  CHECK_EQ(steps.live_steps(), 1u);
}

std::string HeadOf(int64_t step_id, uint8_t flags) {
  wire::Message message;
  std::string head(reinterpret_cast<const char*>(&step_id), sizeof(step_id));
  head += static_cast<char>(flags);
  head += '\1';  // rank
  const uint16_t dtype = tensorflow::DT_FLOAT;
  head.append(reinterpret_cast<const char*>(&dtype), sizeof(dtype));
  head.append(4, '\0');
  const int64_t elements = 4;
  head.append(reinterpret_cast<const char*>(&elements), sizeof(elements));
  return head;
}

struct Arrival {
  Arrival(PushInbox* inbox, uint64_t number, int64_t step_id, uint8_t flags = 0)
      : call(inbox->BeginFromReactor(number)) {
    status = call->PrepareFromReactor(HeadOf(step_id, flags), 4 * sizeof(float), &into);
    if (status.ok()) std::fill_n(static_cast<float*>(into[0].data), 4, static_cast<float>(step_id));
  }
  std::unique_ptr<wire::Call> call;
  std::vector<wire::MutableBuffer> into;
  wire::Status status;
};

// An inbox without a connection, whose order has been accepted.
struct Inbox {
  Inbox() { inbox->AcceptFromReactor(order, {1}, 100); }
  Expected Expect(int64_t step_id) { return inbox->Expect(step_id, order, waiter, &here); }

  PushSteps steps;
  Alive alive = std::make_shared<const int>(0);
  std::shared_ptr<PushSession> session = Begin(&steps, 1000, alive)->session;
  std::shared_ptr<PushInbox> inbox = std::make_shared<PushInbox>(&steps);
  PushInbox::Order order = inbox->NewOrder(session);
  std::shared_ptr<TestWaiter> waiter = std::make_shared<TestWaiter>();
  Pushed here;
  const wire::Status lost{wire::Code::kUnavailable, "lost"};
};

// The answer to a request is a small frame, which overtakes large ones and ranges of payloads.
TEST(a_promise_may_overtake_what_it_speaks_of) {
  Inbox at;
  at.inbox->OnLost(at.lost);  // the order has to be given again
  CHECK(at.Expect(1) == Expected::kAsk);
  CHECK(at.inbox->PromiseFromReactor(1, at.order));
  Arrival arrival(at.inbox.get(), at.order.number, 1);
  arrival.call->Done(arrival.status);
  CHECK_EQ(ValueOf(at.waiter->came.Wait()), 1.0f);
  // Or the connection is lost before.
  CHECK(at.Expect(2) == Expected::kAsk);
  CHECK(at.inbox->PromiseFromReactor(2, at.order));
  at.inbox->OnLost(at.lost);
  CHECK(!at.waiter->lost.Wait().ok());
}

// As long as it arrives, the call waits, whatever the connection does: ranges of the payload come
// over others.
TEST(a_payload_that_arrives_ends_its_call_and_nothing_else) {
  Inbox at;
  Arrival arrival(at.inbox.get(), at.order.number, 1);
  CHECK(at.Expect(1) == Expected::kWait);
  at.inbox->OnLost(at.lost);
  arrival.call->Done(arrival.status);
  CHECK_EQ(ValueOf(at.waiter->came.Wait()), 1.0f);
  Arrival cut_off(at.inbox.get(), at.order.number, 2);
  at.inbox->OnLost(at.lost);
  CHECK(at.Expect(2) == Expected::kWait);
  cut_off.call->Done(at.lost);
  at.waiter = std::make_shared<TestWaiter>();
  CHECK(at.Expect(2) == Expected::kAsk);  // it has been told
}

TEST(who_waits_for_what_the_producer_declines_asks) {
  Inbox at;
  for (const bool all : {false, true}) {
    at.waiter = std::make_shared<TestWaiter>();
    const int64_t step = all ? 2 : 1;
    const uint64_t number = all ? AllOrdersOf(at.order.number) : at.order.number;
    CHECK(at.Expect(step) == Expected::kWait);
    Arrival arrival(at.inbox.get(), number, step, kDead | kDeclined);
    arrival.call->Done(wire::Status());
    CHECK(at.waiter->asks.Wait());
  }
  // Also if it comes first.
  Arrival arrival(at.inbox.get(), at.order.number, 3, kDead | kDeclined);
  arrival.call->Done(wire::Status());
  CHECK(at.Expect(3) == Expected::kAsk);
}

// A push of the first attempt cannot be told from one of the second.
TEST(a_step_that_is_tried_again_has_no_pushes) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  producer.steps().EndStep(2);
  consumer.steps.EndStep(2);
  CHECK(!producer.Push(2));
  Begin(&consumer.steps, 2, consumer.alive);
  Pushed here;
  // What the producer has declined may be just arriving; then it tells the one who waits.
  CHECK(consumer.Expect(2, &here) == Expected::kAsk || consumer.waiter->asks.Wait());
  // If only the producer knows, it says so.
  consumer.waiter = std::make_shared<TestWaiter>();
  CHECK(consumer.Expect(3, &here) == Expected::kWait);
  producer.steps().EndStep(3);
  CHECK(!producer.Push(3));
  CHECK(consumer.waiter->asks.Wait());
}

TEST(a_late_request_does_not_make_an_ended_step_anew) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  CHECK(producer.Push(2));
  for (const int64_t step : {1, 2}) {
    producer.steps().EndStep(step);
    CHECK(consumer.Ask(step).what() == Asked::kEnded);
  }
  CHECK_EQ(producer.steps().live_steps(), 0u);
}

// TensorFlow deletes a session whose master has come back without a word.
TEST(what_is_kept_of_a_session_goes_with_it_although_nobody_closes_it) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  CHECK(producer.Push(2));
  WaitForPushes(&producer, &consumer, 3);
  producer.Begin(5);  // which never ends
  Pushed here;
  CHECK(consumer.Expect(6, &here) == Expected::kWait);
  const auto waiting = consumer.waiter;
  producer.answers->alive = std::make_shared<const int>(1);
  producer.Begin(1, ScopeOf("the next session"));
  CHECK_EQ(producer.steps().sessions(), 1u);
  CHECK_EQ(producer.steps().live_steps(), 1u);
  // Who still waits for its pushes is told.
  CHECK(waiting->asks.Wait());

  consumer.alive = std::make_shared<const int>(1);
  Begin(&consumer.steps, 1, consumer.alive, ScopeOf("the next session"));
  CHECK_EQ(consumer.steps.sessions(), 1u);
  CHECK_EQ(consumer.steps.live_steps(), 1u);
  Arrival late(consumer.inbox.get(), consumer.order.number, 7);
  CHECK(!late.status.ok());
}

TEST(a_session_of_which_nothing_runs_here_goes_with_the_connection) {
  Producer producer;
  {
    Consumer consumer(producer.address);
    consumer.Ask(1);
    CHECK_EQ(producer.steps().sessions(), 1u);
  }
  while (producer.steps().sessions() > 0) std::this_thread::yield();
  CHECK_EQ(producer.steps().live_steps(), 0u);
}

// The copy to the host of a tensor that was to be pushed has failed.
TEST(what_was_reserved_and_is_released_is_requested) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  Pushed here;
  CHECK(consumer.Expect(2, &here) == Expected::kWait);
  const auto step = producer.Begin(2);
  const ReservedPush reserved(step.get(), kKey);
  CHECK(static_cast<bool>(reserved));
  reserved.Release();
  CHECK(consumer.waiter->asks.Wait());
  CHECK(consumer.Ask(2).what() == Asked::kInRendezvous);
}

TEST(who_waits_for_a_step_that_fails_at_the_producer_asks) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  Pushed here;
  CHECK(consumer.Expect(2, &here) == Expected::kWait);
  producer.steps().Abort(3, kScope);
  producer.steps().Abort(2, kScope);  // before it has sent or received anything
  CHECK(consumer.waiter->asks.Wait());
  // Also if it begins here later.
  CHECK(consumer.Expect(3, &here) == Expected::kAsk);
}

// A TF2 context has replaced a task, which lives on: its orders must get no tensor of another's.
TEST(orders_end_when_the_session_is_given_another_worker_cache) {
  Producer producer;
  Consumer consumer(producer.address);
  const auto former = std::make_shared<const int>(1);
  const auto latter = std::make_shared<const int>(2);
  consumer.Ask(1);
  producer.Begin(1, kScope, former);
  Pushed here;
  CHECK(consumer.Expect(2, &here) == Expected::kWait);
  const auto step = producer.Begin(2, kScope, latter);
  CHECK(!ReservedPush(step.get(), kKey));
  CHECK(consumer.waiter->asks.Wait());
  CHECK(consumer.Ask(2).what() == Asked::kInRendezvous);
  const auto next = producer.Begin(3, kScope, latter);
  CHECK(static_cast<bool>(ReservedPush(next.get(), kKey)));
}

TEST(nothing_is_pushed_outside_of_steps) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1);
  CHECK(consumer.Ask(kNoStep).accepted == 0);
}

size_t HeapBytes() {
#if __GLIBC_PREREQ(2, 33)
  return mallinfo2().uordblks;  // 0 with a sanitizer
#else
  return 0;
#endif
}

// A ps with the sessions of 1,000 workers.
TEST(a_thousand_sessions_of_365_tensors_are_kept_and_each_goes_alone) {
  const int kSessions = HeapBytes() > 0 ? 1000 : 50;  // few with a sanitizer
  constexpr int kTensors = 365;
  std::vector<std::string> keys;
  for (int i = 0; i < kTensors; ++i) keys.push_back(kKey + std::to_string(i));
  PushSteps steps;
  std::vector<Alive> alive;
  std::vector<std::shared_ptr<PushSession>> sessions;
  std::vector<std::shared_ptr<PushInbox>> inboxes;
  for (int i = 0; i < kSessions; ++i) {
    alive.push_back(std::make_shared<const int>(i));
    sessions.push_back(Begin(&steps, i, alive.back(), static_cast<uint64_t>(i) + 1)->session);
    inboxes.push_back(std::make_shared<PushInbox>(&steps));
  }
  auto key_of = [&](int tensor) -> const std::string& { return keys[static_cast<size_t>(tensor)]; };
  const size_t before = HeapBytes();
  for (int i = 0; i < kSessions; ++i) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      Order order;
      order.key = key_of(tensor);
      order.number = static_cast<uint64_t>(tensor) + 1;
      CHECK(steps.Take(i, sessions[i]->scope, /*is_again=*/false, order).is_accepted);
      sessions[i]->routes.Update(key_of(tensor), [&](const auto&) {
        CHECK(steps.CountRoute());
        auto route = std::make_shared<Route>();
        route->key = key_of(tensor);
        route->order = inboxes[i]->NewOrder(sessions[i]);
        return std::shared_ptr<const Route>(std::move(route));
      });
    }
  }
  const size_t bytes = HeapBytes() - before;
  std::fprintf(stderr, "%zu bytes for an order at both ends\n", bytes / (kSessions * kTensors));
  CHECK(bytes / (kSessions * kTensors) < 1000);
  const auto found = [&](int i, int tensor) { return sessions[i]->routes.Find(key_of(tensor)); };
  std::vector<const Route*> routes;
  for (int i = 0; i < kSessions; ++i) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const auto route = found(i, tensor);
      CHECK(route != nullptr);
      routes.push_back(route.get());
    }
  }
  // One goes, and its worker comes back with another session; the others keep what they have.
  alive[7].reset();
  Begin(&steps, kSessions, alive[8], kSessions + 1);
  CHECK_EQ(steps.sessions(), static_cast<size_t>(kSessions));
  CHECK_EQ(steps.routes(), static_cast<size_t>((kSessions - 1) * kTensors));
  for (int i = 0; i < kSessions; ++i) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      if (i != 7)
        CHECK(found(i, tensor).get() == routes[static_cast<size_t>(i * kTensors + tensor)]);
    }
  }
}

// A failed step may first be told that its tensor does not come. The calls that it then cancels do
// not say the cause.
TEST(a_cancelled_call_does_not_hide_the_operation_that_failed) {
  const absl::Status cancelled =
      FromWire(wire::Status(wire::Code::kCancelled, "the call was cancelled"));
  CHECK(tensorflow::StatusGroup::IsDerived(cancelled));
  for (const char* text : {"Queue 'q' is already closed.", "1 was cancelled", "[op] cancelled"}) {
    tensorflow::StatusGroup group;
    group.Update(cancelled);
    group.Update(tensorflow::StatusGroup::MakeDerived(absl::CancelledError(text)));
    CHECK_EQ(std::string(group.as_summary_status().message()), std::string(text));
  }
}

}  // namespace
}  // namespace tensorwire::plugin

RUN_TESTS()
