#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define TENSORWIRE_RAW __attribute__((visibility("default")))
#else
#define TENSORWIRE_RAW
#endif

// Raw RPC, as `tensorwire bench rpc` measures it: the client only sends, the server throws away.
// One interface, and a library for each implementation, so that all do the same work: engine_rpc.cc
// is tensorwire's engine, grpc_rpc.cc is gRPC; load.cc, which says when a request is made and when
// it has ended, is part of each.
//
// A process is either a server or a client, of one implementation. A function that can fail returns
// null, or words that stay valid until the next call.
extern "C" {

// "engine", "grpc C++ 1.51.1".
TENSORWIRE_RAW const char* tensorwire_rpc_implementation();

// Serves until the process ends: receives each request whole, throws it away and answers with
// `response_bytes`. `threads` threads move bytes. `host` may be "" for all interfaces.
TENSORWIRE_RAW const char* tensorwire_rpc_serve(const char* host, int port, int threads,
                                                int64_t response_bytes, int* bound_port);

// Makes `channels`, each a connection of its own, and `threads` threads for them; returns when all
// stand.
TENSORWIRE_RAW const char* tensorwire_rpc_connect(const char* address, int channels, int threads,
                                                  double timeout_s);

// Sends `requests` of `request_bytes` each, `concurrency` of them on their way at a time and spread
// evenly over the channels: who is answered asks again. `latency_us` has room for a time of each;
// `seconds` is from the first request to the last answer.
TENSORWIRE_RAW const char* tensorwire_rpc_ask(int64_t requests, int concurrency,
                                              int64_t request_bytes, int64_t response_bytes,
                                              double timeout_s, double* seconds, float* latency_us);
}
