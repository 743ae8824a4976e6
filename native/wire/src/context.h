#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "authenticator.h"
#include "copy_threads.h"
#include "loans.h"
#include "reactor.h"
#include "tensorwire/wire/options.h"
#include "tensorwire/wire/stats.h"
#include "tensorwire/wire/status.h"
#include "tls.h"

namespace tensorwire::wire {

// The live form of PeerStats. The threads that move the bytes count with relaxed atomics.
struct PeerCounters {
  std::atomic<uint64_t> tx_bytes{0};
  std::atomic<uint64_t> rx_bytes{0};
  std::atomic<uint64_t> tx_frames{0};
  std::atomic<uint64_t> rx_frames{0};
  std::atomic<uint64_t> tx_syscalls{0};
  std::atomic<uint64_t> rx_syscalls{0};
  std::atomic<uint64_t> lent_bytes{0};
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> connects{0};
  std::atomic<uint64_t> damaged_frames{0};
};

inline void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

inline Status EngineStopped() { return Status(Code::kCancelled, "the engine was stopped"); }

// The state that all parts of one engine share.
class Context {
 public:
  explicit Context(EngineOptions given) : options(Completed(std::move(given))) {}

  static EngineOptions Completed(EngineOptions options) {
    if (!options.blocking_executor) options.blocking_executor = options.executor;
    return options;
  }

  const EngineOptions options;
  std::unique_ptr<const Authenticator> authenticator;  // null without a job token
  std::unique_ptr<const TlsContext> tls;               // null without TLS
  std::vector<std::unique_ptr<Reactor>> reactors;
  HeldPayloads held;
  const HeldBytes::Owner unanswered = HeldBytes::Create();  // of connections that hold much

  // Accepted connections that have not finished their greeting. At the limit, further ones wait in
  // the listeners' backlog, and those that idle are closed for some time.
  std::atomic<int> strangers{0};
  int most_strangers = 1024;
  std::atomic<int64_t> crowded_until_ms{0};
  CopyThreads copy_threads;

  // Channels are assigned to reactors round-robin. A channel's further streams are not counted,
  // because otherwise all channels could begin at the same reactor.
  size_t NextChannel() { return next_channel_.fetch_add(1, std::memory_order_relaxed); }
  // The reactor with the fewest accepted connections; among equals, each in turn. Round-robin alone
  // would leave a reactor without work after its connections have been closed.
  Reactor* NextAccepting();
  Reactor* ReactorFor(size_t number) const { return reactors[number % reactors.size()].get(); }

  // The names by which peers may ask for this task. Any, if it has none of its own.
  void AddName(const std::string& name);
  bool IsNamed(const std::string& name) const;

  std::shared_ptr<PeerCounters> CountersFor(const std::string& peer);
  EngineStats Stats() const;

  void Log(LogLevel level, const std::string& line) const {
    if (options.log) options.log(level, line);
  }
  // Logs a warning about `peer`, at most one line per host and minute, because a peer may repeat
  // the cause endlessly. `peer` is "host:port".
  void WarnAboutPeer(const std::string& peer, const std::string& line);

 private:
  std::atomic<size_t> next_channel_{0};
  std::atomic<size_t> next_accepted_{0};
  mutable std::mutex mutex_;
  std::set<std::string> more_names_;
  std::map<std::string, std::shared_ptr<PeerCounters>> counters_;
  std::map<std::string, int64_t> warned_at_ms_;
};

}  // namespace tensorwire::wire
