// ThreadSanitizer does not see the locks and pools of a TensorFlow that was not compiled for it,
// and would report accesses that they order as races. The calls to them come through this file
// first, which tells ThreadSanitizer. (These are absl's locks, which TensorFlow uses since 2.16.)

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tensorwire::plugin {
namespace {

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

// TensorFlow's function of that mangled name.
template <typename Function>
Function* TensorFlows(const std::string& name) {
  void* const found = dlsym(RTLD_NEXT, name.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "this TensorFlow has no %s\n", name.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// The same for absl, whose namespace contains its release.
template <typename Function>
Function* Absls(const std::string& name) {
  const std::string release = TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  return TensorFlows<Function>("_ZN4absl" + std::to_string(release.size()) + release + name);
}

}  // namespace
}  // namespace tensorwire::plugin

// The sanitizer's run time calls these two functions for its options.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:halt_on_error=1:history_size=4";
}
// What orders the accesses of these two is in TensorFlow's libraries, unseen by ThreadSanitizer:
// - A step's CallOptions are on the master's stack. The master continues when one of TensorFlow's
//   atomics has counted the last of them.
// - The callbacks that we give to gRPC (of GetStatus and CreateWorkerSession: all other calls of
//   ours take the caller's own) go through its queues to the thread that runs them.
extern "C" const char* __tsan_default_suppressions() {
  return "race:tsl::CallOptions::ClearCancelCallback\n"
         "race:tensorwire::plugin::RemoteWorker::CreateWorkerSessionAsync\n"
         "race:tensorwire::plugin::RemoteWorker::GetStatusAsync\n";
}

namespace absl {
inline namespace ABSL_OPTION_INLINE_NAMESPACE_NAME {

using synchronization_internal::KernelTimeout;
using tensorwire::plugin::Absls;

void Mutex::lock() {
  static auto* const real = Absls<void(Mutex*)>("5Mutex4lockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::unlock() {
  static auto* const real = Absls<void(Mutex*)>("5Mutex6unlockEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::try_lock() {
  static auto* const real = Absls<bool(Mutex*)>("5Mutex8try_lockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::lock_shared() {
  static auto* const real = Absls<void(Mutex*)>("5Mutex11lock_sharedEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::unlock_shared() {
  static auto* const real = Absls<void(Mutex*)>("5Mutex13unlock_sharedEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::LockWhenCommon(const Condition& condition, KernelTimeout timeout, bool write) {
  static auto* const real = Absls<bool(Mutex*, const Condition&, KernelTimeout, bool)>(
      "5Mutex14LockWhenCommonERKNS0_9ConditionENS0_24synchronization_internal13KernelTimeoutEb");
  const bool holds = real(this, condition, timeout, write);
  __tsan_acquire(this);
  return holds;
}

bool Mutex::AwaitCommon(const Condition& condition, KernelTimeout timeout) {
  static auto* const real = Absls<bool(Mutex*, const Condition&, KernelTimeout)>(
      "5Mutex11AwaitCommonERKNS0_9ConditionENS0_24synchronization_internal13KernelTimeoutE");
  __tsan_release(this);
  const bool holds = real(this, condition, timeout);
  __tsan_acquire(this);
  return holds;
}

bool CondVar::WaitCommon(Mutex* mutex, KernelTimeout timeout) {
  static auto* const real = Absls<bool(CondVar*, Mutex*, KernelTimeout)>(
      "7CondVar10WaitCommonEPNS0_5MutexENS0_24synchronization_internal13KernelTimeoutE");
  __tsan_release(mutex);
  const bool late = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return late;
}

}  // namespace ABSL_OPTION_INLINE_NAMESPACE_NAME
}  // namespace absl

namespace tsl::thread {

void ThreadPool::Schedule(std::function<void()> closure) {
  static auto* const real =
      tensorwire::plugin::TensorFlows<void(ThreadPool*, std::function<void()>)>(
          "_ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE");
  auto* const handed = new std::function<void()>(std::move(closure));
  __tsan_release(handed);
  real(this, [handed] {  // one pointer only: a larger closure would be allocated, and no lock
                         // orders that memory
    __tsan_acquire(handed);
    const std::unique_ptr<std::function<void()>> owned(handed);
    (*owned)();
  });
}

}  // namespace tsl::thread
