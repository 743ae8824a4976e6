// The numbers of payloads that a task holds for its peers. A client that has seen some of them must
// not be able to request another client's payloads.

#include "loans.h"

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kMb = 1u << 20;

// A Mersenne Twister that continues after the outputs of another one. Its state is those outputs
// with the output mixing undone.
std::mt19937_64 GoOnAfter(const std::vector<uint64_t>& seen) {
  std::stringstream state;
  for (uint64_t x : seen) {
    x ^= x >> 43;
    x ^= (x << 37) & 0xfff7eee000000000;
    uint64_t y = x;
    for (int i = 0; i < 4; ++i) y = x ^ ((y << 17) & 0x71d67fffeda60000);
    uint64_t z = y;
    for (int i = 0; i < 3; ++i) z = y ^ ((z >> 29) & 0x5555555555555555);
    state << z << ' ';
  }
  state << seen.size();  // the whole state is used up
  std::mt19937_64 random;
  state >> random;
  return random;
}

TEST(the_twister_that_goes_on_is_the_one_that_was_seen) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> seen;
  for (size_t i = 0; i < std::mt19937_64::state_size; ++i) seen.push_back(random());
  std::mt19937_64 other = GoOnAfter(seen);
  for (int i = 0; i < 1000; ++i) CHECK_EQ(other(), random());
}

TEST(numbers_of_held_payloads_cannot_be_computed_from_those_before) {
  HeldPayloads held;
  std::vector<uint64_t> seen;
  for (size_t i = 0; i < std::mt19937_64::state_size; ++i) seen.push_back(held.Add(nullptr));
  std::mt19937_64 guess = GoOnAfter(seen);
  for (int i = 0; i < 10; ++i) CHECK(held.Add(nullptr) != guess());
}

TEST(a_payload_is_held_only_for_a_peer_that_has_said_that_it_fetches) {
  HeldPayloads held;
  Loans loans(nullptr, &held);
  const std::string bytes(10 * kMb, 'x');
  Message message;
  message.AddPayload(bytes.data(), bytes.size());
  CHECK(!loans.Hold(&message));
  CHECK_EQ(message.payload_bytes(), 10 * kMb);
  loans.AllowHolding(8u << 20);
  CHECK(loans.Hold(&message));
  CHECK_EQ(message.payload_bytes(), 0u);
}

TEST(a_payload_is_sent_when_the_system_has_no_random_bytes) {
  HeldPayloads held([](void*, size_t) { return false; });
  Loans loans(nullptr, &held);
  loans.AllowHolding(8u << 20);
  auto owner = std::make_shared<const std::string>(10 * kMb, 'x');
  Message message;
  message.AddPayload(owner->data(), owner->size());
  message.KeepAlive(owner);
  CHECK(!loans.Hold(&message));
  CHECK_EQ(message.payload_bytes(), 10 * kMb);
  CHECK_EQ(message.metadata_bytes(), 0u);
  CHECK_EQ(owner.use_count(), 2);  // the message still holds it
  CHECK(held.Find(0) == nullptr);
}

TEST(numbers_of_held_payloads_cost_no_system_call_each) {
  static int calls;
  calls = 0;
  HeldPayloads held([](void* to, size_t bytes) {
    ++calls;
    return RandomBytes(to, bytes);
  });
  std::set<uint64_t> numbers;
  for (int i = 0; i < 320; ++i) numbers.insert(held.Add(nullptr));
  CHECK_EQ(numbers.size(), 320u);
  CHECK_EQ(numbers.count(0), 0u);
  CHECK(calls <= 10);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
