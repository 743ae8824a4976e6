// Resources that the system refuses: descriptors and threads.

#include <pthread.h>

#include <memory>
#include <string>
#include <vector>

#include "by_hand.h"
#include "check.h"
#include "harness.h"
#include "reactor.h"
#include "shared_memory.h"
#include "socket.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

constexpr const char* kWayOut = "Too many open files; raise this process's limit (ulimit -n)";

EngineOptions Options(int reactors) {
  EngineOptions options;
  options.reactors = reactors;
  options.executor = [](const std::function<void()>& closure) { closure(); };
  return options;
}

TEST(an_engine_that_gets_too_few_descriptors_says_what_to_raise_and_keeps_none) {
  constexpr size_t kNeeded = 2 * 3;  // three per reactor
  // Descriptors may run out between two reactors or within one.
  for (size_t free = 0; free <= kNeeded; ++free) {
    std::unique_ptr<Engine> engine;
    const FewDescriptors few(free);
    const Status status = Engine::Create(Options(2), &engine);
    CHECK_EQ(status.ok(), free == kNeeded);
    if (status.ok()) continue;
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(Contains(status.message(), kWayOut));
    CHECK(engine == nullptr);
  }
}

TEST(a_port_cannot_be_opened_without_descriptors_and_can_be_afterwards) {
  Task ps("ps:0");
  int port = 0;
  {
    const FewDescriptors few(0);
    const Status status = ps.engine->Listen("127.0.0.1", 0, ps.handler, &port);
    CHECK(status.code() == Code::kUnavailable);
    CHECK(Contains(status.message(), "cannot listen on 127.0.0.1:0: "));
    CHECK(Contains(status.message(), kWayOut));
    CHECK(ps.engine->Listen("", 0, ps.handler, &port).code() == Code::kUnavailable);
  }
  ps.Listen();
}

TEST(a_call_without_descriptors_fails_with_the_way_out_and_the_next_is_served) {
  Task ps("ps:0");
  Task worker("worker:0");
  const auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  {
    const FewDescriptors few(0);
    const Status status = Get(Begin(*channel, kEcho, "")).status;
    CHECK(status.code() == Code::kUnavailable);
    CHECK(Contains(status.message(), "failed to connect to all addresses; last error: "));
    CHECK(Contains(status.message(), kWayOut));
  }
  CHECK_EQ(Get(Begin(*channel, kEcho, "again")).metadata, "again");
}

TEST(a_name_that_cannot_be_looked_up_without_descriptors_does_not_look_like_a_wrong_one) {
  const FewDescriptors few(0);
  std::vector<SocketAddress> addresses;
  const Status status = Resolve("localhost", 1, /*passive=*/false, &addresses);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "cannot resolve \"localhost\": "));
  CHECK(Contains(status.message(), kWayOut));
}

TEST(memory_that_cannot_be_shared_is_the_pool_s_own) {
  const FewDescriptors few(0);
  BufferPool::Options options;
  options.shared = true;
  BufferPool pool(options);
  CHECK(pool.shared_memory() == nullptr);
  void* const block = pool.Acquire(1000);
  CHECK(block != nullptr);
  CHECK(pool.Owns(block));
  pool.Release(block);
  CHECK(!pool.Owns(block));
}

// While it lives, no thread can be started: each would have a stack larger than any machine's
// memory.
class NoThreads {
 public:
  NoThreads() {
    CHECK_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    CHECK_EQ(pthread_attr_init(&huge), 0);
    CHECK_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
    CHECK_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(a_connection_whose_socket_cannot_be_watched_is_closed) {
  Served served;
  served.Say(HelloFrame("worker:0", "ps:0") + Frame(FrameKind::kRequest, 1, kNever));
  served.world.RunUntil([&] { return served.handler->kept.size() == 1; });
  const auto connection = served.connection.lock();
  served.world.reactor()->Post([&] {
    served.world.reactor()->UnwatchFromReactor(served.fd, connection.get());
    CHECK(!served.world.reactor()->ModifyFromReactor(served.fd, 0, connection.get()).ok());
  });
  Message reply;
  reply.SetOwnedPayload(std::string(8u << 20, 'r'));  // more than the socket takes
  served.handler->kept[0].Reply(std::move(reply));
  served.handler->kept.clear();
  served.world.RunUntil([&] { return connection->closed(); });
}

TEST(an_engine_that_gets_no_thread_says_so) {
  std::unique_ptr<Engine> engine;
  {
    const NoThreads none;
    const Status status = Engine::Create(Options(1), &engine);
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(Contains(status.message(), "cannot start a thread for a reactor"));
  }
  CHECK(Engine::Create(Options(1), &engine).ok());
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
