#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "kernel.h"
#include "simulator.h"

// Functions that the linker substitutes for the C library's (system_calls.txt). In a simulated
// process they run the simulated form, everywhere else the real one.

using namespace tensorwire::simulation;  // NOLINT

namespace {

constexpr size_t kMemoryBytes = 48u << 20;  // of a machine; the pool's range is four times as large
// A writer looks 64 times for a frame before it lets other threads run.
constexpr int kMostYields = 640;

// The beginning of every system call: it takes time, and other fibers may run.
void Enter() {
  current->yields = 0;
  world->now_ns += world->call_ns;
  Point();
}

int Failed(int error) {
  errno = error;
  return -1;
}

int Outcome(int error) { return error == 0 ? 0 : Failed(error); }

bool Interrupted() {
  return world->interrupt_one_in > 0 && world->random.OneIn(world->interrupt_one_in);
}

bool NoDescriptors() {
  if (world->descriptor_failure_one_in == 0 ||
      !world->random.OneIn(world->descriptor_failure_one_in)) {
    return false;
  }
  ++world->failed_calls;
  Trace("no descriptor");
  return true;
}

int64_t Ns(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

sockaddr_in Internet(const sockaddr* address) {
  sockaddr_in out;
  std::memcpy(&out, address, sizeof(out));
  return out;
}

int PutAddress(const sockaddr_in& address, sockaddr* out, socklen_t* length) {
  std::memcpy(out, &address, std::min<size_t>(*length, sizeof(address)));
  *length = sizeof(address);
  return 0;
}

// The name of an abstract Unix socket.
std::string NameOf(const sockaddr* address, socklen_t length) {
  const size_t begin = offsetof(sockaddr_un, sun_path) + 1;
  return {reinterpret_cast<const char*>(address) + begin, length - begin};
}

// Opens a file that another descriptor refers to, as the system does when one is passed.
int OpenAgain(const MemoryFile& file) {
  if (NoDescriptors()) return Failed(EMFILE);
  const int real = dup(file.real);
  return real < 0 ? real : Open(current->process, std::make_shared<MemoryFile>(real));
}

}  // namespace

#define REAL(result, name, ...)                 \
  extern "C" result __real_##name(__VA_ARGS__); \
  extern "C" result __wrap_##name(__VA_ARGS__); \
  extern "C" result __wrap_##name(__VA_ARGS__)
// The rest of a function after OUTSIDE is the simulated form.
#define OUTSIDE(...)                    \
  if (!InProcess()) return __VA_ARGS__; \
  Enter();                              \
  KernelMode kernel

// --- sockets -----------------------------------------------------------------------------------

REAL(int, socket, int domain, int type, int protocol) {
  OUTSIDE(__real_socket(domain, type, protocol));
  if (domain != AF_INET && domain != AF_UNIX) return Failed(EAFNOSUPPORT);
  if (NoDescriptors()) return Failed(EMFILE);
  auto socket = std::make_shared<Socket>();
  socket->machine = current->process->machine;
  socket->is_unix = domain == AF_UNIX;
  const int descriptor = Open(current->process, std::move(socket));
  Trace("socket", descriptor);
  return descriptor;
}

REAL(int, bind, int fd, const sockaddr* address, socklen_t length) {
  OUTSIDE(__real_bind(fd, address, length));
  auto* const socket = FileAs<Socket>(fd);
  return Outcome(socket->is_unix ? socket->BindTo(NameOf(address, length))
                                 : socket->Bind(Internet(address)));
}

REAL(int, listen, int fd, int backlog) {
  OUTSIDE(__real_listen(fd, backlog));
  Trace("listen", fd);
  return Outcome(FileAs<Socket>(fd)->Listen());
}

REAL(int, accept4, int fd, sockaddr* address, socklen_t* length, int flags) {
  OUTSIDE(__real_accept4(fd, address, length, flags));
  if (Interrupted()) return Failed(EINTR);
  auto* const listener = FileAs<Socket>(fd);
  if (listener->Ready() != 0 && NoDescriptors()) return Failed(EMFILE);
  auto socket = listener->Accept();
  if (socket == nullptr) return Failed(EAGAIN);
  const int descriptor = Open(current->process, std::move(socket));
  Trace("accept", fd, descriptor);
  return descriptor;
}

REAL(int, connect, int fd, const sockaddr* address, socklen_t length) {
  OUTSIDE(__real_connect(fd, address, length));
  Trace("connect", fd);
  auto* const socket = FileAs<Socket>(fd);
  if (socket->is_unix) return Outcome(socket->ConnectTo(NameOf(address, length)));
  return Failed(socket->Connect(Internet(address)));
}

REAL(int, getsockname, int fd, sockaddr* address, socklen_t* length) {
  OUTSIDE(__real_getsockname(fd, address, length));
  return PutAddress(FileAs<Socket>(fd)->own, address, length);
}

REAL(int, getpeername, int fd, sockaddr* address, socklen_t* length) {
  OUTSIDE(__real_getpeername(fd, address, length));
  const auto* const socket = FileAs<Socket>(fd);
  if (socket->state != Socket::State::kConnected) return Failed(ENOTCONN);
  return PutAddress(socket->peer, address, length);
}

REAL(int, setsockopt, int fd, int level, int name, const void* value, socklen_t length) {
  OUTSIDE(__real_setsockopt(fd, level, name, value, length));
  if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) {
    unsigned ms = 0;
    std::memcpy(&ms, value, sizeof(ms));
    FileAs<Socket>(fd)->user_timeout_ns = ms * kMs;
  }
  return 0;
}

REAL(int, getsockopt, int fd, int level, int name, void* value, socklen_t* length) {
  OUTSIDE(__real_getsockopt(fd, level, name, value, length));
  if (level == SOL_SOCKET && name == SO_PEERCRED) {
    const ucred peer{current->process->pid, geteuid(), getegid()};
    std::memcpy(value, &peer, sizeof(peer));
    return 0;
  }
  const int error = FileAs<Socket>(fd)->TakeError();
  std::memcpy(value, &error, sizeof(error));
  return 0;
}

REAL(int, shutdown, int fd, int how) {
  OUTSIDE(__real_shutdown(fd, how));
  Trace("shutdown", fd);
  return Outcome(FileAs<Socket>(fd)->Shutdown());
}

REAL(ssize_t, recv, int fd, void* to, size_t bytes, int flags) {
  OUTSIDE(__real_recv(fd, to, bytes, flags));
  if (Interrupted()) return Failed(EINTR);
  const iovec part{to, bytes};
  const ssize_t got = FileAs<Socket>(fd)->Receive(&part, 1, (flags & MSG_PEEK) != 0);
  Trace("recv", fd, got, got < 0 ? errno : 0);
  return got;
}

REAL(ssize_t, recvmsg, int fd, msghdr* message, int flags) {
  OUTSIDE(__real_recvmsg(fd, message, flags));
  if (Interrupted()) return Failed(EINTR);
  auto* const socket = FileAs<Socket>(fd);
  const ssize_t got = socket->Receive(message->msg_iov, message->msg_iovlen, /*peek=*/false);
  const auto passed = got > 0 ? socket->TakePassed() : nullptr;
  const int number = passed == nullptr ? -1 : OpenAgain(static_cast<const MemoryFile&>(*passed));
  if (cmsghdr* const head = CMSG_FIRSTHDR(message); number >= 0) {
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(number));
    std::memcpy(CMSG_DATA(head), &number, sizeof(number));
  } else {
    message->msg_controllen = 0;
  }
  Trace("recvmsg", fd, got, number);
  return got;
}

REAL(ssize_t, readv, int fd, const iovec* parts, int count) {
  OUTSIDE(__real_readv(fd, parts, count));
  if (Interrupted()) return Failed(EINTR);
  const ssize_t got =
      FileAs<Socket>(fd)->Receive(parts, static_cast<size_t>(count), /*peek=*/false);
  Trace("readv", fd, got, got < 0 ? errno : 0);
  return got;
}

REAL(ssize_t, sendmsg, int fd, const msghdr* message, int flags) {
  OUTSIDE(__real_sendmsg(fd, message, flags));
  if (Interrupted()) return Failed(EINTR);
  std::shared_ptr<File> passed;
  if (const cmsghdr* const head = CMSG_FIRSTHDR(message); head != nullptr) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(head), sizeof(number));
    passed = FileAt(current->process, number)->shared_from_this();
  }
  const ssize_t sent =
      FileAs<Socket>(fd)->Send(message->msg_iov, message->msg_iovlen, std::move(passed));
  Trace("sendmsg", fd, sent, sent < 0 ? errno : 0);
  return sent;
}

REAL(ssize_t, send, int fd, const void* from, size_t bytes, int flags) {
  OUTSIDE(__real_send(fd, from, bytes, flags));
  const iovec part{const_cast<void*>(from), bytes};
  return FileAs<Socket>(fd)->Send(&part, 1);
}

// --- other descriptors -------------------------------------------------------------------------

REAL(ssize_t, read, int fd, void* to, size_t bytes) {
  OUTSIDE(__real_read(fd, to, bytes));
  uint64_t value = 0;
  if (auto* const event = FileAs<EventFile>(fd)) {
    value = std::exchange(event->count, 0);
  } else if (auto* const timer = FileAs<TimerFile>(fd)) {
    value = std::exchange(timer->expirations, 0);
  } else {
    return Failed(EBADF);
  }
  Trace("read", fd, static_cast<int64_t>(value));
  if (value == 0) return Failed(EAGAIN);
  std::memcpy(to, &value, std::min(bytes, sizeof(value)));
  return sizeof(value);
}

REAL(ssize_t, write, int fd, const void* from, size_t bytes) {
  OUTSIDE(__real_write(fd, from, bytes));
  auto* const event = FileAs<EventFile>(fd);
  if (event == nullptr) return Failed(EBADF);
  uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  event->count += value;
  Trace("write", fd);
  event->Notify();
  return static_cast<ssize_t>(bytes);
}

REAL(int, close, int fd) {
  if (!InProcess()) return __real_close(fd);
  Enter();
  KernelMode kernel;
  Trace("close", fd);
  const int error = Close(current->process, fd);
  if (error != 0) Violated("descriptor " + std::to_string(fd) + " is closed twice");
  return 0;
}

REAL(int, epoll_create1, int flags) {
  OUTSIDE(__real_epoll_create1(flags));
  return Open(current->process, std::make_shared<Epoll>());
}

REAL(int, epoll_ctl, int epoll_fd, int operation, int fd, epoll_event* event) {
  OUTSIDE(__real_epoll_ctl(epoll_fd, operation, fd, event));
  auto* const epoll = FileAs<Epoll>(epoll_fd);
  File* const file = FileAt(current->process, fd);
  if (file == nullptr) return Failed(EBADF);
  if (operation != EPOLL_CTL_DEL && world->epoll_failure_one_in > 0 &&
      dynamic_cast<Socket*>(file) != nullptr && world->random.OneIn(world->epoll_failure_one_in)) {
    ++world->failed_calls;
    Trace("epoll_ctl fails", fd, operation);
    return Failed(ENOMEM);
  }
  Trace("epoll_ctl", fd, operation, event != nullptr ? event->events : 0);
  return Outcome(epoll->Control(operation, fd, file, event));
}

REAL(int, epoll_wait, int epoll_fd, epoll_event* events, int most, int timeout_ms) {
  OUTSIDE(__real_epoll_wait(epoll_fd, events, most, timeout_ms));
  if (Interrupted()) return Failed(EINTR);
  auto* const epoll = FileAs<Epoll>(epoll_fd);
  const int64_t until_ns = timeout_ms < 0 ? kNever : world->now_ns + timeout_ms * kMs;
  for (;;) {
    const int count = epoll->Collect(events, most);
    if (count > 0 || world->now_ns >= until_ns) {
      Trace("epoll_wait", epoll_fd, count);
      return count;
    }
    epoll->waits = current;
    world->Block(epoll, until_ns);
    epoll->waits = nullptr;
  }
}

REAL(int, eventfd, unsigned count, int flags) {
  OUTSIDE(__real_eventfd(count, flags));
  return Open(current->process, std::make_shared<EventFile>());
}

REAL(int, timerfd_create, int clock, int flags) {
  OUTSIDE(__real_timerfd_create(clock, flags));
  return Open(current->process, std::make_shared<TimerFile>());
}

REAL(int, timerfd_settime, int fd, int flags, const itimerspec* when, itimerspec* before) {
  OUTSIDE(__real_timerfd_settime(fd, flags, when, before));
  auto* const timer = FileAs<TimerFile>(fd);
  const uint64_t setting = ++timer->settings;
  Trace("timerfd_settime", fd, Ns(when->it_value));
  world->After(Ns(when->it_value), [weak = std::weak_ptr<File>(timer->weak_from_this()), setting] {
    const auto file = std::static_pointer_cast<TimerFile>(weak.lock());
    if (file == nullptr || file->settings != setting) return;
    ++file->expirations;
    file->Notify();
  });
  return 0;
}

// --- names -------------------------------------------------------------------------------------

// Resolves addresses as text, and lists of addresses: "10.0.0.1,10.0.0.2".
REAL(int, getaddrinfo, const char* host, const char* port, const addrinfo* hints, addrinfo** out) {
  OUTSIDE(__real_getaddrinfo(host, port, hints, out));
  std::string left(host);
  *out = nullptr;
  addrinfo** last = out;
  for (size_t begin = 0; begin < left.size();) {
    const size_t end = std::min(left.find(',', begin), left.size());
    struct Entry {
      addrinfo info;
      sockaddr_in address;
    };
    auto* const entry = static_cast<Entry*>(std::calloc(1, sizeof(Entry)));
    entry->address.sin_family = AF_INET;
    entry->address.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
    inet_pton(AF_INET, left.substr(begin, end - begin).c_str(), &entry->address.sin_addr);
    entry->info.ai_family = AF_INET;
    entry->info.ai_addr = reinterpret_cast<sockaddr*>(&entry->address);
    entry->info.ai_addrlen = sizeof(entry->address);
    *last = &entry->info;
    last = &entry->info.ai_next;
    begin = end + 1;
  }
  return 0;
}

REAL(void, freeaddrinfo, addrinfo* list) {
  if (!InProcess()) {
    __real_freeaddrinfo(list);
    return;
  }
  while (list != nullptr) std::free(std::exchange(list, list->ai_next));
}

// --- memory ------------------------------------------------------------------------------------

REAL(int, sysinfo, struct sysinfo* about) {
  OUTSIDE(__real_sysinfo(about));
  *about = {};
  about->totalram = kMemoryBytes;
  about->mem_unit = 1;
  return 0;
}

REAL(int, memfd_create, const char* name, unsigned flags) {
  OUTSIDE(__real_memfd_create(name, flags));
  if (NoDescriptors()) return Failed(EMFILE);
  const int real = __real_memfd_create(name, flags);
  return real < 0 ? real : Open(current->process, std::make_shared<MemoryFile>(real));
}

REAL(int, ftruncate, int fd, off_t bytes) {
  OUTSIDE(__real_ftruncate(fd, bytes));
  return __real_ftruncate(FileAs<MemoryFile>(fd)->real, bytes);
}

REAL(int, fchmod, int fd, mode_t mode) {
  OUTSIDE(__real_fchmod(fd, mode));
  return __real_fchmod(FileAs<MemoryFile>(fd)->real, mode);
}

extern "C" int __real_fcntl(int fd, int command, ...);
extern "C" int __wrap_fcntl(int fd, int command, ...);
extern "C" int __wrap_fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const long argument = va_arg(list, long);
  va_end(list);
  OUTSIDE(__real_fcntl(fd, command, argument));
  auto* const file = FileAs<MemoryFile>(fd);
  return file == nullptr ? Failed(EBADF) : __real_fcntl(file->real, command, argument);
}

extern "C" int __real_open(const char* path, int flags, ...);
extern "C" int __wrap_open(const char* path, int flags, ...);
extern "C" int __wrap_open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const int mode = va_arg(list, int);
  va_end(list);
  OUTSIDE(__real_open(path, flags, mode));
  int number = 0;
  if (std::sscanf(path, "/proc/self/fd/%d", &number) != 1) return Failed(ENOENT);
  const auto* const file = FileAs<MemoryFile>(number);
  return file == nullptr ? Failed(ENOENT) : OpenAgain(*file);
}

REAL(int, fstat, int fd, struct stat* about) {
  OUTSIDE(__real_fstat(fd, about));
  auto* const file = FileAs<MemoryFile>(fd);
  return file == nullptr ? Failed(EBADF) : __real_fstat(file->real, about);
}

REAL(void*, mmap, void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  OUTSIDE(__real_mmap(at, bytes, protection, flags, fd, offset));
  if (fd >= 0) fd = FileAs<MemoryFile>(fd)->real;
  void* const mapped = __real_mmap(at, bytes, protection, flags, fd, offset);
  if (mapped != MAP_FAILED) current->process->mappings[mapped] = bytes;
  return mapped;
}

REAL(int, munmap, void* at, size_t bytes) {
  OUTSIDE(__real_munmap(at, bytes));
  auto& mappings = current->process->mappings;
  // A pool unmaps both ends of its mappings.
  const auto whole = mappings.find(at);
  if (whole != mappings.end() && whole->second == bytes) {
    mappings.erase(whole);
    return __real_munmap(at, bytes);
  }
  auto* const begin = static_cast<char*>(at);
  for (const auto& [start, size] : mappings) {
    auto* const first = static_cast<char*>(start);
    if (begin < first || begin + bytes > first + size) continue;
    const size_t mapped = size;
    mappings.erase(start);
    if (begin > first) mappings[first] = static_cast<size_t>(begin - first);
    const auto behind = static_cast<size_t>(first + mapped - (begin + bytes));
    if (behind > 0) mappings[begin + bytes] = behind;
    return __real_munmap(at, bytes);
  }
  Violated("memory is unmapped that was not mapped");
}

REAL(int, madvise, void* at, size_t bytes, int advice) {
  OUTSIDE(__real_madvise(at, bytes, advice));
  if (advice != MADV_REMOVE) return 0;  // a hint only
  return __real_madvise(at, bytes, advice);
}

REAL(int, mprotect, void* at, size_t bytes, int protection) {
  OUTSIDE(__real_mprotect(at, bytes, protection));
  return __real_mprotect(at, bytes, protection);
}

// --- threads -----------------------------------------------------------------------------------

REAL(int, pthread_create, pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
     void* argument) {
  OUTSIDE(__real_pthread_create(thread, attributes, body, argument));
  Fiber* const fiber = world->AddFiber(current->process, [body, argument] { body(argument); });
  *thread = reinterpret_cast<pthread_t>(fiber);
  return 0;
}

REAL(int, pthread_join, pthread_t thread, void** result) {
  OUTSIDE(__real_pthread_join(thread, result));
  auto* const fiber = reinterpret_cast<Fiber*>(thread);
  while (fiber->state != Fiber::State::kEnded) world->Block(fiber);
  return 0;
}

REAL(pthread_t, pthread_self, void) {
  if (!InProcess()) return __real_pthread_self();
  return reinterpret_cast<pthread_t>(current);
}

REAL(int, pthread_setname_np, pthread_t thread, const char* name) {
  return InProcess() ? 0 : __real_pthread_setname_np(thread, name);
}

REAL(int, pthread_setaffinity_np, pthread_t thread, size_t bytes, const cpu_set_t* cores) {
  return InProcess() ? 0 : __real_pthread_setaffinity_np(thread, bytes, cores);
}

REAL(int, sched_getaffinity, pid_t pid, size_t bytes, cpu_set_t* cores) {
  if (!InProcess()) return __real_sched_getaffinity(pid, bytes, cores);
  CPU_ZERO(cores);
  for (int core = 0; core < 4; ++core) CPU_SET(core, cores);
  return 0;
}

// System calls without a function in the C library: here only sched_getattr, for time slices. This
// kernel does not have it, like an old Linux.
REAL(long, syscall, long number, long first, long second, long third, long fourth, long fifth,
     long sixth) {
  if (!InProcess()) return __real_syscall(number, first, second, third, fourth, fifth, sixth);
  if (number != SYS_sched_getattr) Violated("a system call that is not simulated");
  errno = ENOSYS;
  return -1;
}

REAL(int, pthread_atfork, void (*before)(), void (*in_parent)(), void (*in_child)()) {
  return InProcess() ? 0 : __real_pthread_atfork(before, in_parent, in_child);
}

REAL(int, sched_yield, void) {
  if (!InProcess()) return __real_sched_yield();
  KernelMode kernel;
  if (++current->yields > kMostYields) Violated("a thread spins while it waits for another one");
  world->now_ns += world->call_ns;
  world->Yield();
  return 0;
}

namespace {
// A lock of a simulated process; only the functions below access its memory.
struct Mutex {
  Fiber* owner;
  uint32_t waiting;
};
static_assert(sizeof(Mutex) <= sizeof(pthread_mutex_t));

Mutex* Of(pthread_mutex_t* mutex) { return reinterpret_cast<Mutex*>(mutex); }

void Lock(Mutex* mutex) {
  if (mutex->owner == current) Violated("a thread waits for a lock that it holds");
  while (mutex->owner != nullptr) {
    ++mutex->waiting;
    world->Block(mutex);
    --mutex->waiting;
  }
  mutex->owner = current;
}

void Unlock(Mutex* mutex) {
  if (mutex->owner != current) Violated("a thread unlocks a lock that it does not hold");
  mutex->owner = nullptr;
  if (mutex->waiting > 0) world->WakeAll(mutex);
}
}  // namespace

REAL(int, pthread_mutex_lock, pthread_mutex_t* mutex) {
  if (!InProcess()) return __real_pthread_mutex_lock(mutex);
  Point();
  KernelMode kernel;
  Lock(Of(mutex));
  return 0;
}

REAL(int, pthread_mutex_trylock, pthread_mutex_t* mutex) {
  if (!InProcess()) return __real_pthread_mutex_trylock(mutex);
  Point();
  if (Of(mutex)->owner != nullptr) return EBUSY;
  Of(mutex)->owner = current;
  return 0;
}

REAL(int, pthread_mutex_unlock, pthread_mutex_t* mutex) {
  if (!InProcess()) return __real_pthread_mutex_unlock(mutex);
  {
    KernelMode kernel;
    Unlock(Of(mutex));
  }
  Point();
  return 0;
}

namespace {
int Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t until_ns) {
  Point();
  KernelMode kernel;
  Unlock(Of(mutex));
  const bool woken = world->Block(condition, until_ns);
  Lock(Of(mutex));
  return woken ? 0 : ETIMEDOUT;
}
}  // namespace

REAL(int, pthread_cond_wait, pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!InProcess()) return __real_pthread_cond_wait(condition, mutex);
  return Wait(condition, mutex, kNever);
}

REAL(int, pthread_cond_timedwait, pthread_cond_t* condition, pthread_mutex_t* mutex,
     const timespec* until) {
  if (!InProcess()) return __real_pthread_cond_timedwait(condition, mutex, until);
  return Wait(condition, mutex, Ns(*until));
}

REAL(int, pthread_cond_clockwait, pthread_cond_t* condition, pthread_mutex_t* mutex,
     clockid_t clock, const timespec* until) {
  if (!InProcess()) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  return Wait(condition, mutex, Ns(*until));
}

REAL(int, pthread_cond_signal, pthread_cond_t* condition) {
  if (!InProcess()) return __real_pthread_cond_signal(condition);
  Point();
  KernelMode kernel;
  world->WakeOne(condition);
  return 0;
}

REAL(int, pthread_cond_broadcast, pthread_cond_t* condition) {
  if (!InProcess()) return __real_pthread_cond_broadcast(condition);
  Point();
  KernelMode kernel;
  world->WakeAll(condition);
  return 0;
}

// The initialisation of a static variable is not interrupted, because a fiber that waits for it
// would block in the real kernel.
REAL(int, __cxa_guard_acquire, int64_t* guard) {
  const int mine = __real___cxa_guard_acquire(guard);
  if (mine != 0 && InProcess()) ++current->undisturbed;
  return mine;
}
REAL(void, __cxa_guard_release, int64_t* guard) {
  __real___cxa_guard_release(guard);
  if (InProcess()) --current->undisturbed;
}
REAL(void, __cxa_guard_abort, int64_t* guard) {
  __real___cxa_guard_abort(guard);
  if (InProcess()) --current->undisturbed;
}

// Exit handlers of a simulated process are ignored.
REAL(int, __cxa_atexit, void (*function)(void*), void* argument, void* library) {
  return InProcess() ? 0 : __real___cxa_atexit(function, argument, library);
}
REAL(int, atexit, void (*function)()) { return InProcess() ? 0 : __real_atexit(function); }

// --- time and the rest -------------------------------------------------------------------------

REAL(int, clock_gettime, clockid_t clock, timespec* now) {
  if (!InProcess()) return __real_clock_gettime(clock, now);
  world->now_ns += 25;
  now->tv_sec = world->now_ns / kSecond;
  now->tv_nsec = world->now_ns % kSecond;
  return 0;
}

REAL(int, nanosleep, const timespec* time, timespec* left) {
  OUTSIDE(__real_nanosleep(time, left));
  world->Block(nullptr, world->now_ns + Ns(*time));
  return 0;
}

REAL(ssize_t, getrandom, void* to, size_t bytes, unsigned flags) {
  OUTSIDE(__real_getrandom(to, bytes, flags));
  if (Interrupted()) return Failed(EINTR);
  auto* const out = static_cast<char*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(world->random.Next() >> 56);
  return static_cast<ssize_t>(bytes);
}

REAL(pid_t, getpid, void) {
  if (!InProcess()) return __real_getpid();
  return current->process->pid;
}
