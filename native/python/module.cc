// The Python module tensorwire._wire: what the Python side shares with the engine, so that a rule
// such as the data port, or a format such as `.endpoint_map`, is written down in one language only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "tensorwire/wire/endpoint_map.h"
#include "tensorwire/wire/options.h"

namespace nb = nanobind;

namespace {

tensorwire::wire::EndpointMap ParseEndpointMap(const std::string& text,
                                               const std::string& filename) {
  tensorwire::wire::EndpointMap map;
  const auto status = tensorwire::wire::ParseEndpointMap(text, filename, &map);
  if (!status.ok()) throw nb::value_error(status.message().c_str());
  return map;
}

int DataPort(int grpc_port) {
  if (grpc_port < 1 || grpc_port > 65535) {
    const std::string message = "a port is 1..65535, not " + std::to_string(grpc_port);
    throw nb::value_error(message.c_str());
  }
  return tensorwire::wire::DataPort(grpc_port);
}

void CheckSecurity() {
  tensorwire::wire::EngineOptions options;
  const auto status = tensorwire::wire::ReadSecurity(&options);
  if (!status.ok()) throw nb::value_error(status.message().c_str());
}

}  // namespace

NB_MODULE(_wire, m) {
  m.doc() = "Binding of the tensorwire engine.";
  m.def("parse_endpoint_map", &ParseEndpointMap, nb::arg("text"), nb::arg("filename"),
        "Pairs (gRPC address, data address) in the file's order. Raises ValueError, which names "
        "file and line and shows the format.");
  m.def("data_port", &DataPort, nb::arg("grpc_port"),
        "The data port that belongs to a gRPC port where no `.endpoint_map` names one.");
  m.def("check_security", &CheckSecurity,
        "Raises ValueError where the environment asks for a job token or TLS that no task could "
        "use.");
}
