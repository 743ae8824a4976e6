// Input from a server to a client's connection, while three calls wait and pushes are accepted. The
// first byte is the size of the pieces. Each call must end exactly once, whatever the input is.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ends.h"

using namespace tensorwire::wire;

namespace {

class FuzzCall : public CallThatEnds {
 public:
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    if (payload_bytes > (1u << 20)) return Status(Code::kResourceExhausted, "too much");
    bytes_.resize(payload_bytes + metadata.size() % 2);  // sometimes not what was announced
    const size_t half = bytes_.size() / 2;
    into->push_back({bytes_.data(), half});
    into->push_back({bytes_.data() + half, bytes_.size() - half});
    return Status();
  }

 private:
  std::string bytes_;
};

class FuzzReceiver : public PushReceiver {
 public:
  std::unique_ptr<Call> BeginFromReactor(uint64_t what) override {
    return what % 3 == 2 ? nullptr : std::make_unique<FuzzCall>();
  }
  void OnLost(const Status&) override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static auto* const world = new World;
  SayToChannel(
      world, [] { return std::make_unique<FuzzCall>(); }, std::make_shared<FuzzReceiver>(),
      {reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  return 0;
}
