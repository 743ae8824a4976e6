#pragma once

#include <string>
#include <vector>

#include "fd.h"
#include "socket.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// The lane: a Unix socket on which a server listens beside its TCP port. Its name is a random
// number, which the server tells a client in the greeting over TCP. So a client that reaches it is
// on the server's host, and has come to the process that it has greeted. It then greets once more
// over the lane, is given the server's shared memory, and closes the TCP connection: the lane
// carries all frames from then on.
//
// The socket is an abstract one, which only processes of the same network namespace can reach. With
// `directory` (EngineOptions::host_directory) it is a file there, which all processes that see the
// directory can reach. The directory need not be trusted: both ends check the other's user.

// The address of a lane. False if `name` is no lane's, or the directory's path is too long.
bool LaneAddress(const std::string& directory, const std::string& name, SocketAddress* out);

// Listens on a new lane. Removes the files of processes that have been killed.
Status ListenOnLane(const std::string& directory, Fd* out, std::string* name);

// Removes the file of a lane.
void RemoveLane(const std::string& directory, const std::string& name);

// True if the process at the other end of a Unix socket has the same user as this one.
bool IsSameUser(int fd);

// Room for one descriptor beside the bytes of a message over a Unix socket. Further ones that come
// with a message are discarded.
struct DescriptorRoom {
  explicit DescriptorRoom(msghdr* message) {
    message->msg_control = bytes;
    message->msg_controllen = sizeof(bytes);
  }
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};
void PutDescriptor(int fd, msghdr* message);
Fd TakeDescriptor(msghdr* message);  // not valid if there is none

}  // namespace tensorwire::wire
