#include "tcp.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

// Both return 0 or an errno value.
int SendAll(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return 0;
}

int ReceiveAll(int socket, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, at, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return ECONNRESET;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return 0;
}

int SendBlock(int socket, const void* buffer, int64_t message_bytes, int64_t messages) {
  int error = SendAll(socket, &messages, sizeof(messages));
  for (int64_t i = 0; i < messages && error == 0; ++i) {
    error = SendAll(socket, buffer, static_cast<size_t>(message_bytes));
  }
  char all_here = 0;
  return error != 0 ? error : ReceiveAll(socket, &all_here, 1);
}

const char* Words(int error) {
  static thread_local std::string words;
  if (error == 0) return nullptr;
  words = std::string("the stream broke: ") + std::strerror(error);
  return words.c_str();
}

}  // namespace

const char* tensorwire_tcp_receive(int socket, void* buffer, int64_t message_bytes) {
  for (;;) {
    int64_t messages = 0;
    const int ended = ReceiveAll(socket, &messages, sizeof(messages));
    if (ended != 0) return ended == ECONNRESET ? nullptr : Words(ended);
    for (int64_t i = 0; i < messages; ++i) {
      const int error = ReceiveAll(socket, buffer, static_cast<size_t>(message_bytes));
      if (error != 0) return Words(error);
    }
    if (const int error = SendAll(socket, "a", 1); error != 0) return Words(error);
  }
}

const char* tensorwire_tcp_send(const int* sockets, const void* const* buffers, int streams,
                                int64_t message_bytes, int64_t messages, double* seconds) {
  std::vector<int> errors(static_cast<size_t>(streams));
  std::vector<std::thread> others;
  const auto send = [&](int stream) {
    errors[static_cast<size_t>(stream)] =
        SendBlock(sockets[stream], buffers[stream], message_bytes, messages);
  };
  const auto begin = std::chrono::steady_clock::now();
  for (int stream = 1; stream < streams; ++stream) others.emplace_back(send, stream);
  send(0);
  for (auto& thread : others) thread.join();
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const int error : errors) {
    if (error != 0) return Words(error);
  }
  return nullptr;
}
