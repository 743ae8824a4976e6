#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// So much the data port is above the gRPC port where no `.endpoint_map` names one.
constexpr int kDataPortShift = 20000;

// The port of a task's data plane where no `.endpoint_map` names one: 20000 above its gRPC port,
// wrapping from 65535 to 1024. One-to-one on 1024..65535, so that tasks that share a host never
// collide among themselves. A port below 1024 is taken as if it were 1024 + port.
TENSORWIRE_API int DataPort(int grpc_port);

// The port that a task takes instead where DataPort is among those that Linux gives to outgoing
// connections (32768 to 60999 unless a host is told otherwise), and in use: another process may
// have it by chance. 0 where DataPort is not among them. It is in 1024..21023, where DataPort is
// only for gRPC ports above 45535, so it is no other task's first data port; and two gRPC ports
// have the same one only if they differ by 20000, when one task's gRPC port is the other's data
// port anyway.
TENSORWIRE_API int SecondDataPort(int grpc_port);

// "host:port" or "[v6]:port" in two parts. False when there is no valid port (1..65535).
TENSORWIRE_API bool SplitAddress(std::string_view address, std::string* host, int* port);

// An `.endpoint_map`: (gRPC address, data address) a line, in the order of the file.
using EndpointMap = std::vector<std::pair<std::string, std::string>>;

// Reads the text of an `.endpoint_map`: `grpc_host:port=data_host:port` a line; blank lines and
// lines that begin with '#' are skipped. `filename` is for messages only. Fails with
// kInvalidArgument naming file and line, and showing the format.
TENSORWIRE_API Status ParseEndpointMap(std::string_view text, const std::string& filename,
                                       EndpointMap* out);

}  // namespace tensorwire::wire
