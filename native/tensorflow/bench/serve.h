#pragma once

#include <cstdint>

// The library of `tensorwire bench serve` (called by tensorwire/bench/serve_task.py): a ps whose
// rendezvous is filled ahead of time, so that its service is all that a request costs it, and
// clients that ask it over gRPC or grpc++ without Python in between. A library of its own, next to
// the plug-in and linked with it.
//
// Functions return null, or an error in words that live until the thread's next call.

extern "C" {

// Starts this process's server, as tf.train.Server would, of the serialized ServerDef. Sets the
// incarnation of its CPU, which is part of every key.
const char* tensorwire_bench_start_ps(const void* server_def, uint64_t bytes,
                                      uint64_t* incarnation);

// Puts `count` uint8 tensors of `sizes` bytes into step `step_id`'s rendezvous, under the names
// 0 .. count - 1. What is left of the step before is dropped.
const char* tensorwire_bench_fill(int64_t step_id, const int64_t* sizes, int64_t count);

struct tensorwire_bench_asked {
  double seconds;  // from the first request to the last reply
  int64_t bytes;   // of payload
};

// Makes `clients` ways to the ps at `address`, each with a connection of its own that stays.
const char* tensorwire_bench_connect(const char* protocol, const char* address, int clients,
                                     uint64_t incarnation);

// Asks for the first `count` tensors of step `step_id`. Every client has `in_flight`
// requests on their way until there is none left to send. `latency_us` has room for `count`, and
// `answers` for the number of requests that each client sent.
const char* tensorwire_bench_ask(int64_t step_id, int64_t count, int in_flight, double timeout_s,
                                 tensorwire_bench_asked* asked, float* latency_us,
                                 int64_t* answers);
}
