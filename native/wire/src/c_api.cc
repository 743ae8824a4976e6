#include "tensorwire/wire/c_api.h"

#include <exception>
#include <string>
#include <string_view>

#include "about.h"
#include "tensorwire/wire/endpoint_map.h"
#include "tensorwire/wire/options.h"
#include "tensorwire/wire/status.h"

namespace {

// The message of the Status that `work` returns; null if it is OK.
template <typename Work>
const char* WordsOf(const Work& work) noexcept {
  thread_local std::string words;
  try {
    const tensorwire::wire::Status status = work();
    if (status.ok()) return nullptr;
    words = status.message();
    return words.c_str();
  } catch (const std::exception&) {  // thrown by the C++ library when it has no memory
    return "out of memory";
  }
}

}  // namespace

int tensorwire_data_port(int grpc_port) { return tensorwire::wire::DataPort(grpc_port); }

int tensorwire_second_data_port(int grpc_port) {
  return tensorwire::wire::SecondDataPort(grpc_port);
}

const char* tensorwire_parse_endpoint_map(const char* text, size_t text_bytes, const char* filename,
                                          tensorwire_endpoint* found, void* context) {
  return WordsOf([&] {
    tensorwire::wire::EndpointMap map;
    const auto status =
        tensorwire::wire::ParseEndpointMap(std::string_view(text, text_bytes), filename, &map);
    if (!status.ok()) return status;
    for (const auto& [grpc_address, data_address] : map) {
      found(context, grpc_address.c_str(), data_address.c_str());
    }
    return status;
  });
}

const char* tensorwire_reach(const char* address, int second_port, const char* peer, int timeout_ms,
                             int rate_ms, char* version, size_t version_bytes,
                             int64_t* round_trip_us, int64_t* clock_ahead_us, double* bytes_per_s) {
  return WordsOf([&] {
    tensorwire::wire::Reached reached;
    const auto status =
        tensorwire::wire::Reach(address, second_port, peer, timeout_ms, rate_ms, &reached);
    version[reached.version.copy(version, version_bytes - 1)] = '\0';
    *round_trip_us = reached.round_trip_us;
    *clock_ahead_us = reached.clock_ahead_us;
    *bytes_per_s = reached.bytes_per_s;
    return status;
  });
}

const char* tensorwire_check_security() {
  return WordsOf([] {
    tensorwire::wire::EngineOptions options;
    return tensorwire::wire::ReadSecurity(&options);
  });
}
