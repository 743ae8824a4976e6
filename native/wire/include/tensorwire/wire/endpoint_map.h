#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// How far the data port is above the gRPC port if no `.endpoint_map` names one.
constexpr int kDataPortShift = 20000;

// The port of a task's data plane if no `.endpoint_map` names one: 20000 above its gRPC port,
// wrapping from 65535 to 1024. The mapping is one-to-one on 1024..65535, so the data ports of tasks
// on one host never collide. A port below 1024 is treated as 1024 + port.
TENSORWIRE_API int DataPort(int grpc_port);

// The port that a task uses instead if DataPort is in use and is a port that Linux gives to
// outgoing connections (by default 32768 to 60999): another process may have it by chance. 0 if
// DataPort is not such a port. The second port is in 1024..21023. DataPort is there only for gRPC
// ports above 45535, so the second port is no other task's first data port. Two gRPC ports have the
// same second port only if they differ by 20000; then one task's gRPC port is the other's data port
// anyway.
TENSORWIRE_API int SecondDataPort(int grpc_port);

// Splits "host:port" or "[v6]:port" in two. False if there is no valid port (1..65535).
TENSORWIRE_API bool SplitAddress(std::string_view address, std::string* host, int* port);

// An `.endpoint_map`: one pair (gRPC address, data address) per line, in the order of the file.
using EndpointMap = std::vector<std::pair<std::string, std::string>>;

// Parses the text of an `.endpoint_map`: one `grpc_host:port=data_host:port` per line. Blank lines
// and lines that begin with '#' are skipped. `filename` is for messages only. Fails with
// kInvalidArgument and a message that names file and line and shows the format.
TENSORWIRE_API Status ParseEndpointMap(std::string_view text, const std::string& filename,
                                       EndpointMap* out);

}  // namespace tensorwire::wire
