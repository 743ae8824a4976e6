// Standing orders over real connections: a producer with its orders, and consumers with inboxes.
// Compiled as one unit with the plug-in's files (tests/plugin_unit.py).

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "push_inbox.h"
#include "standing_orders.h"
#include "status.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"

// TensorFlow's logging has macros of these names.
#undef CHECK
#undef CHECK_EQ
#include "../../wire/tests/check.h"

namespace tensorwire::plugin {
namespace {

using Asked = StandingOrders::Asked;
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

// Answers each request with the result of StandingOrders::Ask.
class Answers : public wire::Handler {
 public:
  wire::RunOn HandleOn(const wire::Request&) const override { return wire::RunOn::kReactor; }
  void Handle(wire::Request request) override {
    wire::MetadataReader reader(request.metadata);
    StandingOrders::Wish wish;
    reader.Get(&wish.step_id);
    reader.Get(&wish.order);
    wish.scope = kScope;
    wish.key = reader.rest();
    bool accepted = false;
    const Asked asked =
        orders.Ask(wish, request.pusher(), /*device=*/nullptr, &counters_, &accepted);
    wire::Message reply;
    reply.Put<uint64_t>(request.connection_id());
    reply.Put<uint8_t>(static_cast<uint8_t>(asked));
    reply.Put<uint8_t>(accepted ? 1 : 0);
    request.Reply(std::move(reply));
  }
  void OnCancel(uint64_t, uint64_t) override {}
  void OnDisconnect(uint64_t connection_id) override { orders.Forget(connection_id); }

  StandingOrders orders;

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

  StandingOrders& orders() { return answers->orders; }
  bool Push(int64_t step_id, uint64_t scope = kScope, int64_t elements = 4) {
    Tensor tensor(tensorflow::DT_FLOAT, {elements});
    tensor.flat<float>().setConstant(static_cast<float>(step_id));
    const auto reserved = orders().Reserve(step_id, scope, kKey);
    return reserved && orders().Push(reserved, tensor, /*is_dead=*/false);
  }

  std::string address;
  std::shared_ptr<Answers> answers = std::make_shared<Answers>();
  std::unique_ptr<wire::Engine> engine = StartEngine();
};

struct Answer {
  uint64_t connection_id = 0;
  uint8_t asked = 0;
  uint8_t accepted = 0;
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
  explicit AnswerCall(std::shared_ptr<Event<Answer>> answered) : answered_(std::move(answered)) {}
  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t,
                                  std::vector<wire::MutableBuffer>*) override {
    wire::MetadataReader reader(metadata);
    reader.Get(&answer_.connection_id);
    reader.Get(&answer_.asked);
    reader.Get(&answer_.accepted);
    return wire::Status();
  }
  void Done(const wire::Status& status) override {
    CHECK(status.ok());
    answered_->Set(answer_);
  }

 private:
  const std::shared_ptr<Event<Answer>> answered_;
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
  explicit Consumer(const std::string& address)
      : channel(engine->Connect(address, "")), inbox(std::make_shared<PushInbox>(channel, steps)) {
    channel->SetPushReceiver(inbox);
    inbox->OrderFor(kScope, kKey);  // only the second request gives an order
    order = inbox->OrderFor(kScope, kKey);
  }
  ~Consumer() { engine->Stop(); }

  Answer Ask(int64_t step_id, const std::shared_ptr<PushInbox::Order>& with_order) {
    wire::Message request(1);
    request.Put<int64_t>(step_id);
    request.Put<uint32_t>(with_order != nullptr ? with_order->number() : 0);
    request.AppendMetadata(kKey);
    auto answered = std::make_shared<Event<Answer>>();
    channel->Start(std::move(request), std::make_unique<AnswerCall>(answered), {});
    return answered->Wait();
  }
  Expected Expect(int64_t step_id, Pushed* here) {
    return inbox->Expect(step_id, order, kKey, waiter, here);
  }
  // Takes the push for the step; waits for it if it is still under way.
  Pushed Take(int64_t step_id) {
    Pushed here;
    return Expect(step_id, &here) == Expected::kHere ? here : waiter->came.Wait();
  }

  std::unique_ptr<wire::Engine> engine = StartEngine();
  std::shared_ptr<PushInbox::Steps> steps = std::make_shared<PushInbox::Steps>();
  std::shared_ptr<wire::Channel> channel;
  std::shared_ptr<PushInbox> inbox;
  std::shared_ptr<TestWaiter> waiter = std::make_shared<TestWaiter>();
  std::shared_ptr<PushInbox::Order> order;
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

// Checks that no push for the step is kept.
void CheckNothingIsKept(Consumer* consumer, int64_t step) {
  Pushed here;
  CHECK(consumer->Expect(step, &here) == Expected::kWait);
  consumer->waiter = std::make_shared<TestWaiter>();  // the old one waits for this step
}

TEST(a_tensor_is_pushed_in_the_steps_after_the_order) {
  Producer producer;
  Consumer consumer(producer.address);
  CHECK(!producer.Push(1));  // there is no order
  const Answer answer = consumer.Ask(2, consumer.order);
  CHECK(answer.what() == Asked::kInRendezvous);
  CHECK(answer.accepted != 0);
  CHECK(!producer.Push(2));  // it was requested
  CHECK(producer.Push(3));
  CHECK_EQ(ValueOf(consumer.Take(3)), 3.0f);
}

TEST(a_push_goes_to_the_session_that_ordered_it_only) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  CHECK(!producer.Push(2, ScopeOf("another session")));
  CHECK(producer.Push(3));
}

TEST(who_asks_for_what_was_pushed_over_another_connection_is_told_at_once) {
  Producer producer;
  Consumer first(producer.address);
  Consumer second(producer.address);
  first.Ask(1, first.order);
  CHECK(producer.Push(2));
  CHECK(second.Ask(2, second.order).what() == Asked::kGone);
  CHECK(first.Ask(2, nullptr).what() == Asked::kOnItsWay);
  // The second consumer's order has replaced the first one's.
  CHECK(producer.Push(3));
  CHECK_EQ(ValueOf(second.Take(3)), 3.0f);
}

TEST(of_two_connections_that_ask_the_last_one_gets_the_tensor) {
  Producer producer;
  Consumer first(producer.address);
  Consumer second(producer.address);
  const uint64_t one = first.Ask(1, nullptr).connection_id;
  const uint64_t two = second.Ask(1, nullptr).connection_id;
  CHECK(!producer.orders().Claim(1, kKey, one));
  CHECK(producer.orders().Claim(1, kKey, two));
  CHECK(first.Ask(1, nullptr).what() == Asked::kGone);
}

TEST(what_a_lost_connection_had_brought_stays) {
  auto producer = std::make_unique<Producer>();
  Consumer consumer(producer->address);
  consumer.Ask(1, consumer.order);
  CHECK(producer->Push(2));
  WaitForPushes(producer.get(), &consumer, 3);
  const auto waiting = std::make_shared<TestWaiter>();
  Pushed here;
  CHECK(consumer.inbox->Expect(4, consumer.order, kKey, waiting, &here) == Expected::kWait);
  producer.reset();
  CHECK(!waiting->lost.Wait().ok());
  CHECK_EQ(ValueOf(consumer.Take(2)), 2.0f);
  // The order is given again on the next connection.
  CHECK(consumer.inbox->Expect(5, consumer.order, kKey, waiting, &here) == Expected::kAsk);
}

// A request with the order may leave over the next connection, and the producer then follows it.
TEST(an_order_whose_connection_is_lost_before_it_is_sent_is_still_known) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.inbox->OnLost(wire::Status(wire::Code::kUnavailable, "lost"));
  CHECK_EQ(consumer.Ask(1, consumer.order).accepted, 1);
  CHECK(producer.Push(2));
  CHECK(consumer.inbox->OrderFor(kScope, kKey) == consumer.order);
  CHECK_EQ(ValueOf(consumer.Take(2)), 2.0f);
}

TEST(what_is_pushed_for_a_step_that_has_ended_is_dropped) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  for (const int64_t step : {int64_t{20}, int64_t{-20}}) {  // functions have negative step ids
    consumer.steps->ended.Add(step);
    CHECK(producer.Push(step, kScope, 1 << 20));
    WaitForPushes(&producer, &consumer, step + 1);
    CheckNothingIsKept(&consumer, step);
  }
}

TEST(what_is_not_taken_goes_when_its_step_ends) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  for (const int64_t step : {int64_t{20}, int64_t{-20}}) {
    CHECK(producer.Push(step));
    WaitForPushes(&producer, &consumer, step + 1);
    consumer.steps->ended.Add(step);
    consumer.inbox->EndStep(step);
    CheckNothingIsKept(&consumer, step);
  }
}

TEST(what_arrives_while_its_step_ends_is_not_kept) {
  const auto steps = std::make_shared<PushInbox::Steps>();
  const auto inbox = std::make_shared<PushInbox>(std::weak_ptr<wire::Channel>(), steps);
  inbox->OrderFor(kScope, kKey);
  const auto order = inbox->OrderFor(kScope, kKey);
  const auto waiter = std::make_shared<TestWaiter>();
  constexpr int64_t kSteps = 20'000;
  std::atomic<int64_t> prepared{0};
  std::atomic<int64_t> begun{0};
  std::atomic<int64_t> arrived{0};
  auto wait_for = [](const std::atomic<int64_t>& number, int64_t step) {
    while (number.load() != step) std::this_thread::yield();
  };
  std::thread reactor([&] {
    for (int64_t step = 1; step <= kSteps; ++step) {
      const auto call = inbox->BeginFromReactor(order->number());
      std::vector<wire::MutableBuffer> into;
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
    wait_for(prepared, step);
    begun.store(step);
    for (std::atomic<int64_t> spins{0}; spins < step % 256;) ++spins;
    steps->ended.Add(step);
    inbox->EndStep(step);
    wait_for(arrived, step);
    Pushed here;
    CHECK(inbox->Expect(step, order, kKey, waiter, &here) == Expected::kWait);
    inbox->Forget(step, order, kKey);
  }
  reactor.join();
}

TEST(a_push_that_does_not_come_is_asked_for) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  WaitForPushes(&producer, &consumer, 2);
  Pushed here;
  CHECK(consumer.Expect(3, &here) == Expected::kWait);
  CHECK(consumer.waiter->asks.Wait());
}

TEST(orders_and_notes_end_with_session_and_step) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  CHECK(producer.Push(2));
  producer.orders().EndStep(2);
  CHECK(consumer.Ask(2, nullptr).what() == Asked::kInRendezvous);
  producer.orders().EndScope(kScope);
  CHECK(!producer.Push(3));
  consumer.inbox->EndScope(kScope);
  CHECK(consumer.inbox->OrderFor(kScope, kKey) != consumer.order);
}

// A step that is under way when its session is closed still gets its tensors.
TEST(an_order_of_a_closed_session_serves_who_waits) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  CHECK(producer.Push(2));
  WaitForPushes(&producer, &consumer, 3);
  consumer.inbox->Forget(3, consumer.order, kKey);
  consumer.waiter = std::make_shared<TestWaiter>();
  Pushed here;
  CHECK(consumer.Expect(4, &here) == Expected::kWait);
  consumer.inbox->EndScope(kScope);
  CHECK(producer.Push(4));
  CHECK_EQ(ValueOf(consumer.waiter->came.Wait()), 4.0f);
  consumer.inbox->Forget(4, consumer.order, kKey);
  CHECK(consumer.Expect(2, &here) == Expected::kHere);
  CHECK_EQ(ValueOf(here), 2.0f);
  // Now it serves nobody.
  CHECK(consumer.inbox->BeginFromReactor(consumer.order->number()) == nullptr);
  CHECK_EQ(consumer.steps->inboxes_with_parked.load(), 0);
}

TEST(a_task_counts_the_inboxes_in_which_pushes_wait) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  CHECK(producer.Push(2));
  CHECK(producer.Push(3));
  WaitForPushes(&producer, &consumer, 4);
  CHECK_EQ(consumer.steps->inboxes_with_parked.load(), 1);
  consumer.inbox->EndStep(2);
  CHECK_EQ(consumer.steps->inboxes_with_parked.load(), 1);
  consumer.Take(3);
  CHECK_EQ(consumer.steps->inboxes_with_parked.load(), 0);
}

// The copy to the host of a tensor that was to be pushed has failed.
TEST(what_was_reserved_and_is_released_can_be_requested) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  const auto reserved = producer.orders().Reserve(2, kScope, kKey);
  CHECK(static_cast<bool>(reserved));
  producer.orders().Release(reserved);
  CHECK(consumer.Ask(2, nullptr).what() == Asked::kInRendezvous);
}

TEST(who_asks_without_the_order_gets_what_was_pushed_before_it_waited) {
  Producer producer;
  Consumer consumer(producer.address);
  CHECK_EQ(consumer.Ask(1, consumer.order).accepted, 1);
  CHECK(producer.Push(2));
  WaitForPushes(&producer, &consumer, 3);
  // Another step gave the order after this step had looked it up.
  Pushed here;
  auto waiter = std::make_shared<TestWaiter>();
  CHECK(consumer.inbox->Expect(2, /*order=*/nullptr, kKey, waiter, &here) == Expected::kAsk);
  CHECK(consumer.Ask(2, nullptr).what() == Asked::kOnItsWay);
  consumer.inbox->Promise(2, /*order=*/nullptr, kKey);
  CHECK_EQ(ValueOf(waiter->came.Wait()), 2);
}

TEST(nothing_is_pushed_outside_of_steps) {
  Producer producer;
  Consumer consumer(producer.address);
  consumer.Ask(1, consumer.order);
  CHECK(consumer.Ask(kNoStep, consumer.order).accepted == 0);
  CHECK(!producer.Push(kNoStep));
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
