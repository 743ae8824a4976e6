#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tensorwire/wire/export.h"

// The engine's functions for Python (tensorwire/engine.py), so that a rule such as the data port,
// or a format such as `.endpoint_map`, is written down in one language only.
//
// Nothing throws. A function that can fail returns null, or words that say why: they belong to the
// library and stay valid until the calling thread calls it again. Text is UTF-8.
extern "C" {

// DataPort of endpoint_map.h, for a port in 1..65535.
TENSORWIRE_API int tensorwire_data_port(int grpc_port);

// SecondDataPort of endpoint_map.h, likewise.
TENSORWIRE_API int tensorwire_second_data_port(int grpc_port);

// Is called with each line of an `.endpoint_map`, in the order of the file. The addresses are valid
// during the call.
typedef void tensorwire_endpoint(void* context, const char* grpc_address, const char* data_address);

// ParseEndpointMap of endpoint_map.h: calls `found` if the whole text is good, and fails without a
// call otherwise.
TENSORWIRE_API const char* tensorwire_parse_endpoint_map(const char* text, size_t text_bytes,
                                                         const char* filename,
                                                         tensorwire_endpoint* found, void* context);

// Reach of about.h: fails where the task cannot be reached, or refuses. `version` gets at most
// `version_bytes`, with the null character.
TENSORWIRE_API const char* tensorwire_reach(const char* address, int second_port, const char* peer,
                                            int timeout_ms, int rate_ms, char* version,
                                            size_t version_bytes, int64_t* round_trip_us,
                                            int64_t* clock_ahead_us, double* bytes_per_s);

// Fails where the environment asks for a job token or TLS that no task could use.
TENSORWIRE_API const char* tensorwire_check_security();
}
