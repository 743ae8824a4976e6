// A peer's name: several addresses, addresses that are stale, and a name service that is slow.

#include <netdb.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "harness.h"

namespace {

// Stands in for the name service: returns the IPv4 addresses of a name.
std::mutex names_mutex;
std::function<std::vector<std::string>()> names;  // NOLINT

}  // namespace

// Replaces the C library's.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints,
                           addrinfo** out) {
  std::vector<std::string> addresses{host == nullptr ? "0.0.0.0" : host};
  if (in_addr any; inet_pton(AF_INET, addresses[0].c_str(), &any) != 1) {
    std::unique_lock lock(names_mutex);
    const auto answer = names;
    lock.unlock();
    addresses = answer();
  }
  addrinfo** last = out;
  for (const std::string& address : addresses) {
    auto* const entry = new addrinfo(*hints);
    auto* const to = new sockaddr_in{};
    to->sin_family = AF_INET;
    to->sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    inet_pton(AF_INET, address.c_str(), &to->sin_addr);
    entry->ai_addr = reinterpret_cast<sockaddr*>(to);
    entry->ai_addrlen = sizeof(*to);
    *last = entry;
    last = &entry->ai_next;
  }
  *last = nullptr;
  return 0;
}

extern "C" void freeaddrinfo(addrinfo* list) {
  while (list != nullptr) {
    delete reinterpret_cast<sockaddr_in*>(list->ai_addr);
    delete std::exchange(list, list->ai_next);
  }
}

namespace tensorwire::wire {
namespace {

void Answer(std::function<std::vector<std::string>()> answer) {
  std::lock_guard lock(names_mutex);
  names = std::move(answer);
}

void Answer(const std::vector<std::string>& addresses) {
  Answer([addresses] { return addresses; });
}

std::function<void(EngineOptions*)> ConnectTimeout(int ms) {
  return [ms](EngineOptions* options) { options->connect_timeout_ms = ms; };
}

// Listens at another address of loopback.
std::string ListenAt(Task& task, const std::string& host, int port) {
  int bound = 0;
  CHECK(task.engine->Listen(host, port, task.handler, &bound).ok());
  return std::to_string(bound);
}

TEST(an_address_that_does_not_answer_does_not_hold_up_the_next) {
  // A listener whose queue is full does not answer further connections.
  Task ps("ps:0");
  const std::string port = ListenAt(ps, "127.0.0.2", 0);
  Fd silent;
  int bound = 0;
  CHECK(ListenOn("127.0.0.1", std::stoi(port), &silent, &bound).ok());
  CHECK_EQ(::listen(silent.get(), /*backlog=*/0), 0);
  SocketAddress address;
  address.length = sizeof(sockaddr_in);
  CHECK_EQ(
      getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length), 0);
  std::vector<Fd> queued(4);
  for (Fd& fd : queued) CHECK(BeginConnect(address, &fd).ok());

  Answer({"127.0.0.1", "127.0.0.2"});
  Task worker("worker:0", 1, ConnectTimeout(300'000));  // longer than Get waits
  const auto channel = worker.engine->Connect("name.test:" + port, "ps:0");
  CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
}

TEST(an_address_where_another_task_is_now_does_not_keep_a_peer_from_being_found) {
  Task other("ps:7");
  Task ps("ps:0");
  const std::string port = ListenAt(ps, "127.0.0.2", 0);
  ListenAt(other, "127.0.0.1", std::stoi(port));
  Answer({"127.0.0.1", "127.0.0.2"});
  Task worker("worker:0");
  const auto channel = worker.engine->Connect("name.test:" + port, "ps:0");
  CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
}

TEST(a_name_whose_addresses_refuse_is_asked_for_once_more) {
  Task other("ps:7");
  Task ps("ps:0");
  const std::string port = ListenAt(ps, "127.0.0.2", 0);
  ListenAt(other, "127.0.0.1", std::stoi(port));
  std::atomic<int> asked{0};
  Answer([&] { return std::vector<std::string>{asked++ == 0 ? "127.0.0.1" : "127.0.0.2"}; });
  Task worker("worker:0");
  const auto channel = worker.engine->Connect("name.test:" + port, "ps:0");
  CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
  CHECK_EQ(asked.load(), 2);
}

TEST(a_name_that_leads_to_another_task_is_unavailable_as_it_may_change) {
  Task other("ps:7");
  const std::string port = ListenAt(other, "127.0.0.1", 0);
  Answer({"127.0.0.1"});
  Task worker("worker:0");
  const auto channel = worker.engine->Connect("name.test:" + port, "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "wants ps:0, and this is ps:7"));
  // An address as a number cannot come to mean another task.
  const auto numeric = worker.engine->Connect("127.0.0.1:" + port, "ps:0");
  CHECK(Get(Begin(*numeric, kEcho, "")).status.code() == Code::kFailedPrecondition);
}

TEST(a_slow_name_service_takes_no_time_from_connecting) {
  constexpr int kTimeoutMs = 400;
  const RawServer silent;  // accepts, and never answers
  const std::string port = silent.address().substr(silent.address().rfind(':') + 1);
  std::atomic<int64_t> answered_ms{0};
  Answer([&] {
    SleepMs(kTimeoutMs / 2);
    answered_ms = SteadyMs();
    return std::vector<std::string>{"127.0.0.1"};
  });
  Task worker("worker:0", 1, ConnectTimeout(kTimeoutMs));
  const auto channel = worker.engine->Connect("name.test:" + port, "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(Contains(status.message(), "no answer"));
  CHECK(SteadyMs() - answered_ms >= kTimeoutMs - 1);
}

TEST(a_silent_name_service_is_unavailable_after_the_time_for_connecting) {
  std::promise<void> answered;
  auto go = answered.get_future().share();
  Answer([go] {
    go.wait();
    return std::vector<std::string>{"127.0.0.1"};
  });
  Task ps("ps:0");
  Task worker("worker:0", 1, ConnectTimeout(100));
  const auto channel = worker.engine->Connect("name.test:1", "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "the name service is silent"));
  // Other peers are served meanwhile.
  const auto other = worker.engine->Connect(ps.Listen(), "ps:0");
  CHECK(Get(Begin(*other, kEcho, "")).status.ok());
  answered.set_value();
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
