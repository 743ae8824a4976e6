// Replaces the C library's clock in a process that is started with LD_PRELOAD: a wall clock that is
// set while the process runs. The file that TENSORWIRE_CLOCK_FILE names has the clock's offset in
// seconds, as a number of 8 bytes. A thread that waits for a time on this clock checks it often,
// because the kernel would wake the thread when the clock is set.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int64_t kNs = 1'000'000'000;
constexpr int64_t kLookNs = kNs / 20;
// Times of the steady clock count from the start of the machine and are far smaller.
constexpr time_t kWallClockS = 1'000'000'000;

volatile int64_t* Jump() {
  static volatile int64_t* const jump = [] {
    const int file = open(getenv("TENSORWIRE_CLOCK_FILE"), O_RDONLY | O_CLOEXEC);
    return static_cast<volatile int64_t*>(
        mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0));
  }();
  return jump;
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
using SystemCall = long (*)(long, ...);
SystemCall Kernel() {
  static const auto call = Next<SystemCall>("syscall");
  return call;
}
int64_t Ns(const timespec& time) { return time.tv_sec * kNs + time.tv_nsec; }

int64_t TrueNowNs() {
  timespec now;
  Kernel()(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return Ns(now);
}

bool IsOver(const timespec& until) { return Ns(until) <= TrueNowNs() + *Jump() * kNs; }

// The true time until which to wait before `until` is checked again.
timespec NextLook(const timespec& until) {
  const int64_t now = TrueNowNs();
  const int64_t left = Ns(until) - now - *Jump() * kNs;
  const int64_t look = now + (left < 0 ? 0 : left < kLookNs ? left : kLookNs);
  return {look / kNs, look % kNs};
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = Kernel()(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += *Jump();
  }
  return static_cast<int>(result);
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  *now = {exact.tv_sec, exact.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now != nullptr) *now = exact.tv_sec;
  return exact.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  static const auto wait = Next<Wait>("pthread_cond_timedwait");
  if (until->tv_sec < kWallClockS) return wait(condition, mutex, until);
  const timespec look = NextLook(*until);
  const int result = wait(condition, mutex, &look);
  return result == ETIMEDOUT && !IsOver(*until) ? 0 : result;  // spurious wake-ups are allowed
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  const auto* until = reinterpret_cast<const timespec*>(a[3]);
  if (number != SYS_futex || (a[1] & FUTEX_CMD_MASK) != FUTEX_WAIT_BITSET ||
      (a[1] & FUTEX_CLOCK_REALTIME) == 0 || until == nullptr) {
    return Kernel()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  const timespec look = NextLook(*until);
  const long result = Kernel()(number, a[0], a[1], a[2], &look, a[4], a[5]);
  if (result == -1 && errno == ETIMEDOUT && !IsOver(*until)) errno = EINTR;
  return result;
}

}  // extern "C"
