#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <string_view>

#include "context.h"
#include "fd.h"
#include "reactor.h"
#include "tensorwire/wire/buffer_pool.h"
#include "tensorwire/wire/engine.h"

// What the fuzz targets share: an engine's inside with one reactor, whose executor is the thread
// that fuzzes; and a peer that says some bytes and hears the rest.

namespace tensorwire::wire {

constexpr int kPatienceMs = 20'000;  // for what takes microseconds; beyond it, something hangs

[[noreturn]] inline void Broken(const char* what) {
  std::fprintf(stderr, "BROKEN: %s\n", what);
  std::abort();
}

class World {
 public:
  explicit World(const std::function<void(EngineOptions*)>& change = {})
      : pool_(Shared()), context(std::make_shared<Context>(Options(change))) {
    context->reactors.push_back(std::make_unique<Reactor>(0, context->options));
    if (!context->reactors.front()->Start().ok()) Broken("no reactor");
  }
  Reactor* reactor() { return context->reactors.front().get(); }
  BufferPool* pool() { return &pool_; }

  // Runs what the engine hands over until `done`.
  void RunUntil(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    for (;;) {
      std::function<void()> closure;
      {
        std::unique_lock lock(mutex_);
        if (closures_.empty()) {
          if (done()) return;
          if (std::chrono::steady_clock::now() > limit) Broken("it hangs");
          wake_.wait_for(lock, std::chrono::milliseconds(1));
          continue;
        }
        closure = std::move(closures_.front());
        closures_.pop();
      }
      closure();
    }
  }
  // Until the reactor has done all that it had to do, and what it handed over is done.
  void Settle() {
    auto done = std::make_shared<std::atomic<bool>>(false);
    reactor()->Post([done] { done->store(true); });
    RunUntil([&] { return done->load(); });
  }

 private:
  static BufferPool::Options Shared() {
    BufferPool::Options options;
    options.shared = true;
    return options;
  }
  EngineOptions Options(const std::function<void(EngineOptions*)>& change) {
    EngineOptions options;
    options.name = "ps:0";
    options.pool = &pool_;
    options.handshake_timeout_ms = 1000;
    options.executor = [this](std::function<void()> closure) {
      {
        std::lock_guard lock(mutex_);
        closures_.push(std::move(closure));
      }
      wake_.notify_one();
    };
    if (change) change(&options);
    return options;
  }

  BufferPool pool_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> closures_;

 public:
  const std::shared_ptr<Context> context;
};

// Sends `bytes` in pieces of `piece` (0: all at once), and reads until the other end closes; what
// the engine hands over is run meanwhile.
inline void Converse(World* world, int fd, std::string_view bytes, size_t piece) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  size_t sent = 0;
  bool ended = false;
  char buffer[64 << 10];
  world->RunUntil([&] {
    while (sent < bytes.size()) {
      const size_t most = piece == 0 ? bytes.size() - sent : std::min(piece, bytes.size() - sent);
      const ssize_t n = ::send(fd, bytes.data() + sent, most, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    // A peer that has closed takes no more.
    if (sent == bytes.size() && !ended) ::shutdown(fd, SHUT_WR);
    pollfd wait{fd, POLLIN, 0};
    while (::poll(&wait, 1, 1) > 0) {
      const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return ended = true;
      if (n < 0) break;
    }
    return false;
  });
}

}  // namespace tensorwire::wire
