#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define TENSORWIRE_RAW __attribute__((visibility("default")))
#else
#define TENSORWIRE_RAW
#endif

// Raw RPC, as `tensorwire bench rpc` measures it: the client only sends, the server discards. There
// is one interface, and one library per implementation, so that all do the same work: engine_rpc.cc
// is tensorwire's engine, grpc_rpc.cc is gRPC. load.cc is part of each library; it decides when
// requests begin and measures them.
//
// A process is either a server or a client, of one implementation. A function that can fail returns
// null, or an error message that stays valid until the next call.
extern "C" {

// "engine", "grpc C++ 1.51.1".
TENSORWIRE_RAW const char* tensorwire_rpc_implementation();

// Serves until the process ends: receives each request completely, discards it and answers with
// `response_bytes`. `threads` threads move bytes. `host` may be "" for all interfaces.
TENSORWIRE_RAW const char* tensorwire_rpc_serve(const char* host, int port, int threads,
                                                int64_t response_bytes, int* bound_port);

// Makes `channels`, each with its own connection, and `threads` threads for them. Returns when all
// are connected.
TENSORWIRE_RAW const char* tensorwire_rpc_connect(const char* address, int channels, int threads,
                                                  double timeout_s);

// Sends `requests` requests of `request_bytes` each, `concurrency` of them at a time, spread evenly
// over the channels: each answer starts the next request. `latency_us` has room for one time per
// request; `seconds` is from the first request to the last answer.
TENSORWIRE_RAW const char* tensorwire_rpc_ask(int64_t requests, int concurrency,
                                              int64_t request_bytes, int64_t response_bytes,
                                              double timeout_s, double* seconds, float* latency_us);
}
