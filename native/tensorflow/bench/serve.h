#pragma once

#include <cstdint>

// The library of `tensorwire bench serve` (called by tensorwire/bench/serve_task.py): a ps whose
// rendezvous is filled in advance, so that a request costs it nothing but the service itself, and
// clients that request tensors over gRPC or grpc++ without Python in between. A separate library
// next to the plug-in, linked with it.
//
// Functions return null, or an error message that stays valid until the thread's next call.

extern "C" {

// Starts this process's server from the serialized ServerDef, as tf.train.Server would. Sets the
// incarnation of its CPU, which is part of every key.
const char* tensorwire_bench_start_ps(const void* server_def, uint64_t bytes,
                                      uint64_t* incarnation);

// Puts `count` uint8 tensors of `sizes` bytes into step `step_id`'s rendezvous, under the names 0
// .. count - 1. Drops what is left of the previous step.
const char* tensorwire_bench_fill(int64_t step_id, const int64_t* sizes, int64_t count);

struct tensorwire_bench_asked {
  double seconds;  // from the first request to the last reply
  int64_t bytes;   // of payload
};

// Makes `clients` clients of the ps at `address`, each with its own connection, which stays open.
const char* tensorwire_bench_connect(const char* protocol, const char* address, int clients,
                                     uint64_t incarnation);

// Requests the first `count` tensors of step `step_id`. Each of the first `busy` clients keeps
// `in_flight` requests in flight until none is left to send; the others keep their connections.
// `latency_us` has room for `count` times, `answers` for each client's number of requests.
const char* tensorwire_bench_ask(int64_t step_id, int64_t count, int busy, int in_flight,
                                 double timeout_s, tensorwire_bench_asked* asked, float* latency_us,
                                 int64_t* answers);
}
