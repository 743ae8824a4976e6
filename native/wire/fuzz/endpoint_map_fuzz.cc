// The text of an .endpoint_map.

#include <cstdint>
#include <string>
#include <string_view>

#include "tensorwire/wire/endpoint_map.h"

using namespace tensorwire::wire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  EndpointMap map;
  if (!ParseEndpointMap({reinterpret_cast<const char*>(data), size}, "map", &map).ok()) return 0;
  for (const auto& [grpc, wire] : map) {
    for (const std::string& address : {grpc, wire}) {
      std::string host;
      int port = 0;
      if (!SplitAddress(address, &host, &port) || port < 1 || port > 65535) __builtin_trap();
      if (DataPort(port) < 1024 || DataPort(port) > 65535) __builtin_trap();
    }
  }
  return 0;
}
