#pragma once

#include <cstdint>

#include "rpc.h"

// Raw TCP streams, as `tensorwire bench tcp` measures them: buffers of one size out of the sender's
// memory into the receiver's, and a byte back when all of a block is there. The sockets are the
// caller's: connected, blocking, as the kernel makes them.
extern "C" {

// Receives blocks, each `message_bytes` at a time into `buffer`, until the sender ends the stream.
TENSORWIRE_RAW const char* tensorwire_tcp_receive(int socket, void* buffer, int64_t message_bytes);

// One block: `messages` of `message_bytes` on each of `streams` sockets at the same time, each from
// its own buffer. `seconds` is until the last receiver said that it has all.
TENSORWIRE_RAW const char* tensorwire_tcp_send(const int* sockets, const void* const* buffers,
                                               int streams, int64_t message_bytes, int64_t messages,
                                               double* seconds);
}
