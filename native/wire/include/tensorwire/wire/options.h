#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/frame.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// The way of payloads between tasks of one host.
enum class Transport {
  kAuto,    // through memory where the peer grants it, else by TCP
  kTcp,     // always by TCP
  kMemory,  // through memory; a peer that does not grant it is refused
};

class BufferPool;

enum class LogLevel { kInfo, kWarning, kError };

// A peer to which no connection could be made for some time.
struct Unreachable {
  std::string peer;     // as it was given to Engine::Connect
  std::string address;  // likewise
  int64_t for_ms = 0;
  std::string why;  // of the last attempt
};

struct EngineOptions {
  // This process's name for its peers, e.g. "/job:ps/replica:0/task:0". Shown in messages, and
  // checked: a client names the peer it wants, and a server with another name refuses it.
  std::string name;

  int reactors = 1;      // threads that move bytes
  bool polling = false;  // spin instead of sleeping: a core per reactor for some microseconds
  bool pin = false;      // bind each reactor to a core of its own

  Transport transport = Transport::kAuto;
  // True: what is sent, and what peers send here, has checksums. Payloads then go by TCP: what
  // lies in memory that others write to may change between its checksum and its copy.
  bool checksum = false;
  // Over how many connections a large payload that is sent comes in at once. 0: one a reactor, and
  // four at most.
  int streams = 0;
  // The memory of this task's payloads; one that is shared lets peers on this host read them
  // there. It must outlive the engine. Null: nothing is shared.
  BufferPool* pool = nullptr;

  // Both ends of a connection prove to each other that they have it; "" where none is asked for.
  std::string token;
  bool tls = false;  // what goes over the network is encrypted; needs a token

  FrameLimits limits;
  // Limit on a connection's requests (metadata, payload and a kilobyte each) that have arrived
  // and are not answered. One that comes when it is used up fails with kResourceExhausted.
  uint64_t unanswered_bytes = 1ull << 30;
  int connect_timeout_ms = 20000;    // how long a peer that does not answer is waited for, as gRPC
  int handshake_timeout_ms = 10000;  // how long a new connection may take to say who it is
  int ping_after_ms = 10000;         // silence after which a peer is asked for a sign of life
  int silent_timeout_ms = 30000;     // silence after which it counts as lost

  // Runs a closure off the reactor. Everything the engine calls back that may take time goes
  // through here, many completions to a closure. Must not run it in the calling thread.
  std::function<void(std::function<void()>)> executor;

  // Told of a peer that could not be reached for `unreachable_after_ms`, and of the same one again
  // each minute in which calls to it fail. By `executor`. May be null.
  std::function<void(const Unreachable&)> on_unreachable;
  int unreachable_after_ms = 5000;

  // A line for a person. Called from any thread.
  std::function<void(LogLevel, const std::string&)> log;
};

// Sets reactors, polling and pin from GRPC++'s six variables: {PS,WORKER}_ENABLE_POLLING,
// NETWORK_{PS,WORKER}_CORE_NUMBER, {PS,WORKER}_DISABLE_PIN_CORES, those of PS when `job` is "ps"
// and those of WORKER otherwise; transport from TENSORWIRE_TRANSPORT (auto, tcp or memory); streams
// from TENSORWIRE_STREAMS; checksum from TENSORWIRE_CHECKSUM; from TENSORWIRE_PEER_TIMEOUT_S the
// silence after which a peer counts as lost, with a sign of life asked for after a third of it; and
// what ReadSecurity reads. Where a number of cores is not given it is min(8, connections) for a ps,
// min(2, connections) for others, and never more than the cores this process may use; there are two
// connections to each of the task's `peers`. Fails with kInvalidArgument naming the variable when a
// value cannot be read.
TENSORWIRE_API Status ReadEnvironment(const std::string& job, int peers, EngineOptions* options);

// Sets the token: the text of the file that TENSORWIRE_TOKEN_FILE names, or TENSORWIRE_TOKEN
// itself; and tls from TENSORWIRE_TLS. Fails with kInvalidArgument where the token cannot be read
// or is too short, and where TLS has none. `options->log` hears of a file that others than its
// owner may read.
TENSORWIRE_API Status ReadSecurity(EngineOptions* options);

}  // namespace tensorwire::wire
