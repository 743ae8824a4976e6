#include "tensorwire/wire/endpoint_map.h"

#include <map>
#include <set>
#include <string>

#include "check.h"

namespace tensorwire::wire {
namespace {

EndpointMap Parse(const std::string& text) {
  EndpointMap map;
  const Status status = ParseEndpointMap(text, ".endpoint_map", &map);
  if (!status.ok()) check::Fail(__FILE__, __LINE__, status.message());
  return map;
}

// Every error names file and line and shows the format.
bool Fails(const std::string& text, int line, const std::string& with) {
  EndpointMap map;
  const Status status = ParseEndpointMap(text, "dir/.endpoint_map", &map);
  const std::string& message = status.message();
  const bool as_expected =
      status.code() == Code::kInvalidArgument &&
      message.rfind("dir/.endpoint_map:" + std::to_string(line) + ": ", 0) == 0 &&
      message.find(with) != std::string::npos &&
      message.find("grpc_host:port=data_host:port") != std::string::npos &&
      message.find('\n') == std::string::npos;
  if (!as_expected) std::fprintf(stderr, "the message is: %s\n", message.c_str());
  return as_expected;
}

TEST(lines_become_pairs_in_the_order_of_the_file) {
  const EndpointMap map = Parse("127.0.0.1:3333=127.0.0.1:5555\nps1:3333=10.0.0.2:6666\n");
  CHECK_EQ(map.size(), 2u);
  CHECK_EQ(map[0].first, std::string("127.0.0.1:3333"));
  CHECK_EQ(map[0].second, std::string("127.0.0.1:5555"));
  CHECK_EQ(map[1].first, std::string("ps1:3333"));
  CHECK_EQ(map[1].second, std::string("10.0.0.2:6666"));
}

TEST(blank_lines_comments_spaces_and_windows_line_ends_do_not_matter) {
  const EndpointMap map = Parse(
      "# gRPC = data\r\n"
      "\r\n"
      "  a:1 = b:2  \r\n"
      "\t# another\n"
      "c:3=d:4");
  CHECK_EQ(map.size(), 2u);
  CHECK_EQ(map[0].first, std::string("a:1"));
  CHECK_EQ(map[0].second, std::string("b:2"));
  CHECK_EQ(map[1].second, std::string("d:4"));
}

TEST(a_byte_order_mark_is_skipped) {
  CHECK_EQ(Parse("\xef\xbb\xbf"
                 "a:1=b:2\n")
               .size(),
           1u);
}

TEST(an_empty_file_is_an_empty_map) {
  CHECK(Parse("").empty());
  CHECK(Parse("\n\n# nothing\n").empty());
}

TEST(ipv6_goes_in_brackets) {
  CHECK_EQ(Parse("[::1]:3333=[fe80::1%eth0]:5555").size(), 1u);
  CHECK(Fails("::1:3333=[::1]:5555", 1, "\"::1:3333\" is not host:port"));
}

TEST(what_does_not_fit_names_its_line) {
  CHECK(Fails("a:1=b:2\n\nc:3\n", 3, "no '=' in \"c:3\""));
  CHECK(Fails("a=b:2", 1, "\"a\" is not host:port"));
  CHECK(Fails("a:1=b", 1, "\"b\" is not host:port"));
  CHECK(Fails("a:1=", 1, "\"\" is not host:port"));
  CHECK(Fails("=b:2", 1, "\"\" is not host:port"));
  CHECK(Fails(":1=b:2", 1, "\":1\" is not host:port"));
  CHECK(Fails("a:0=b:2", 1, "\"a:0\" is not host:port"));
  CHECK(Fails("a:1=b:65536", 1, "\"b:65536\" is not host:port"));
  CHECK(Fails("a:1=b:-2", 1, "\"b:-2\" is not host:port"));
  CHECK(Fails("a:1=b:2x", 1, "\"b:2x\" is not host:port"));
  CHECK(Fails("a:1=b:99999999999999999999", 1, "is not host:port"));
  CHECK(Fails("a:1=b:2=c:3", 1, "is not host:port"));
  CHECK(Fails("a b:1=c:3", 1, "is not host:port"));
  CHECK(Fails("a:1=b:2 # ps 0", 1, "is not host:port"));
}

TEST(an_endless_line_is_not_shown_whole) {
  EndpointMap map;
  const Status status = ParseEndpointMap(std::string(100'000, 'x'), "f", &map);
  CHECK(!status.ok());
  CHECK(status.message().size() < 1000);
}

TEST(an_address_twice_names_both_lines) {
  CHECK(Fails("a:1=b:2\n#\na:1=c:3\n", 3, "gRPC address a:1 was on line 1 already"));
  CHECK(Fails("a:1=b:2\nc:3=b:2\n", 2, "data address b:2 was on line 1 already"));
}

TEST(an_address_splits_at_its_last_colon) {
  std::string host;
  int port = 0;
  CHECK(SplitAddress("ps-0.train.svc:3333", &host, &port));
  CHECK_EQ(host, std::string("ps-0.train.svc"));
  CHECK_EQ(port, 3333);
  CHECK(SplitAddress("[::1]:65535", &host, &port));
  CHECK_EQ(host, std::string("::1"));
  CHECK_EQ(port, 65535);
  CHECK(!SplitAddress("", &host, &port));
  CHECK(!SplitAddress("[]:1", &host, &port));
  CHECK(!SplitAddress("a:", &host, &port));
}

TEST(the_data_port_is_one_to_one_on_all_ports_a_user_may_bind) {
  std::set<int> seen;
  for (int port = 1024; port <= 65535; ++port) {
    const int data = DataPort(port);
    CHECK(data >= 1024 && data <= 65535);
    CHECK(data != port);
    CHECK(seen.insert(data).second);
  }
  CHECK_EQ(DataPort(2222), 22222);
  CHECK_EQ(DataPort(45535), 65535);
  CHECK_EQ(DataPort(45536), 1024);
  CHECK_EQ(DataPort(65535), 21023);
  CHECK(DataPort(80) >= 1024 && DataPort(80) <= 65535);
}

TEST(a_data_port_that_an_outgoing_connection_may_have_has_a_second_one_which_none_has) {
  for (int port = 1; port <= 65535; ++port) {
    const int first = DataPort(port);
    const int second = SecondDataPort(port);
    CHECK_EQ(second != 0, first >= 32768 && first <= 60999);
    if (second == 0) continue;
    CHECK(second >= 1024 && second < 32768);
  }
  CHECK_EQ(SecondDataPort(2222), 0);
  CHECK_EQ(SecondDataPort(12767), 0);
  CHECK_EQ(SecondDataPort(12768), 1024);
  CHECK_EQ(SecondDataPort(30000), 18256);
  CHECK_EQ(SecondDataPort(40999), 9255);
  CHECK_EQ(SecondDataPort(41000), 0);
  std::map<int, int> port_with;  // by second port
  for (int port = 1024; port <= 65535; ++port) {
    const int second = SecondDataPort(port);
    if (second == 0) continue;
    const auto [at, is_new] = port_with.emplace(second, port);
    CHECK(is_new || port - at->second == 20000);
    CHECK(second < 21024);  // the data port of 1024; a lower gRPC port p counts as p + 1024
  }
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
