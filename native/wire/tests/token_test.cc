// The job token: peers that have it are served, others get nothing.

#include "token.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "authenticator.h"
#include "check.h"
#include "harness.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

const std::string kToken(64, 'a');
const std::string kOther(64, 'b');

std::function<void(EngineOptions*)> With(const std::string& token) {
  return [token](EngineOptions* options) { options->token = token; };
}

std::unique_ptr<const Authenticator> Make(const std::string& token = kToken) {
  std::unique_ptr<const Authenticator> made;
  const Status status = Authenticator::Create(token, &made);
  if (!status.ok()) check::Fail(__FILE__, __LINE__, status.message());
  return made;
}

// The outcome of a call from a task with token `of_client` to one with token `of_server`, and the
// server's log.
std::pair<Status, std::vector<std::string>> Meet(const std::string& of_client,
                                                 const std::string& of_server) {
  Task ps("ps:0", 1, With(of_server));
  Task worker("worker:0", 1, With(of_client));
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "x")).status;
  return {status, ps.Log()};
}

// A client without an engine; the tests do its part of the greeting.
struct Stranger {
  explicit Stranger(const std::string& address, const std::string& peer = "ps:0")
      : stream(RawStream::To(address)) {
    Hello mine;
    mine.task = "worker:0";
    mine.peer = peer;
    mine.challenge = Authenticator::Challenge();
    hello = mine.Encode();
    CHECK(stream.Send(Frame(FrameKind::kHello, 0, 0, hello)));
    ReadFrame frame;
    CHECK(stream.Read(&frame));
    CHECK(frame.header.kind == FrameKind::kChallenge);
    challenge = frame.metadata;
  }
  void Prove(const std::string& proof) {
    Hello answer;
    answer.proof = proof;
    CHECK(stream.Send(Frame(FrameKind::kProof, 0, 0, answer.Encode())));
  }
  // Reads the next frame and returns its kind.
  FrameKind Next() {
    ReadFrame frame;
    CHECK(stream.Read(&frame));
    last = frame.metadata;
    return frame.header.kind;
  }

  RawStream stream;
  std::string hello;
  std::string challenge;
  std::string last;
};

TEST(the_same_token_is_served) {
  const auto [status, log] = Meet(kToken, kToken);
  if (!status.ok()) check::Fail(__FILE__, __LINE__, status.message());
  CHECK_EQ(log.size(), 0u);
}

TEST(another_token_or_none_fails_the_call_with_what_to_do_and_one_line) {
  for (const auto& [client, server, reason] :
       {std::tuple{kOther, kToken, "the client's job token is not the server's"},
        {std::string(), kToken, "the client has no job token, and the server has one"},
        {kToken, std::string(), "the client has a job token, and the server has none"}}) {
    const auto [status, log] = Meet(client, server);
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(Contains(status.message(), reason));
    CHECK(Contains(status.message(), "TENSORWIRE_TOKEN_FILE"));
    CHECK(Contains(status.message(), "ps:0 at 127.0.0.1:"));
    CHECK_EQ(log.size(), 1u);
    CHECK(Contains(log[0], reason));
  }
}

TEST(a_large_payload_comes_over_several_streams_and_through_memory_with_a_token) {
  BufferPool::Options shared;
  shared.shared = true;
  BufferPool pool(shared);
  for (const Transport transport : {Transport::kTcp, Transport::kMemory}) {
    auto options = [&](EngineOptions* o) {
      o->token = kToken;
      o->pool = &pool;
      o->transport = transport;
      o->streams = 3;
    };
    Task ps("ps:0", 2, options);
    Task worker("worker:0", 2, options);
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    const Outcome outcome = Get(Begin(*channel, kBytes, "30000000"));
    CHECK(outcome.status.ok());
    CHECK_EQ(outcome.payload.size(), 30'000'000u);
  }
}

TEST(a_stranger_learns_neither_a_proof_nor_the_name_of_the_lane) {
  BufferPool::Options shared;
  shared.shared = true;
  BufferPool pool(shared);
  Task ps("ps:0", 1, [&](EngineOptions* options) {
    options->token = kToken;
    options->pool = &pool;
  });
  Stranger stranger(ps.Listen());
  stranger.Prove(std::string(64, '0'));
  const std::string all = stranger.challenge + stranger.stream.ReadToEnd();
  CHECK_EQ(all.find("lane="), std::string::npos);
  CHECK_EQ(all.find("proof="), std::string::npos);
}

TEST(no_request_is_heard_before_the_proof) {
  Task ps("ps:0", 1, With(kToken));
  const std::string address = ps.Listen();
  for (const bool challenged : {false, true}) {
    RawStream stream = RawStream::To(address);
    if (challenged) {
      CHECK(stream.Send(Frame(FrameKind::kHello, 0, 0, "task=w\nchallenge=00\n")));
    }
    CHECK(stream.Send(Frame(FrameKind::kRequest, 1, kNever, "x")));
    stream.ReadToEnd();
  }
  std::lock_guard lock(ps.handler->mutex);
  CHECK(ps.handler->kept.empty());
  CHECK_EQ(ps.handler->disconnects.load(), 0);
  CHECK_EQ(ps.engine->stats().peers.size(), 0u);  // its name is not stored either
}

TEST(a_proof_is_good_for_its_connection_only) {
  Task ps("ps:0", 1, With(kToken));
  const std::string address = ps.Listen();
  const auto authenticator = Make();
  Stranger first(address);
  const std::string proof =
      authenticator->Prove(Authenticator::Role::kClient, {first.hello, first.challenge});
  first.Prove(proof);
  CHECK(first.Next() == FrameKind::kHelloAck);

  Stranger second(address);
  CHECK(second.challenge != first.challenge);
  second.Prove(proof);
  CHECK(second.Next() == FrameKind::kGoodbye);
}

TEST(a_proof_for_another_task_or_by_the_server_s_role_is_none) {
  Task ps("ps:0", 1, With(kToken));
  const std::string address = ps.Listen();
  const auto authenticator = Make();
  Stranger renamed(address);
  std::string hello = renamed.hello;
  hello.replace(hello.find("worker:0"), 8, "worker:1");
  renamed.Prove(authenticator->Prove(Authenticator::Role::kClient, {hello, renamed.challenge}));
  CHECK(renamed.Next() == FrameKind::kGoodbye);

  Stranger reflected(address);
  reflected.Prove(
      authenticator->Prove(Authenticator::Role::kServer, {reflected.hello, reflected.challenge}));
  CHECK(reflected.Next() == FrameKind::kGoodbye);

  Stranger lost(address, "ps:1");  // has the token, but wants another task
  lost.Prove(authenticator->Prove(Authenticator::Role::kClient, {lost.hello, lost.challenge}));
  CHECK(lost.Next() == FrameKind::kGoodbye);
  CHECK(Contains(lost.last, "wants ps:1, and this is ps:0"));
}

TEST(a_server_that_cannot_prove_is_not_asked_anything) {
  Task worker("worker:0", 1, With(kToken));
  const auto authenticator = Make();
  for (const std::string what : {"nothing", "the client's proof", "another answer"}) {
    RawServer server;
    auto channel = worker.engine->Connect(server.address(), "ps:0");
    auto future = Begin(*channel, kEcho, "secret", "payload");
    RawStream stream = server.Accept();
    ReadFrame hello;
    CHECK(stream.Read(&hello));
    if (what == "nothing") {
      CHECK(stream.Send(Frame(FrameKind::kHelloAck, 0, 0, "task=ps:0\n")));
    } else {
      const std::string challenge = "challenge=" + Authenticator::Challenge() + "\n";
      CHECK(stream.Send(Frame(FrameKind::kChallenge, 0, 0, challenge)));
      ReadFrame proof;
      CHECK(stream.Read(&proof));
      CHECK(proof.header.kind == FrameKind::kProof);
      const std::string said =
          what == "another answer"
              ? "proof=" + authenticator->Prove(Authenticator::Role::kServer,
                                                {hello.metadata, challenge, "task=ps:1\n"})
              : proof.metadata;
      CHECK(stream.Send(Frame(FrameKind::kHelloAck, 0, 0, "task=ps:0\n" + said)));
    }
    ReadFrame goodbye;
    CHECK(stream.Read(&goodbye));
    CHECK(goodbye.header.kind == FrameKind::kGoodbye);
    shutdown(stream.fd(), SHUT_RDWR);
    const Status status = Get(std::move(future)).status;
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(Contains(status.message(), "TENSORWIRE_TOKEN_FILE"));
  }
}

TEST(challenges_are_fresh) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string challenge = Authenticator::Challenge();
    CHECK_EQ(challenge.size(), 64u);
    CHECK(seen.insert(challenge).second);
  }
}

TEST(a_proof_is_the_hmac_sha256_of_what_was_said) {
  // Computed by Python's hmac:
  //   key = hmac.new(b"a" * 64, b"tensorwire: who opens a connection", "sha256").digest()
  //   part = lambda b: struct.pack("<Q", len(b)) + b
  //   hmac.new(key, b"tensorwire \x01c" + part(b"task=w\n") + part(b"challenge=00\n"), "sha256")
  const auto authenticator = Make();
  CHECK_EQ(authenticator->Prove(Authenticator::Role::kClient, {"task=w\n", "challenge=00\n"}),
           "9409f83167dcb73ff1b29830c71f847fa854d57f7eb30060e7da0bef8bcff428");
  CHECK(!authenticator->Check(Authenticator::Role::kClient, {"task=w\nchallenge", "=00\n"},
                              "9409f83167dcb73ff1b29830c71f847fa854d57f7eb30060e7da0bef8bcff428"));
}

// --- where it comes from -----------------------------------------------------------------------

struct Environment {
  ~Environment() {
    unsetenv("TENSORWIRE_TOKEN");
    unsetenv("TENSORWIRE_TOKEN_FILE");
    if (!path.empty()) unlink(path.c_str());
  }
  void File(const std::string& text, mode_t mode) {
    char name[] = "/tmp/tensorwire-token-XXXXXX";
    const Fd fd(mkstemp(name));
    CHECK(fd.valid());
    CHECK_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    CHECK_EQ(fchmod(fd.get(), mode), 0);
    path = name;
    setenv("TENSORWIRE_TOKEN_FILE", name, 1);
  }
  Status Read() {
    return ReadToken([this](LogLevel, const std::string& line) { log.push_back(line); }, &token);
  }

  std::string path;
  std::string token;
  std::vector<std::string> log;
};

TEST(a_token_is_read_from_the_file_or_the_variable_without_space_around_it) {
  {
    Environment environment;
    CHECK(environment.Read().ok());
    CHECK_EQ(environment.token, "");
  }
  {
    Environment environment;
    setenv("TENSORWIRE_TOKEN", (" " + kToken + "\n").c_str(), 1);
    CHECK(environment.Read().ok());
    CHECK_EQ(environment.token, kToken);
  }
  Environment environment;
  environment.File(kToken + "\n", 0400);
  CHECK(environment.Read().ok());
  CHECK_EQ(environment.token, kToken);
  CHECK(environment.log.empty());
}

TEST(a_file_that_others_may_read_is_one_line_in_the_log) {
  for (const mode_t mode : {0440, 0604}) {
    Environment environment;
    environment.File(kToken, mode);
    CHECK(environment.Read().ok());
    CHECK_EQ(environment.log.size(), 1u);
    CHECK(Contains(environment.log[0], "chmod 400"));
  }
}

TEST(a_file_that_its_owner_gave_to_our_group_is_no_line_in_the_log) {
  if (geteuid() != 0) return;  // only root can give a file away
  Environment environment;
  environment.File(kToken, 0440);
  CHECK_EQ(chown(environment.path.c_str(), 65534, getegid()), 0);
  CHECK(environment.Read().ok());
  CHECK(environment.log.empty());
}

TEST(a_token_that_is_none_is_refused_without_showing_it) {
  {
    Environment environment;
    environment.File("short-secret", 0400);
    const Status status = environment.Read();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(Contains(status.message(), "has 12 characters, and 32 to 1024 are wanted"));
    CHECK_EQ(status.message().find("short-secret"), std::string::npos);
  }
  {
    Environment environment;
    setenv("TENSORWIRE_TOKEN_FILE", "/nowhere/token", 1);
    CHECK(Contains(environment.Read().message(), "cannot read /nowhere/token"));
  }
  {
    Environment environment;
    environment.File(std::string(5000, 'x'), 0400);
    CHECK(!environment.Read().ok());
  }
  Environment environment;
  environment.File(kToken, 0400);
  setenv("TENSORWIRE_TOKEN", kToken.c_str(), 1);
  CHECK(Contains(environment.Read().message(), "unset one"));
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
