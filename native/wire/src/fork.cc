#include "fork.h"

#include <pthread.h>

#include <cstdlib>
#include <utility>
#include <vector>

namespace tensorwire::wire {
namespace {

struct Guards {
  std::mutex mutex;
  std::vector<ForkGuard*> all;
};

Guards& Living() {
  static auto* const guards = new Guards;  // never destroyed: a process may fork while it ends
  return *guards;
}

}  // namespace

ForkGuard::ForkGuard(std::mutex* mutex, std::function<void()> in_child)
    : mutex_(mutex), in_child_(std::move(in_child)) {
  Guards& guards = Living();
  static const bool registered =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
  if (!registered) std::abort();  // no memory for a few bytes
  std::lock_guard lock(guards.mutex);
  guards.all.push_back(this);
}

ForkGuard::~ForkGuard() {
  Guards& guards = Living();
  std::lock_guard lock(guards.mutex);
  std::erase(guards.all, this);
}

void ForkGuard::BeforeFork() {
  Living().mutex.lock();
  for (ForkGuard* const guard : Living().all) guard->mutex_->lock();
}

void ForkGuard::AfterForkInParent() {
  for (ForkGuard* const guard : Living().all) guard->mutex_->unlock();
  Living().mutex.unlock();
}

void ForkGuard::AfterForkInChild() {
  for (ForkGuard* const guard : Living().all) guard->in_child_();
  AfterForkInParent();
}

}  // namespace tensorwire::wire
