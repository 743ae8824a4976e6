#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tensorwire/wire/export.h"

// The engine's functions for Python (tensorwire/engine.py), so that rules such as the data port,
// and formats such as `.endpoint_map`, are implemented only once.
//
// Nothing throws. A function that can fail returns null, or a message that says why. The message
// belongs to the library and stays valid until the same thread's next call. Text is UTF-8.
extern "C" {

// DataPort of endpoint_map.h, for a port in 1..65535.
TENSORWIRE_API int tensorwire_data_port(int grpc_port);

// SecondDataPort of endpoint_map.h, likewise.
TENSORWIRE_API int tensorwire_second_data_port(int grpc_port);

// Called for each line of an `.endpoint_map`, in the order of the file. The addresses are valid
// during the call.
typedef void tensorwire_endpoint(void* context, const char* grpc_address, const char* data_address);

// ParseEndpointMap of endpoint_map.h. Calls `found` only if the whole text is valid, and otherwise
// fails.
TENSORWIRE_API const char* tensorwire_parse_endpoint_map(const char* text, size_t text_bytes,
                                                         const char* filename,
                                                         tensorwire_endpoint* found, void* context);

// Reach of about.h. Fails if the task cannot be reached, or refuses. Writes at most `version_bytes`
// to `version`, including the null character.
TENSORWIRE_API const char* tensorwire_reach(const char* address, int second_port, const char* peer,
                                            int timeout_ms, int rate_ms, char* version,
                                            size_t version_bytes, int64_t* round_trip_us,
                                            int64_t* clock_ahead_us, double* bytes_per_s);

// Fails if the environment asks for a job token or TLS that no task could use.
TENSORWIRE_API const char* tensorwire_check_security();
}
