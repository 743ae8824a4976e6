// The greetings of both ends of a connection, and the name of a lane.

#include <cstdint>
#include <string_view>

#include "hello.h"
#include "lane.h"

using namespace tensorwire::wire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Hello hello = Hello::Decode({reinterpret_cast<const char*>(data), size});
  for (const char c : hello.task + hello.lane) {
    if (c < ' ' || c > '~') __builtin_trap();
  }
  hello.Encode();
  SocketAddress address;
  LaneAddress(hello.task, hello.lane, &address);
  return 0;
}
