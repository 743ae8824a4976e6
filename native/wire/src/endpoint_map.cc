#include "tensorwire/wire/endpoint_map.h"

#include <charconv>
#include <unordered_map>

#include "hello.h"

namespace tensorwire::wire {
namespace {

constexpr int kFirst = 1024;  // the first port that an ordinary user may bind

constexpr const char* kFormat =
    "expected a line a task: grpc_host:port=data_host:port, as in 127.0.0.1:3333=127.0.0.1:5555";

std::string_view Trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

int DataPort(int grpc_port) {
  constexpr int kCount = 65536 - kFirst;
  const int above_first = grpc_port >= kFirst ? grpc_port - kFirst : grpc_port;
  return kFirst + (above_first + kDataPortShift) % kCount;
}

int SecondDataPort(int grpc_port) {
  constexpr int kEphemeralFirst = 32768;
  constexpr int kEphemeralLast = 60999;
  const int first = DataPort(grpc_port);
  if (first < kEphemeralFirst || first > kEphemeralLast) return 0;
  return kFirst + (first - kEphemeralFirst) % kDataPortShift;
}

bool SplitAddress(std::string_view address, std::string* host, int* port) {
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view name = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *port);
  if (error != std::errc() || end != digits.data() + digits.size()) return false;
  if (*port < 1 || *port > 65535) return false;
  if (name.size() >= 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  } else if (name.find(':') != std::string_view::npos) {
    return false;  // a bare IPv6 address: it is ambiguous where the port begins
  }
  if (name.empty() || name.find_first_of(" \t=") != std::string_view::npos) return false;
  *host = std::string(name);
  return true;
}

Status ParseEndpointMap(std::string_view text, const std::string& filename, EndpointMap* out) {
  out->clear();
  std::unordered_map<std::string, int> line_of_grpc;
  std::unordered_map<std::string, int> line_of_data;
  int number = 0;
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);  // a byte order mark
  while (!text.empty()) {
    ++number;
    const auto newline = text.find('\n');
    const std::string_view raw = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    const std::string_view line = Trim(raw);
    if (line.empty() || line.front() == '#') continue;

    auto fail = [&](const std::string& what) {
      return Status(Code::kInvalidArgument,
                    filename + ":" + std::to_string(number) + ": " + what + "; " + kFormat);
    };
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) {
      return fail("no '=' in \"" + Printable(line.substr(0, 200)) + "\"");
    }
    const std::string grpc(Trim(line.substr(0, equals)));
    const std::string data(Trim(line.substr(equals + 1)));
    std::string host;
    int port = 0;
    for (const std::string& address : {grpc, data}) {
      if (!SplitAddress(address, &host, &port)) {
        return fail("\"" + Printable(address.substr(0, 200)) + "\" is not host:port");
      }
    }
    if (auto [at, fresh] = line_of_grpc.emplace(grpc, number); !fresh) {
      return fail("gRPC address " + grpc + " was on line " + std::to_string(at->second) +
                  " already");
    }
    if (auto [at, fresh] = line_of_data.emplace(data, number); !fresh) {
      return fail("data address " + data + " was on line " + std::to_string(at->second) +
                  " already");
    }
    out->emplace_back(grpc, data);
  }
  return Status();
}

}  // namespace tensorwire::wire
