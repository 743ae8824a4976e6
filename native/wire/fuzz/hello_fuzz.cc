// The greetings of both ends of a connection, and the ticket to shared memory.

#include <cstdint>
#include <memory>
#include <string_view>

#include "hello.h"
#include "shared_memory.h"

using namespace tensorwire::wire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Hello hello = Hello::Decode({reinterpret_cast<const char*>(data), size});
  for (const char c : hello.task + hello.memory) {
    if (c < ' ' || c > '~') __builtin_trap();
  }
  hello.Encode();
  std::shared_ptr<const ForeignMemory> memory;
  ForeignMemory::Open(hello.memory, &memory);
  return 0;
}
