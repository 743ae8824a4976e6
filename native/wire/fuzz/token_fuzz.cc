// Input from a stranger to one end of a connection with a job token, a client or a server. No input
// may get past the greeting: the right proof needs the token, because the challenge differs each
// time. The highest bit of the first byte selects the end (1: a client); the other bits are the
// size of the pieces.

#include <cstdint>
#include <memory>
#include <vector>

#include "ends.h"

using namespace tensorwire::wire;

namespace {

class NobodyGetsHere : public Handler {
 public:
  RunOn HandleOn(const Request&) const override { Broken("a stranger's request"); }
  std::shared_ptr<char> PlaceFromReactor(uint16_t, uint64_t) override {
    Broken("a stranger's payload");
  }
  void Handle(Request) override { Broken("a stranger's request"); }
  void OnCancel(uint64_t, uint64_t) override { Broken("a stranger's cancellation"); }
  void OnDisconnect(uint64_t) override { Broken("a stranger was let in"); }
};

class Unanswered : public CallThatEnds {
 public:
  Status PrepareFromReactor(std::string_view, uint64_t, std::vector<MutableBuffer>*) override {
    Broken("a stranger's reply");
  }
  void Done(const Status& status) override {
    if (status.code() != Code::kUnavailable && status.code() != Code::kFailedPrecondition) {
      Broken("a stranger's answer");
    }
    CallThatEnds::Done(status);
  }
};

class NothingIsPushed : public PushReceiver {
 public:
  std::unique_ptr<Call> BeginFromReactor(uint64_t) override { Broken("a stranger's push"); }
  void OnLost(const Status&) override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static auto* const world = new World(
      [](EngineOptions* options) { options->token = "a job's token, long enough for it"; });
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = data[0] & 0x7f;
  if ((data[0] & 0x80) == 0) {
    SayToServer(world, std::make_shared<NobodyGetsHere>(), bytes, piece);
  } else {
    SayToChannel(
        world, [] { return std::make_unique<Unanswered>(); }, std::make_shared<NothingIsPushed>(),
        bytes, piece);
  }
  return 0;
}
