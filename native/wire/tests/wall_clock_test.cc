// The machine's clock is set. This must not affect deadlines and connections.

#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "check.h"
#include "harness.h"

namespace {

std::atomic<time_t> jump_s{0};
std::atomic<int> readings{0};

}  // namespace

// Replaces the C library's function, for the engine, too: the wall clock has jumped.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += jump_s;
    ++readings;
  }
  return static_cast<int>(result);
}

namespace tensorwire::wire {
namespace {

constexpr time_t kDayS = 86'400;
constexpr int kSilentMs = kSanitized ? 1500 : 600;

void Impatient(EngineOptions* options) {
  options->ping_after_ms = kSilentMs / 4;
  options->silent_timeout_ms = kSilentMs;
}

TEST(a_clock_that_jumps_by_days_ends_no_connection_and_moves_no_deadline) {
  jump_s = kDayS;
  const int before = readings;
  CHECK(std::chrono::system_clock::now().time_since_epoch().count() != 0);
  CHECK(readings > before);  // our function is called

  Task ps("ps:0", 1, Impatient);
  Task worker("worker:0", 1, Impatient);
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
  for (const time_t jump : {-kDayS, 365 * kDayS}) {
    CallOptions options;
    options.deadline_ms = 200;
    const int64_t begin = SteadyMs();
    auto late = Begin(*channel, kNever, "", "", options);
    auto waiting = Begin(*channel, kNever, "");
    jump_s = jump;
    CHECK(Get(std::move(late)).status.code() == Code::kDeadlineExceeded);
    CHECK(SteadyMs() - begin >= 200);
    CHECK(SteadyMs() - begin < 5000);
    // Longer than a peer may be silent, so both are pinged and answer.
    SleepMs(kSilentMs * 3 / 2);
    CHECK(waiting.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
    CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
  }
  CHECK_EQ(worker.engine->stats().peers.at(0).connects, 1u);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
