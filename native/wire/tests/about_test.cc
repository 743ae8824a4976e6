// What a server says of itself to a peer (kAbout), and what the peer measures.

#include "about.h"

#include <string>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

TEST(a_server_tells_its_version_and_clock) {
  Task ps("ps:0");
  Reached reached;
  const Status status = Reach(ps.Listen(), 0, "ps:0", 20'000, /*rate_ms=*/0, &reached);
  CHECK_EQ(status.message(), "");
  CHECK_EQ(reached.version, TENSORWIRE_VERSION);
  CHECK(reached.round_trip_us > 0);
  CHECK(reached.clock_ahead_us < reached.round_trip_us);  // both clocks are this host's
  CHECK(reached.clock_ahead_us > -reached.round_trip_us);
  CHECK_EQ(reached.bytes_per_s, 0.0);
}

TEST(the_rate_to_a_server_is_measured_and_nothing_is_kept_there) {
  Task ps("ps:0");
  Reached reached;
  CHECK(Reach(ps.Listen(), 0, "ps:0", 20'000, /*rate_ms=*/50, &reached).ok());
  CHECK(reached.bytes_per_s > 1e6);
  Eventually([&] { return ps.handler->disconnects == 1; });
}

TEST(a_server_that_refuses_or_is_not_there_is_named) {
  Task ps("ps:0");
  Reached reached;
  const std::string address = ps.Listen();
  const Status refused = Reach(address, 0, "ps:7", 20'000, 0, &reached);
  CHECK(refused.code() == Code::kFailedPrecondition);
  CHECK(Contains(refused.message(), "wants ps:7, and this is ps:0"));
  ps.engine->Stop();
  const Status closed = Reach(address, 0, "ps:0", 20'000, 0, &reached);
  CHECK(closed.code() == Code::kUnavailable);
  CHECK(Contains(closed.message(), "last error: Connection refused"));
}

TEST(a_server_is_asked_at_its_second_port_too) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  Task other("ps:1");
  Reached reached;
  CHECK(Reach(other.Listen(), PortOf(address), "ps:0", 20'000, 0, &reached).ok());
}

TEST(a_peer_that_never_answers_costs_the_timeout_only) {
  RawServer server;
  Reached reached;
  const Status status = Reach(server.address(), 0, "ps:0", 200, 0, &reached);
  CHECK(!status.ok());
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
