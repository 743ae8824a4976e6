#pragma once

#include <functional>
#include <mutex>

namespace tensorwire::wire {

// Protects one object while the process forks. As long as this lives, a fork takes `mutex` first.
// So in the child, which has only the forking thread, no other thread has left the mutex locked or
// its data half changed. In the child, `in_child` is called before fork returns, with `mutex`
// locked; it may do only what a signal handler may. (vfork, posix_spawn and direct system calls
// skip this.)
class ForkGuard {
 public:
  explicit ForkGuard(std::mutex* mutex, std::function<void()> in_child = [] {});
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  friend struct ForkHandlers;

  std::mutex* const mutex_;
  const std::function<void()> in_child_;
};

// The engine's descriptors are of this process only, because a child that keeps them keeps the port
// and the connections of a parent that has died. In a child, each that is noted becomes a socket
// without a peer. It is not closed: its owner would later close what the child has opened meanwhile
// under the same number.
void NoteDescriptor(int fd);
void ForgetDescriptor(int fd);  // before it is closed

// For `in_child`: does the same to all sockets of this local port.
void DropSocketsOfPort(int port);

}  // namespace tensorwire::wire
