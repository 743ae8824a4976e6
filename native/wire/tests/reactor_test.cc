#include "reactor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "by_hand.h"
#include "check.h"
#include "context.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

// Counts the values of an eventfd.
class Counter : public EventTarget {
 public:
  Counter() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  void OnEventsFromReactor(uint32_t) override {
    uint64_t count = 0;
    if (::read(fd_.get(), &count, sizeof(count)) == sizeof(count)) seen += static_cast<int>(count);
  }
  void OnStopFromReactor() override { ++stopped; }
  void Signal() {
    const uint64_t one = 1;
    CHECK_EQ(::write(fd_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  int fd() const { return fd_.get(); }

  std::atomic<int> seen{0};
  std::atomic<int> stopped{0};

 private:
  Fd fd_;
};

void Watch(Reactor& reactor, const std::shared_ptr<Counter>& counter) {
  std::promise<void> watched;
  reactor.Post([&] {
    CHECK(reactor.WatchFromReactor(counter->fd(), EPOLLIN, counter).ok());
    watched.set_value();
  });
  watched.get_future().get();
}

TEST(what_is_posted_runs_in_its_order_on_the_reactor) {
  for (const bool polling : {false, true}) {
    EngineOptions options;
    options.polling = polling;
    Reactor reactor(0, options);
    CHECK(reactor.Start().ok());
    std::vector<int> order;
    std::promise<void> done;
    for (int i = 0; i < 100; ++i) {
      reactor.Post([&, i] {
        CHECK(reactor.IsCurrentThread());
        order.push_back(i);
        if (i == 99) done.set_value();
      });
    }
    done.get_future().get();
    CHECK_EQ(order.size(), 100u);
    for (int i = 0; i < 100; ++i) CHECK_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(no_post_is_slept_through) {
  const EngineOptions options;
  Reactor reactor(0, options);
  CHECK(reactor.Start().ok());
  std::atomic<int> ran{0};
  for (int i = 1; i <= 2000; ++i) {
    reactor.Post([&] { ++ran; });
    const int64_t patience = SteadyMs() + 10'000;
    while (i % 3 == 0 && ran < i) {
      CHECK(SteadyMs() < patience);
      std::this_thread::yield();
    }
  }
}

TEST(a_task_that_posts_itself_again_does_not_starve_sockets_and_timers) {
  const EngineOptions options;
  Reactor reactor(0, options);
  CHECK(reactor.Start().ok());
  auto counter = std::make_shared<Counter>();
  Watch(reactor, counter);
  std::atomic<bool> ended{false};
  std::atomic<bool> timer{false};
  std::function<void()> again = [&] {
    if (!ended) reactor.Post(again);
  };
  reactor.Post(again);
  reactor.Post([&] { reactor.AtFromReactor(NowMs() + 20, [&] { timer = true; }); });
  for (int i = 1; i <= 5; ++i) {
    counter->Signal();
    Eventually([&] { return counter->seen == i; });
  }
  Eventually([&] { return timer.load(); });
  ended = true;
  reactor.Stop();  // before the objects of its last task are destroyed
}

TEST(timers_run_in_the_order_of_their_times) {
  const EngineOptions options;
  Reactor reactor(0, options);
  CHECK(reactor.Start().ok());
  std::vector<int> order;
  std::promise<void> done;
  reactor.Post([&] {
    const int64_t now = NowMs();
    for (const int delay : {30, 10, 20, 0}) {
      reactor.AtFromReactor(now + delay, [&, delay] {
        order.push_back(delay);
        if (delay == 30) done.set_value();
      });
    }
  });
  done.get_future().get();
  CHECK(order == (std::vector<int>{0, 10, 20, 30}));
}

TEST(what_is_posted_lazily_runs_a_little_later) {
  const EngineOptions options;
  Reactor reactor(0, options);
  CHECK(reactor.Start().ok());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ran{0};
    for (int i = 0; i < 5; ++i) reactor.PostLazily([&] { ++ran; });
    Eventually([&] { return ran == 5; });
  }
}

TEST(stopping_tells_each_target_once_and_lets_go_of_it) {
  const EngineOptions options;
  Reactor reactor(0, options);
  CHECK(reactor.Start().ok());
  auto counter = std::make_shared<Counter>();
  Watch(reactor, counter);
  reactor.Stop();
  reactor.Stop();
  CHECK_EQ(counter->stopped.load(), 1);
  CHECK_EQ(counter.use_count(), 1);
}

TEST(what_is_posted_while_it_stops_is_let_go_of) {
  for (int round = 0; round < 50; ++round) {
    auto captured = std::make_shared<int>(0);
    const EngineOptions options;
    Reactor reactor(0, options);
    CHECK(reactor.Start().ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 300; ++i) {
          if (t == 0) {
            reactor.PostLazily([captured] {});
          } else {
            reactor.Post([captured] {});
          }
        }
      });
    }
    reactor.Stop();
    for (auto& thread : threads) thread.join();
    CHECK_EQ(captured.use_count(), 1);
  }
}

TEST(a_reactor_is_busy_while_it_works_and_not_while_it_waits) {
  for (const bool polling : {false, true}) {
    EngineOptions options;
    options.polling = polling;
    Reactor reactor(0, options);
    CHECK(reactor.Start().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const uint64_t idle_us = reactor.busy_us();
    CHECK(idle_us < 50'000);
    reactor.Post([] {
      const int64_t until = NowUs() + 50'000;
      while (NowUs() < until) {
      }
    });
    while (reactor.busy_us() < idle_us + 50'000) {  // the test's time limit ends it
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    reactor.Stop();
  }
}

TEST(accepted_connections_take_the_seats_that_closed_ones_have_left) {
  Context context{EngineOptions()};
  for (int i = 0; i < 4; ++i) {
    context.reactors.push_back(std::make_unique<Reactor>(i, context.options));
  }
  const auto accept = [&] { return std::make_unique<Counted>(&context.NextAccepting()->seats); };
  std::vector<std::unique_ptr<Counted>> seats;
  for (int i = 0; i < 8; ++i) seats.push_back(accept());
  for (const auto& reactor : context.reactors) CHECK_EQ(reactor->seats.load(), 2);
  // In turn, so these two belong to one reactor.
  seats[1].reset();
  seats[5].reset();
  seats[1] = accept();
  seats[5] = accept();
  for (const auto& reactor : context.reactors) CHECK_EQ(reactor->seats.load(), 2);
}

// Looks, in its turn, whether something can be read.
class Look : public Counter {
 public:
  explicit Look(int fd) : fd_(fd) {}
  void OnEventsFromReactor(uint32_t) override {
    pollfd wait{fd_, POLLIN, 0};
    readable = ::poll(&wait, 1, 0) > 0;
  }
  void OnStopFromReactor() override {}
  bool readable = false;

 private:
  const int fd_;
};

TEST(a_reply_does_not_wait_until_much_has_been_read_from_other_connections) {
  World world;
  const auto handler = std::make_shared<AtOnceHandler>();
  std::vector<RawStream> clients;
  std::vector<std::weak_ptr<Connection>> connections;
  for (int i = 0; i < 40; ++i) {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    clients.emplace_back(Fd(ends[1]));
    CHECK(clients.back().Send(HelloFrame("worker:0", "ps:0")));
    auto connection =
        std::make_shared<Connection>(world.context, world.reactor(), Fd(ends[0]), "127.0.0.1:1");
    connections.push_back(connection);
    world.reactor()->Post([&world, connection, handler] {
      Session::OpenFromReactor(connection,
                               std::make_shared<Session>(world.context, connection, handler));
    });
  }
  size_t greeted = 0;
  world.RunUntil([&] {
    if (clients[greeted].ReadSome(1000, 0).empty()) return false;
    return ++greeted == clients.size();
  });
  auto look = std::make_shared<Look>(clients[0].fd());
  world.reactor()->Post(
      [&] { CHECK(world.reactor()->WatchFromReactor(look->fd(), EPOLLIN, look).ok()); });
  world.reactor()->TurnFromReactor();

  CHECK(clients[0].Send(Frame(FrameKind::kRequest, 1, kEcho, "x")));
  const std::string part = Frame(FrameKind::kRequest, 1, kNever, "", std::string(150'000, 'p'));
  for (size_t i = 1; i < clients.size(); ++i) CHECK(clients[i].Send(part));
  look->Signal();
  world.reactor()->TurnFromReactor();
  CHECK_EQ(handler->kept.size(), clients.size() - 1);  // all of it was one turn
  CHECK(look->readable);
  handler->kept.clear();
  clients.clear();
  world.RunUntil([&] {
    return std::all_of(connections.begin(), connections.end(),
                       [](const auto& connection) { return connection.expired(); });
  });
}

struct Ending : FrameReceiver {
  Status OnHeadFromReactor(std::string_view, InFrame*) override { return Status(); }
  Status OnFrameFromReactor(InFrame*) override { return Status(); }
  void OnClosedFromReactor(const Status& status, InFrame*) override { why = status; }
  Status why;
};

// On loopback, the kernel may give the port that is asked for to the client's own end.
TEST(a_socket_that_has_connected_to_itself_has_reached_nobody) {
  World world;
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
  ConnectTo(ToString(OwnAddress(fd.get())), fd);
  const auto ending = std::make_shared<Ending>();
  const auto connection =
      std::make_shared<Connection>(world.context, world.reactor(), std::move(fd), "127.0.0.1:1");
  world.reactor()->Post(
      [&] { CHECK(connection->OpenFromReactor(ending, /*connecting=*/true).ok()); });
  world.RunUntil([&] { return connection->closed(); });
  CHECK(ending->why.code() == Code::kUnavailable);
  CHECK(Contains(ending->why.message(), "Connection refused"));
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
