#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <string_view>

#include "authenticator.h"
#include "context.h"
#include "fd.h"
#include "reactor.h"
#include "tensorwire/wire/buffer_pool.h"
#include "tensorwire/wire/clock.h"
#include "tensorwire/wire/engine.h"

// Shared by the fuzz targets: the inner parts of an engine in one thread, so that each run is the
// same; and a peer that sends some bytes and reads the answers.

namespace tensorwire::wire {

constexpr int kPatienceMs = 20'000;  // for work of microseconds; if exceeded, something hangs

[[noreturn]] inline void Broken(const char* what) {
  std::fprintf(stderr, "BROKEN: %s\n", what);
  std::abort();
}

class World {
 public:
  explicit World(const std::function<void(EngineOptions*)>& change = {})
      : pool_(Shared()), context(std::make_shared<Context>(Options(change))) {
    if (const std::string& token = context->options.token; !token.empty()) {
      if (!Authenticator::Create(token, &context->authenticator).ok()) Broken("no OpenSSL");
    }
    context->reactors.push_back(std::make_unique<Reactor>(0, context->options));
    if (!reactor()->Open().ok()) Broken("no reactor");
  }
  Reactor* reactor() { return context->reactors.front().get(); }
  BufferPool* pool() { return &pool_; }

  // Runs reactor and executor until `done`.
  void RunUntil(const std::function<bool()>& done) {
    const int64_t limit_ms = NowMs() + kPatienceMs;
    do {
      reactor()->TurnFromReactor();
      while (!closures_.empty()) {
        const auto closure = std::move(closures_.front());
        closures_.pop();
        closure();
      }
      if (NowMs() > limit_ms) Broken("it hangs");
    } while (!done());
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
    options.polling = true;  // a reactor that is turned by hand must not sleep
    options.executor = [this](std::function<void()> closure) {
      closures_.push(std::move(closure));
    };
    if (change) change(&options);
    return options;
  }

  BufferPool pool_;
  std::queue<std::function<void()>> closures_;

 public:
  const std::shared_ptr<Context> context;
};

// Sends `bytes` in pieces of `piece` (0: all at once), and reads until the other end closes.
// Meanwhile runs the engine's closures.
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
    // Bytes are left if the other end has closed or its socket is full.
    if (sent == bytes.size() && !ended) ::shutdown(fd, SHUT_WR);
    pollfd wait{fd, POLLIN, 0};
    while (::poll(&wait, 1, 0) > 0) {
      const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return ended = true;
      if (n < 0) break;
    }
    return false;
  });
}

}  // namespace tensorwire::wire
