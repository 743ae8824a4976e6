#pragma once

#include <cstdint>

#include "rpc.h"

// Raw TCP streams, as `tensorwire bench tcp` measures them: buffers of one size from the sender's
// memory to the receiver's, and one byte back when a whole block has arrived. The caller owns the
// sockets: connected, blocking, with the kernel's default options.
extern "C" {

// Receives blocks, `message_bytes` at a time into `buffer`, until the sender ends the stream.
TENSORWIRE_RAW const char* tensorwire_tcp_receive(int socket, void* buffer, int64_t message_bytes);

// Sends one block: `messages` messages of `message_bytes` on each of `streams` sockets at the same
// time, each from its own buffer. `seconds` is the time until the last receiver has confirmed its
// block.
TENSORWIRE_RAW const char* tensorwire_tcp_send(const int* sockets, const void* const* buffers,
                                               int streams, int64_t message_bytes, int64_t messages,
                                               double* seconds);
}
