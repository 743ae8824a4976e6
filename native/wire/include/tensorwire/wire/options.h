#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/frame.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// How payloads travel between tasks of one host.
enum class Transport {
  kAuto,    // through shared memory if the peer allows it, else by TCP
  kTcp,     // always by TCP
  kMemory,  // through shared memory; a peer that does not allow it is refused
};

class BufferPool;

enum class LogLevel { kInfo, kWarning, kError };

struct EngineOptions {
  // This process's name for its peers, e.g. "/job:ps/replica:0/task:0". Shown in messages, and
  // checked: a client names the peer that it wants, and a server with another name refuses it.
  std::string name;

  int reactors = 1;      // threads that move bytes
  bool polling = false;  // spin instead of sleeping: saves microseconds, costs a core per reactor
  bool pin = false;      // bind each reactor to a core of its own

  Transport transport = Transport::kAuto;
  // True: all frames of this task and of its peers to it have checksums. Payloads then go by TCP,
  // because shared memory may change between the checksum and the copy.
  bool checksum = false;
  // The number of connections over which a large payload comes in at the same time. 0: one per
  // reactor, at most four.
  int streams = 0;
  // The memory of this task's payloads. If it is shared, peers on this host read them there. It
  // must outlive the engine. Null: nothing is shared.
  BufferPool* pool = nullptr;
  // Where tasks of one host that do not share a network namespace (pods) meet: a directory that all
  // of them see. "": only tasks of one network namespace share memory. See lane.h.
  std::string host_directory;

  // The job token. Both ends of a connection prove to each other that they have it. "": none is
  // used.
  std::string token;
  bool tls = false;  // network traffic is encrypted; needs a token

  FrameLimits limits;
  // Limit on the requests (metadata, payload and a kilobyte each) that have arrived and are not
  // answered. A request beyond it fails with kResourceExhausted. It is one for all connections, but
  // the first thousandth of it is each connection's own: who asks for little is never refused.
  uint64_t unanswered_bytes = 1ull << 30;
  // Limit on accepted connections that have not finished their greeting. 0: what the limit of
  // descriptors and 64 MB allow.
  int strangers = 0;
  int connect_timeout_ms = 20000;    // how long to wait for a peer that does not answer; as in gRPC
  int handshake_timeout_ms = 10000;  // how long the greeting of an accepted connection may take
  int ping_after_ms = 10000;         // silence after which the peer is pinged
  int silent_timeout_ms = 30000;     // silence after which the peer counts as lost

  // Runs a closure off the reactor. The engine's callbacks that may take time go through here, many
  // completions per closure. Must not run the closure in the calling thread.
  std::function<void(std::function<void()>)> executor;

  // Like `executor`, for what may block for seconds: asking the name service. Null: `executor`.
  std::function<void(std::function<void()>)> blocking_executor;

  // A peer that could not be reached for so long is logged, and again each minute in which calls to
  // it fail.
  int unreachable_after_ms = 5000;

  // Logs one line for the user. Called from any thread.
  std::function<void(LogLevel, const std::string&)> log;
};

// Sets reactors, polling and pin from GRPC++'s six variables: {PS,WORKER}_ENABLE_POLLING,
// NETWORK_{PS,WORKER}_CORE_NUMBER, {PS,WORKER}_DISABLE_PIN_CORES, those of PS when `job` is "ps"
// and those of WORKER otherwise; transport from TENSORWIRE_TRANSPORT (auto, tcp or memory); streams
// from TENSORWIRE_STREAMS; checksum from TENSORWIRE_CHECKSUM; from TENSORWIRE_PEER_TIMEOUT_S the
// silence after which a peer counts as lost (it is pinged after a third of that); and what
// ReadSecurity reads; host_directory from TENSORWIRE_HOST_DIR. The default number of cores is
// min(8, connections) for a ps and min(2, connections) for others, but never more than the cores
// that this process may use; there are two connections to each of the task's `peers`. Fails with
// kInvalidArgument and names the variable if a value cannot be read.
TENSORWIRE_API Status ReadEnvironment(const std::string& job, int peers, EngineOptions* options);

// Sets the token: the text of the file that TENSORWIRE_TOKEN_FILE names, or TENSORWIRE_TOKEN
// itself; and tls from TENSORWIRE_TLS. Fails with kInvalidArgument if the token cannot be read or
// is too short, or if TLS is set without a token. Warns through `options->log` if other users than
// its owner may read the file.
TENSORWIRE_API Status ReadSecurity(EngineOptions* options);

}  // namespace tensorwire::wire
