#include "tensorwire/wire/options.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "cores.h"
#include "token.h"

namespace tensorwire::wire {
namespace {

Status ReadBool(const std::string& name, bool* value) {
  const char* text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return Status();
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "1" || lower == "true") {
    *value = true;
  } else if (lower == "0" || lower == "false") {
    *value = false;
  } else {
    return Status(Code::kInvalidArgument,
                  "environment variable " + name + "=" + text + ": expected True or False");
  }
  return Status();
}

Status ReadCount(const std::string& name, int* value) {
  const char* text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return Status();
  const std::string_view digits(text);
  int parsed = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed);
  if (error != std::errc() || end != digits.data() + digits.size() || parsed < 1 || parsed > 256) {
    return Status(Code::kInvalidArgument, "environment variable " + name + "=" + text +
                                              ": expected a number from 1 to 256");
  }
  *value = parsed;
  return Status();
}

Status ReadTransport(Transport* transport) {
  constexpr const char* kName = "TENSORWIRE_TRANSPORT";
  const char* text = std::getenv(kName);
  if (text == nullptr || *text == '\0') return Status();
  const std::string_view value(text);
  if (value == "auto") {
    *transport = Transport::kAuto;
  } else if (value == "tcp") {
    *transport = Transport::kTcp;
  } else if (value == "memory") {
    *transport = Transport::kMemory;
  } else {
    return Status(Code::kInvalidArgument, std::string("environment variable ") + kName + "=" +
                                              text + ": expected auto, tcp or memory");
  }
  return Status();
}

}  // namespace

// The cores that this process may run on: a container's CPU set can be smaller than the machine.
int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Status ReadEnvironment(const std::string& job, int peers, EngineOptions* options) {
  const std::string prefix = job == "ps" ? "PS" : "WORKER";
  const int connections = 2 * std::max(1, peers);
  const int wanted = std::min(job == "ps" ? 8 : 2, connections);
  options->reactors = std::min(wanted, UsableCores());
  if (Status s = ReadCount("NETWORK_" + prefix + "_CORE_NUMBER", &options->reactors); !s.ok()) {
    return s;
  }
  if (Status s = ReadBool(prefix + "_ENABLE_POLLING", &options->polling); !s.ok()) return s;
  if (Status s = ReadCount("TENSORWIRE_STREAMS", &options->streams); !s.ok()) return s;
  if (Status s = ReadTransport(&options->transport); !s.ok()) return s;
  if (const char* text = std::getenv("TENSORWIRE_HOST_DIR"); text != nullptr) {
    options->host_directory = text;
  }
  int silent_s = options->silent_timeout_ms / 1000;
  if (Status s = ReadCount("TENSORWIRE_PEER_TIMEOUT_S", &silent_s); !s.ok()) return s;
  options->silent_timeout_ms = silent_s * 1000;
  options->ping_after_ms = options->silent_timeout_ms / 3;
  if (Status s = ReadBool("TENSORWIRE_CHECKSUM", &options->checksum); !s.ok()) return s;
  if (options->checksum && options->transport == Transport::kMemory) {
    return Status(Code::kInvalidArgument,
                  "environment variables TENSORWIRE_CHECKSUM=1 and TENSORWIRE_TRANSPORT=memory "
                  "exclude each other: payloads with checksums go by TCP");
  }
  bool unpinned = true;
  if (Status s = ReadBool(prefix + "_DISABLE_PIN_CORES", &unpinned); !s.ok()) return s;
  options->pin = !unpinned;
  return ReadSecurity(options);
}

Status ReadSecurity(EngineOptions* options) {
  if (Status s = ReadToken(options->log, &options->token); !s.ok()) return s;
  if (Status s = ReadBool("TENSORWIRE_TLS", &options->tls); !s.ok()) return s;
  if (options->tls && options->token.empty()) {
    return Status(Code::kInvalidArgument,
                  "environment variable TENSORWIRE_TLS: TLS takes its key from the job token, and "
                  "there is none: set TENSORWIRE_TOKEN_FILE");
  }
  return Status();
}

}  // namespace tensorwire::wire
