#pragma once

#include <functional>
#include <mutex>

namespace tensorwire::wire {

// Protects one object from a fork of the process. As long as this lives, a fork waits until
// `mutex` is free: so no thread that the child does not have has left it locked, or what it guards
// half done. In the child `in_child` is called before fork returns, with `mutex` locked, and may do
// what a signal handler may. (vfork, posix_spawn and bare system calls ask nobody.)
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
