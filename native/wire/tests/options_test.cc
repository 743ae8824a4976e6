#include "tensorwire/wire/options.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "check.h"

namespace tensorwire::wire {
namespace {

constexpr const char* kVariables[] = {"PS_ENABLE_POLLING",      "WORKER_ENABLE_POLLING",
                                      "NETWORK_PS_CORE_NUMBER", "NETWORK_WORKER_CORE_NUMBER",
                                      "PS_DISABLE_PIN_CORES",   "WORKER_DISABLE_PIN_CORES",
                                      "TENSORWIRE_TRANSPORT",   "TENSORWIRE_CHECKSUM"};

void Clear() {
  for (const char* name : kVariables) unsetenv(name);
}

int Cores() {
  cpu_set_t set;
  CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return CPU_COUNT(&set);
}

EngineOptions Read(const std::string& job, int connections) {
  EngineOptions options;
  const Status status = ReadEnvironment(job, connections, &options);
  if (!status.ok()) check::Fail(__FILE__, __LINE__, status.message());
  return options;
}

TEST(without_variables_threads_follow_connections_and_cores) {
  Clear();
  for (int peers : {0, 1, 2, 3, 5, 200}) {
    const int connections = 2 * std::max(1, peers);
    CHECK_EQ(Read("ps", peers).reactors, std::min({8, connections, Cores()}));
    CHECK_EQ(Read("worker", peers).reactors, std::min(2, Cores()));
  }
  CHECK(!Read("ps", 1).polling);
  CHECK(!Read("ps", 1).pin);
  CHECK(!Read("worker", 1).polling);
  CHECK(!Read("worker", 1).pin);
}

TEST(each_job_has_its_own_variables) {
  Clear();
  setenv("NETWORK_PS_CORE_NUMBER", "10", 1);
  setenv("NETWORK_WORKER_CORE_NUMBER", "4", 1);
  setenv("PS_ENABLE_POLLING", "True", 1);
  setenv("WORKER_DISABLE_PIN_CORES", "False", 1);
  CHECK_EQ(Read("ps", 1).reactors, 10);
  CHECK(Read("ps", 1).polling);
  CHECK(!Read("ps", 1).pin);
  // To the transport, chief, evaluator and other jobs are workers.
  for (const char* job : {"worker", "chief", "evaluator", "master"}) {
    CHECK_EQ(Read(job, 1).reactors, 4);
    CHECK(!Read(job, 1).polling);
    CHECK(Read(job, 1).pin);
  }
}

TEST(truth_is_read_as_its_users_write_it) {
  Clear();
  for (const char* yes : {"True", "true", "TRUE", "1"}) {
    setenv("PS_ENABLE_POLLING", yes, 1);
    CHECK(Read("ps", 1).polling);
  }
  for (const char* no : {"False", "false", "FALSE", "0", ""}) {
    setenv("PS_ENABLE_POLLING", no, 1);
    CHECK(!Read("ps", 1).polling);
  }
}

TEST(a_value_that_cannot_be_read_names_its_variable) {
  struct Case {
    const char* job;
    const char* name;
    const char* value;
  };
  for (const Case& bad :
       {Case{"ps", "PS_ENABLE_POLLING", "yes please"}, Case{"worker", "WORKER_ENABLE_POLLING", "2"},
        Case{"ps", "PS_DISABLE_PIN_CORES", "maybe"},
        Case{"worker", "WORKER_DISABLE_PIN_CORES", "-"}, Case{"ps", "NETWORK_PS_CORE_NUMBER", "0"},
        Case{"ps", "NETWORK_PS_CORE_NUMBER", "-1"}, Case{"ps", "NETWORK_PS_CORE_NUMBER", "257"},
        Case{"worker", "NETWORK_WORKER_CORE_NUMBER", "two"},
        Case{"worker", "NETWORK_WORKER_CORE_NUMBER", "2.5"},
        Case{"worker", "NETWORK_WORKER_CORE_NUMBER", " 2"},
        Case{"worker", "NETWORK_WORKER_CORE_NUMBER", "99999999999999"}}) {
    Clear();
    setenv(bad.name, bad.value, 1);
    EngineOptions options;
    const Status status = ReadEnvironment(bad.job, 4, &options);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find(std::string(bad.name) + "=" + bad.value) != std::string::npos);
    CHECK(status.message().find("expected") != std::string::npos);
    // The variable does not concern the other job.
    CHECK(ReadEnvironment(std::string(bad.job) == "ps" ? "worker" : "ps", 4, &options).ok());
  }
  Clear();
}

TEST(a_cpu_set_smaller_than_the_machine_bounds_the_default_and_not_the_wish) {
  Clear();
  std::thread([] {
    cpu_set_t all;
    CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    CHECK_EQ(Read("ps", 100).reactors, 1);
    CHECK_EQ(Read("worker", 100).reactors, 1);
    setenv("NETWORK_PS_CORE_NUMBER", "3", 1);
    CHECK_EQ(Read("ps", 100).reactors, 3);
  }).join();
  Clear();
}

TEST(a_peer_that_may_be_silent_for_so_long_is_asked_after_a_third_of_it) {
  Clear();
  CHECK_EQ(Read("ps", 1).silent_timeout_ms, 30'000);
  CHECK_EQ(Read("ps", 1).ping_after_ms, 10'000);
  setenv("TENSORWIRE_PEER_TIMEOUT_S", "6", 1);
  CHECK_EQ(Read("worker", 1).silent_timeout_ms, 6'000);
  CHECK_EQ(Read("worker", 1).ping_after_ms, 2'000);
  unsetenv("TENSORWIRE_PEER_TIMEOUT_S");
}

TEST(the_transport_is_read_and_a_wrong_one_named_with_the_right_ones) {
  Clear();
  CHECK(Read("ps", 1).transport == Transport::kAuto);
  setenv("TENSORWIRE_TRANSPORT", "tcp", 1);
  CHECK(Read("ps", 1).transport == Transport::kTcp);
  setenv("TENSORWIRE_TRANSPORT", "memory", 1);
  CHECK(Read("worker", 1).transport == Transport::kMemory);
  setenv("TENSORWIRE_TRANSPORT", "Memory", 1);
  EngineOptions options;
  const Status status = ReadEnvironment("ps", 1, &options);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("expected auto, tcp or memory") != std::string::npos);
  Clear();
}

TEST(checksums_are_off_unless_asked_for_and_do_not_go_with_memory_only) {
  Clear();
  CHECK(!Read("ps", 1).checksum);
  setenv("TENSORWIRE_CHECKSUM", "1", 1);
  CHECK(Read("ps", 1).checksum);
  CHECK(Read("worker", 1).checksum);
  setenv("TENSORWIRE_TRANSPORT", "memory", 1);
  EngineOptions options;
  const Status status = ReadEnvironment("ps", 1, &options);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("TENSORWIRE_CHECKSUM=1") != std::string::npos);
  CHECK(status.message().find("TENSORWIRE_TRANSPORT=memory") != std::string::npos);
  Clear();
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
