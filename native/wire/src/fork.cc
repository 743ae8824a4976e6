#include "fork.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "socket.h"

namespace tensorwire::wire {

struct ForkHandlers {
  std::mutex mutex;
  std::vector<ForkGuard*> guards;
  // Locked last: who holds the mutex of a guard may open and close descriptors.
  std::mutex descriptors_mutex;
  std::vector<bool> descriptors;

  static ForkHandlers& Get() {
    static auto* const handlers = [] {
      if (pthread_atfork(BeforeFork, InParent, InChild) != 0) {
        std::abort();  // no memory for a few bytes
      }
      return new ForkHandlers;  // never destroyed: a process may fork while it ends
    }();
    return *handlers;
  }

  static void BeforeFork() {
    Get().mutex.lock();
    for (ForkGuard* const guard : Get().guards) guard->mutex_->lock();
    Get().descriptors_mutex.lock();
  }
  static void InParent() {
    Get().descriptors_mutex.unlock();
    for (ForkGuard* const guard : Get().guards) guard->mutex_->unlock();
    Get().mutex.unlock();
  }
  static void InChild();
};

namespace {

// Replaces descriptors by a socket that has no peer.
class Replacement {
 public:
  Replacement() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Replacement() {
    if (fd_ >= 0) ::close(fd_);
  }
  void Replace(int fd) const {
    if (fd_ < 0 || ::dup3(fd_, fd, O_CLOEXEC) < 0) ::close(fd);  // no descriptor was left
  }

 private:
  const int fd_;
};

}  // namespace

void ForkHandlers::InChild() {
  for (ForkGuard* const guard : Get().guards) guard->in_child_();
  const Replacement replacement;
  const std::vector<bool>& noted = Get().descriptors;
  for (size_t fd = 0; fd < noted.size(); ++fd) {
    if (noted[fd]) replacement.Replace(static_cast<int>(fd));
  }
  InParent();
}

ForkGuard::ForkGuard(std::mutex* mutex, std::function<void()> in_child)
    : mutex_(mutex), in_child_(std::move(in_child)) {
  ForkHandlers& handlers = ForkHandlers::Get();
  std::lock_guard lock(handlers.mutex);
  handlers.guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  ForkHandlers& handlers = ForkHandlers::Get();
  std::lock_guard lock(handlers.mutex);
  std::erase(handlers.guards, this);
}

void NoteDescriptor(int fd) {
  ForkHandlers& handlers = ForkHandlers::Get();
  const auto at = static_cast<size_t>(fd);
  std::lock_guard lock(handlers.descriptors_mutex);
  if (at >= handlers.descriptors.size()) handlers.descriptors.resize(at + 1);
  handlers.descriptors[at] = true;
}

void ForgetDescriptor(int fd) {
  ForkHandlers& handlers = ForkHandlers::Get();
  std::lock_guard lock(handlers.descriptors_mutex);
  handlers.descriptors[static_cast<size_t>(fd)] = false;
}

void DropSocketsOfPort(int port) {
  // opendir would allocate memory.
  const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  const Replacement replacement;
  alignas(dirent64) char entries[4096];
  for (long size = 0; (size = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;) {
    for (long at = 0; at < size;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      int fd = 0;
      for (const char* digit = entry->d_name; *digit >= '0' && *digit <= '9'; ++digit) {
        fd = 10 * fd + (*digit - '0');
      }
      // Not of "." and "..".
      if (entry->d_name[0] != '.' && OwnAddress(fd).port() == port) replacement.Replace(fd);
    }
  }
  ::close(folder);
}

}  // namespace tensorwire::wire
