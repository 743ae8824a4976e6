// Input from a client to a server's connection. The first byte is the size of the pieces.

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "ends.h"

using namespace tensorwire::wire;

namespace {

// Answers, pushes, fails, or answers late, depending on the request's method.
class FuzzHandler : public Handler {
 public:
  explicit FuzzHandler(BufferPool* pool)
      : block_(pool->Acquire(kBlockBytes), [pool](void* block) { pool->Release(block); }) {
    std::memset(block_.get(), 'b', kBlockBytes);
  }
  RunOn HandleOn(const Request& request) const override {
    if (request.method / 3 % 4 == kLate) return RunOn::kExecutor;
    return static_cast<RunOn>(request.method % 3);
  }
  std::shared_ptr<char> PlaceFromReactor(uint16_t method, uint64_t payload_bytes) override {
    if (method % 5 != 4 || payload_bytes > 4096) return nullptr;
    return std::shared_ptr<char>(new char[payload_bytes], std::default_delete<char[]>());
  }
  void Handle(Request request) override {
    Message reply(7);
    switch (request.method / 3 % 4) {
      case 0:
        reply.AppendMetadata(request.metadata);
        reply.SetOwnedPayload(request.payload);
        return request.Reply(std::move(reply));
      case 1:
        reply.AddPayload(block_.get(), kBlockBytes);  // lent if the client has mapped the memory
        reply.KeepAlive(block_);
        request.pusher().Push(request.id, std::move(reply));
        return request.Reply(Message());
      case 2:
        return request.Fail(Status(Code::kOutOfRange, request.metadata));
      case kLate:
        late_.push_back(std::move(request));
    }
  }
  void OnCancel(uint64_t, uint64_t) override {}
  void OnDisconnect(uint64_t) override {
    for (const Request& request : std::exchange(late_, {})) request.Reply(Message());
  }

 private:
  static constexpr int kLate = 3;
  static constexpr size_t kBlockBytes = 300'000;
  const std::shared_ptr<void> block_;
  std::vector<Request> late_;  // used on the executor only, which is one thread
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static auto* const world = new World;
  static const auto handler = std::make_shared<FuzzHandler>(world->pool());
  SayToServer(world, handler, {reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  return 0;
}
