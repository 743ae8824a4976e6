// TLS on the data plane: frames arrive, an attacker can neither read nor change them, and both ends
// must use TLS.

#include "tls.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "authenticator.h"
#include "check.h"
#include "harness.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

const std::string kToken(64, 'a');

void WithTls(EngineOptions* options) {
  options->token = kToken;
  options->tls = true;
}

struct Pair {
  explicit Pair(const std::function<void(EngineOptions*)>& of_ps = WithTls,
                const std::function<void(EngineOptions*)>& of_worker = WithTls)
      : ps("ps:0", 2, of_ps), worker("worker:0", 2, of_worker) {
    channel = worker.engine->Connect(ps.Listen(), "ps:0");
  }
  Task ps;
  Task worker;
  std::shared_ptr<Channel> channel;
};

std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 131 >> 3);
  return text;
}

void CheckEcho(Channel& channel, const std::string& payload) {
  const Outcome outcome = Get(Begin(channel, kEcho, "meta", payload));
  if (!outcome.status.ok()) check::Fail(__FILE__, __LINE__, outcome.status.message());
  CHECK_EQ(outcome.metadata, "meta");
  CHECK(outcome.payload == payload);
}

TEST(payloads_of_all_sizes_come_and_go) {
  Pair pair;
  for (const size_t bytes : {0, 1, 100, 16383, 16384, 16385, 70'000, 5'000'000, 40'000'000}) {
    CheckEcho(*pair.channel, Pattern(bytes));
  }
}

TEST(a_connection_that_is_idle_holds_little_memory) {
  if (kSanitized) return;
  constexpr size_t kConnections = 60;
  const auto one_stream = [](EngineOptions* options) {
    WithTls(options);
    options->streams = 1;
  };
  Task ps("ps:0", 1, one_stream);
  Task worker("worker:0", 1, one_stream);
  const std::string address = ps.Listen();
  std::vector<std::shared_ptr<Channel>> channels;
  int64_t before = 0;
  for (size_t i = 0; i < 2 * kConnections; ++i) {
    if (i == kConnections) before = ResidentBytes();
    channels.push_back(worker.engine->Connect(address, "ps:0"));
    CheckEcho(*channels.back(), Pattern(300'000));
  }
  // Both ends; nearly all of it is OpenSSL's.
  CHECK((ResidentBytes() - before) / static_cast<int64_t>(kConnections) < 70'000);
}

TEST(many_threads_send_at_once) {
  Pair pair;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string small = Pattern(10 + t);
      const std::string large = Pattern(300'000 + t);
      for (int i = 0; i < (kSanitized ? 20 : 100); ++i) {
        std::vector<std::future<Outcome>> calls;
        for (int j = 0; j < 8; ++j) {
          calls.push_back(Begin(*pair.channel, kEcho, "", j % 4 == 0 ? large : small));
        }
        for (size_t j = 0; j < calls.size(); ++j) {
          const Outcome outcome = Get(std::move(calls[j]));
          CHECK(outcome.status.ok());
          CHECK(outcome.payload == (j % 4 == 0 ? large : small));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(pair.worker.engine->stats().peers.at(0).connects, 1u);
}

TEST(several_streams_and_the_short_way_work_with_it) {
  BufferPool::Options shared;
  shared.shared = true;
  BufferPool pool(shared);
  for (const Transport transport : {Transport::kTcp, Transport::kMemory}) {
    auto options = [&](EngineOptions* o) {
      WithTls(o);
      o->pool = &pool;
      o->transport = transport;
      o->streams = 3;
    };
    Pair pair(options, options);
    const Outcome outcome = Get(Begin(*pair.channel, kBytes, "30000000"));
    CHECK(outcome.status.ok());
    CHECK_EQ(outcome.payload.size(), 30'000'000u);
  }
}

TEST(encrypted_payloads_use_several_connections_from_two_megabytes) {
  auto options = [](EngineOptions* o) {
    WithTls(o);
    o->streams = 2;
  };
  Pair pair(options, options);
  const auto connects = [&] { return pair.worker.engine->stats().peers.at(0).connects; };
  CHECK_EQ(Get(Begin(*pair.channel, kBytes, "1000000")).payload.size(), 1'000'000u);
  CHECK_EQ(connects(), 1u);
  CHECK_EQ(Get(Begin(*pair.channel, kBytes, "2000000")).payload.size(), 2'000'000u);
  CHECK_EQ(connects(), 2u);
}

TEST(who_does_not_use_it_is_told_and_so_is_the_log) {
  auto plain = [](EngineOptions* options) { options->token = kToken; };
  for (const bool on_server : {false, true}) {
    Pair pair(on_server ? std::function<void(EngineOptions*)>(WithTls) : plain,
              on_server ? std::function<void(EngineOptions*)>(plain) : WithTls);
    const Status status = Get(Begin(*pair.channel, kEcho, "x")).status;
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(Contains(status.message(), "set TENSORWIRE_TLS in every task of the job, or in none"));
    Eventually([&] { return !pair.ps.Log().empty(); });  // it says so to the peer first
    CHECK_EQ(pair.ps.Log().size(), 1u);
    CHECK(Contains(pair.ps.Log()[0], "TENSORWIRE_TLS"));
  }
}

TEST(another_token_fails_the_handshake_and_says_what_to_do) {
  Pair pair(WithTls, [](EngineOptions* options) {
    options->token = std::string(64, 'b');
    options->tls = true;
  });
  const Status status = Get(Begin(*pair.channel, kEcho, "x")).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "the TLS handshake failed"));
  CHECK(Contains(status.message(), "TENSORWIRE_TOKEN_FILE"));
  Eventually([&] { return !pair.ps.Log().empty(); });  // it says so to the peer first
  CHECK_EQ(pair.ps.Log().size(), 1u);
  CHECK(Contains(pair.ps.Log()[0], "the TLS handshake failed"));
}

TEST(garbage_instead_of_a_handshake_harms_nobody) {
  Pair pair;
  CheckEcho(*pair.channel, "before");
  Task ps("ps:0", 1, WithTls);
  const std::string address = ps.Listen();
  for (int i = 0; i < 20; ++i) {
    RawStream stream = RawStream::To(address);
    stream.Send(std::string(50'000, static_cast<char>('a' + i)));
    shutdown(stream.fd(), SHUT_WR);
    stream.ReadToEnd();
  }
  CHECK(ps.Log().size() <= 1);
  auto channel = pair.worker.engine->Connect(address, "ps:0");
  CheckEcho(*channel, "after");
}

// Relays between a client and a server. Records the bytes, and can change one.
class Wire {
 public:
  explicit Wire(const std::string& to)
      : thread_([this, to] {
          RawStream client = server_.Accept();
          RawStream target = RawStream::To(to);
          std::thread back([&] { Pump(target, client, &to_client_, nullptr); });
          Pump(client, target, &to_server_, &damage_);
          back.join();
        }) {}
  ~Wire() { thread_.join(); }
  const std::string& address() const { return server_.address(); }
  void Damage() { damage_ = true; }
  // Everything that passed; call it when both ends are gone.
  std::string All() {
    std::lock_guard lock(mutex_);
    return to_server_ + to_client_;
  }

 private:
  void Pump(RawStream& from, RawStream& to, std::string* kept, std::atomic<bool>* damage) {
    for (;;) {
      std::string bytes = from.ReadSome();
      if (bytes.empty()) break;
      {
        std::lock_guard lock(mutex_);
        *kept += bytes;
      }
      if (damage != nullptr && damage->exchange(false)) bytes.back() ^= 1;
      if (!to.Send(bytes)) break;
    }
    shutdown(to.fd(), SHUT_RDWR);
    shutdown(from.fd(), SHUT_RDWR);
  }

  RawServer server_;
  std::mutex mutex_;
  std::string to_server_;
  std::string to_client_;
  std::atomic<bool> damage_{false};
  std::thread thread_;
};

TEST(what_passes_cannot_be_read) {
  for (const bool tls : {false, true}) {  // without TLS the text must be found
    auto options = [tls](EngineOptions* o) {
      o->token = kToken;
      o->tls = tls;
    };
    Task ps("ps:0", 1, options);
    Wire wire(ps.Listen());
    {
      Task worker("worker:0", 1, options);
      auto channel = worker.engine->Connect(wire.address(), "ps:0");
      CheckEcho(*channel, "this is the secret of the tensor");
    }
    ps.engine->Stop();
    for (const std::string text : {"secret of the tensor", "worker:0", "task="}) {
      CHECK_EQ(wire.All().find(text) == std::string::npos, tls);
    }
  }
}

TEST(what_was_altered_ends_the_connection_instead_of_reaching_anybody) {
  Task ps("ps:0", 1, WithTls);
  Wire wire(ps.Listen());
  Task worker("worker:0", 1, WithTls);
  auto channel = worker.engine->Connect(wire.address(), "ps:0");
  CheckEcho(*channel, "whole");
  wire.Damage();
  CHECK(Get(Begin(*channel, kNever, "damaged")).status.code() == Code::kUnavailable);
  Eventually([&] { return ps.handler->disconnects == 1; });
  std::lock_guard lock(ps.handler->mutex);
  CHECK(ps.handler->kept.empty());
  worker.engine->Stop();
  ps.engine->Stop();
}

// --- an attacker in the middle
// ---------------------------------------------------------------------

// A function of OpenSSL that the engine does not use.
template <typename Function>
Function* OpenSsl(const char* name) {
  static void* const library = [] {
    void* const newest = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    return newest != nullptr ? newest : dlopen("libssl.so.1.1", RTLD_NOW | RTLD_LOCAL);
  }();
  CHECK(library != nullptr);
  auto* const function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) check::Fail(__FILE__, __LINE__, name);
  return function;
}

// A TLS server with a certificate that it made itself, and without the job's token.
class CertificateServer {
 public:
  CertificateServer() {
    CHECK(LibSsl::Load(&ssl_).ok());
    context_ = ssl_->SSL_CTX_new(ssl_->TLS_method());
    CHECK(context_ != nullptr);
    constexpr int kEd25519 = 1087;
    void* const maker = OpenSsl<void*(int, void*)>("EVP_PKEY_CTX_new_id")(kEd25519, nullptr);
    void* key = nullptr;
    CHECK_EQ(OpenSsl<int(void*)>("EVP_PKEY_keygen_init")(maker), 1);
    CHECK_EQ(OpenSsl<int(void*, void**)>("EVP_PKEY_keygen")(maker, &key), 1);
    OpenSsl<void(void*)>("EVP_PKEY_CTX_free")(maker);
    void* const certificate = OpenSsl<void*()>("X509_new")();
    auto* const since = OpenSsl<void*(void*)>("X509_getm_notBefore")(certificate);
    auto* const until = OpenSsl<void*(void*)>("X509_getm_notAfter")(certificate);
    auto* const set_time = OpenSsl<void*(void*, long)>("X509_gmtime_adj");
    CHECK(set_time(since, -3600) != nullptr && set_time(until, 3600) != nullptr);
    CHECK_EQ(OpenSsl<int(void*, void*)>("X509_set_pubkey")(certificate, key), 1);
    CHECK(OpenSsl<int(void*, void*, void*)>("X509_sign")(certificate, key, nullptr) > 0);
    auto use = [&](const char* name, void* what) {
      CHECK_EQ(OpenSsl<int(LibSsl::Context*, void*)>(name)(context_, what), 1);
    };
    use("SSL_CTX_use_certificate", certificate);
    use("SSL_CTX_use_PrivateKey", key);
    OpenSsl<void(void*)>("X509_free")(certificate);
    OpenSsl<void(void*)>("EVP_PKEY_free")(key);
  }
  ~CertificateServer() { ssl_->SSL_CTX_free(context_); }
  const std::string& address() const { return server_.address(); }

  // The first bytes that the next client sends in TLS; "" if it refuses the handshake.
  std::string Hear() {
    const RawStream stream = server_.Accept();
    LibSsl::Stream* const tls = ssl_->SSL_new(context_);
    CHECK_EQ(OpenSsl<int(LibSsl::Stream*, int)>("SSL_set_fd")(tls, stream.fd()), 1);
    ssl_->SSL_set_accept_state(tls);
    std::string said(1000, '\0');
    size_t got = 0;
    int done = 0;
    constexpr int kWantRead = 2;
    while ((done = ssl_->SSL_read_ex(tls, said.data(), said.size(), &got)) != 1 &&
           ssl_->SSL_get_error(tls, done) == kWantRead) {
      pollfd wait{stream.fd(), POLLIN, 0};
      CHECK(::poll(&wait, 1, 10'000) > 0);
    }
    said.resize(done == 1 ? got : 0);
    ssl_->SSL_free(tls);
    return said;
  }

 private:
  const LibSsl* ssl_ = nullptr;
  LibSsl::Context* context_ = nullptr;
  RawServer server_;
};

TEST(a_server_that_shows_a_certificate_instead_of_the_key_hears_nothing) {
  CertificateServer server;
  Task worker("worker:0", 1, WithTls);
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto outcome = Begin(*channel, kEcho, "x");
  CHECK_EQ(server.Hear(), "");
  const Status status = Get(std::move(outcome)).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "the TLS handshake failed (certificate verify failed)"));
}

// Terminates the TLS of both sides with the right key, and relays their frames. Without the token
// that is possible only if TLS itself is broken.
class TlsRelay {
 public:
  explicit TlsRelay(const std::string& to) : thread_([this, to] { Run(to); }) {}
  ~TlsRelay() { thread_.join(); }
  const std::string& address() const { return server_.address(); }

 private:
  void Run(const std::string& to) {
    std::unique_ptr<const TlsContext> context;
    CHECK(TlsContext::Create(kToken, &context).ok());
    const RawStream client = server_.Accept();
    const RawStream target = RawStream::To(to);
    TlsStream near(context.get(), client.fd(), /*client=*/false);
    TlsStream far(context.get(), target.fd(), /*client=*/true);
    if (!Shake(near, client.fd()) || !Shake(far, target.fd())) return;
    while (Pass(near, far) && Pass(far, near)) {
      pollfd wait[] = {{client.fd(), POLLIN, 0}, {target.fd(), POLLIN, 0}};
      ::poll(wait, 2, 10'000);
    }
  }
  static bool Shake(TlsStream& stream, int fd) {
    std::string why;
    for (;;) {
      const auto shaken = stream.Shake(&why);
      if (shaken != TlsStream::Handshake::kGoesOn) return shaken == TlsStream::Handshake::kDone;
      pollfd wait{fd, POLLIN, 0};
      ::poll(&wait, 1, 10'000);
    }
  }
  // Relays small frames, which leave at once. False at the end of the stream.
  static bool Pass(TlsStream& from, TlsStream& to) {
    std::string bytes(10'000, '\0');
    for (;;) {
      const iovec into{bytes.data(), bytes.size()};
      const ssize_t got = from.Receive(&into, 1);
      if (got < 0 && errno == EAGAIN) return true;
      if (got <= 0) return false;
      const iovec piece{bytes.data(), static_cast<size_t>(got)};
      if (to.Send(&piece, 1) != got) return false;
    }
  }

  RawServer server_;
  std::thread thread_;
};

TEST(a_proof_that_is_relayed_from_one_tls_session_to_another_is_refused) {
  Task ps("ps:0", 1, WithTls);
  TlsRelay relay(ps.Listen());
  Task worker("worker:0", 1, WithTls);
  const auto channel = worker.engine->Connect(relay.address(), "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "x")).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "the client's job token is not the server's"));
  worker.engine->Stop();
  ps.engine->Stop();
}

// --- the stream ----------------------------------------------------------------------------------

// Two ends of a connection after the handshake.
struct Ends {
  explicit Ends(const TlsContext* context, uint64_t bytes_per_key = TlsStream::kBytesPerKey) {
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a = Fd(fds[0]);
    b = Fd(fds[1]);
    client = std::make_unique<TlsStream>(context, a.get(), true, bytes_per_key);
    server = std::make_unique<TlsStream>(context, b.get(), false, bytes_per_key);
    std::string why;
    for (int i = 0; i < 10; ++i) {
      const auto shaken = client->Shake(&why);
      const auto other = server->Shake(&why);
      if (shaken == TlsStream::Handshake::kDone && other == shaken) return;
    }
    check::Fail(__FILE__, __LINE__, why);
  }
  Fd a;
  Fd b;
  std::unique_ptr<TlsStream> client;
  std::unique_ptr<TlsStream> server;
};

TEST(a_proof_holds_in_the_tls_session_that_it_was_made_for_and_in_no_other) {
  std::unique_ptr<const TlsContext> context;
  CHECK(TlsContext::Create(kToken, &context).ok());
  std::unique_ptr<const Authenticator> authenticator;
  CHECK(Authenticator::Create(kToken, &authenticator).ok());
  const Ends first(context.get());
  const Ends second(context.get());
  CHECK_EQ(first.client->binding().size(), 32u);
  CHECK_EQ(first.client->binding(), first.server->binding());
  CHECK_EQ(second.client->binding(), second.server->binding());
  CHECK(first.client->binding() != second.client->binding());
  const Authenticator::Said said = {"task=w\n", "challenge=00\n"};
  for (const auto role : {Authenticator::Role::kClient, Authenticator::Role::kServer}) {
    const std::string proof = authenticator->Prove(role, said, first.client->binding());
    CHECK(authenticator->Check(role, said, proof, first.server->binding()));
    CHECK(!authenticator->Check(role, said, proof, second.server->binding()));
    CHECK(!authenticator->Check(role, said, proof));
    CHECK(!authenticator->Check(role, said, authenticator->Prove(role, said),
                                first.server->binding()));
  }
}

TEST(keys_change_and_a_full_socket_loses_nothing) {
  std::unique_ptr<const TlsContext> context;
  CHECK(TlsContext::Create(kToken, &context).ok());
  const Ends ends(context.get(), /*bytes_per_key=*/100'000);
  TlsStream& from = *ends.client;
  TlsStream& to = *ends.server;
  const std::string sent = Pattern(5'000'000);
  std::string received;
  size_t at = 0;
  int full = 0;
  std::string buffer(300'000, '\0');
  while (received.size() < sent.size()) {
    // In two pieces, like a frame: a short head, a long body.
    const size_t head = std::min<size_t>(sent.size() - at, 40);
    const size_t body = std::min<size_t>(sent.size() - at - head, 90'001);
    const iovec pieces[] = {{const_cast<char*>(sent.data()) + at, head},
                            {const_cast<char*>(sent.data()) + at + head, body}};
    const ssize_t took = from.Send(pieces, 2);
    if (took > 0) at += static_cast<size_t>(took);
    if (took < 0) {
      CHECK_EQ(errno, EAGAIN);
      ++full;
      const iovec into[] = {{buffer.data(), 33}, {buffer.data() + 33, buffer.size() - 33}};
      for (;;) {
        const ssize_t got = to.Receive(into, 2);
        if (got < 0) {
          CHECK_EQ(errno, EAGAIN);
          break;
        }
        received.append(buffer.data(), static_cast<size_t>(got));
      }
    } else if (at == sent.size()) {
      const iovec into[] = {{buffer.data(), buffer.size()}};
      if (const ssize_t got = to.Receive(into, 1); got > 0) {
        received.append(buffer.data(), static_cast<size_t>(got));
      }
    }
  }
  CHECK(full > 0);
  CHECK(received == sent);
  CHECK(from.Flushed());
}

TEST(a_peer_that_hangs_up_in_the_handshake_is_a_lost_connection_on_either_side) {
  Task ps("ps:0", 1, WithTls);
  const std::string address = ps.Listen();
  for (int i = 0; i < 3; ++i) RawStream::To(address);
  Task worker("worker:0", 1, WithTls);
  RawServer server;
  auto outcome = Begin(*worker.engine->Connect(server.address(), "ps:0"), kEcho, "");
  {
    const RawStream hung_up = server.Accept();
  }
  const Status status = Get(std::move(outcome)).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "ps:0 at " + server.address()));
  CheckEcho(*worker.engine->Connect(address, "ps:0"), "served all the same");
}

TEST(tls_needs_a_token) {
  setenv("TENSORWIRE_TLS", "1", 1);
  EngineOptions options;
  const Status status = ReadSecurity(&options);
  unsetenv("TENSORWIRE_TLS");
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(Contains(status.message(), "set TENSORWIRE_TOKEN_FILE"));
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
