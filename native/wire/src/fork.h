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
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  std::mutex* const mutex_;
  const std::function<void()> in_child_;
};

}  // namespace tensorwire::wire
