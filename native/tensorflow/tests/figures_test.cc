#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "metrics/tensor_figures.h"
#include "transport/push_times.h"

namespace tensorwire::plugin {
namespace {

using Direction = TensorFigures::Direction;

constexpr char kPs[] = "/job:ps/replica:0/task:0/device:CPU:0";
constexpr char kWorker[] = "/job:worker/task:0/device:CPU:0";

std::string Key(const std::string& edge, const std::string& consumer = "/job:worker/task:0") {
  return "/job:ps/replica:0/task:0/device:CPU:0;0123456789abcdef;" + consumer + "/device:CPU:0;" +
         edge + ";3:7";
}

TEST(a_tensor_is_named_for_its_node_in_every_frame_and_by_every_edge) {
  auto& figures = TensorFigures::Get();
  TensorCounters* const counters = figures.Of(Key("edge_12_model/read"), Direction::kOut);
  CHECK(figures.Of(Key("edge_3_model/read"), Direction::kOut) == counters);
  CHECK(figures.Of(Key("edge_12_model/read"), Direction::kIn) != counters);
  CHECK(figures.Of(Key("edge_12_model/other"), Direction::kOut) != counters);
  CHECK(figures.OfPart(kPs, kWorker, "model/read") != counters);
  counters->Count(100);
  bool found = false;
  figures.ForEach([&](const TensorFigures::Entry& entry) {
    if (&entry.counters != counters) return;
    found = true;
    CHECK_EQ(entry.task, std::string("/job:ps/replica:0/task:0"));
    CHECK_EQ(entry.peer, std::string("/job:worker/task:0"));
    CHECK_EQ(entry.name, std::string("model/read"));
    CHECK_EQ(entry.counters.bytes.load(), 100u);
  });
  CHECK(found);
}

TEST(what_is_no_edge_of_a_graph_shares_an_entry) {
  auto& figures = TensorFigures::Get();
  TensorCounters* const unnamed = figures.Of(Key("a copy 17"), Direction::kOut);
  for (const char* edge : {"a copy 18", "", "edge_", "edge_5", "edge__x", "edge_x_y",
                           "edge_5_import_tensorwire.tf_in_every_task/tensor_fuse_1/fuse"}) {
    CHECK(figures.Of(Key(edge), Direction::kOut) == unnamed);
  }
  for (const char* key : {"", ";", ";;;;;;;", "no semicolon"}) {
    CHECK(figures.Of(key, Direction::kOut) != nullptr);
  }
}

TEST(names_and_peers_without_end_do_not_fill_the_memory) {
  auto& figures = TensorFigures::Get();
  for (int i = 0; i < 20'000; ++i) {
    CHECK(figures.Of(Key("edge_1_n" + std::to_string(i)), Direction::kOut) != nullptr);
    CHECK(figures.Of(Key("edge_1_n", "/job:w/task:" + std::to_string(i)), Direction::kIn) !=
          nullptr);
  }
  size_t entries = 0;
  figures.ForEach([&](const TensorFigures::Entry&) { ++entries; });
  CHECK(entries <= 8192);
}

TEST(time_is_counted_once_however_many_wait) {
  UnionClock clock;
  clock.Begin(1'000);
  clock.Begin(1'100);
  clock.End(1'200);
  CHECK_EQ(clock.total_us(1'300), 300u);  // one Recv still waits
  clock.End(1'500);
  CHECK_EQ(clock.total_us(2'000), 500u);
  clock.Begin(9'000);
  clock.End(9'001);
  CHECK_EQ(clock.total_us(9'500), 501u);
}

TEST(a_total_that_was_told_is_never_taken_back) {
  UnionClock clock;
  clock.Begin(1'000);
  CHECK_EQ(clock.total_us(2'000), 1'000u);
  clock.End(1'900);  // the reply came before the total was read
  CHECK_EQ(clock.total_us(3'000), 1'000u);
}

TEST(a_union_clock_that_many_threads_use_ends_with_nobody_waiting) {
  UnionClock clock;
  std::atomic<int64_t> now{1'000};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20'000; ++j) {
        clock.Begin(now.fetch_add(1));
        clock.End(now.fetch_add(1));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const uint64_t before = clock.total_us(1'000'000);
  clock.Begin(1'000'000);
  clock.End(1'000'010);
  CHECK_EQ(clock.total_us(2'000'000), before + 10);
}

// A producer whose clock is `ahead` of ours and runs `ppm` millionths too fast.
struct Producer {
  int64_t ahead;
  int64_t ppm = 0;
  uint32_t At(int64_t ours_us) const {
    return static_cast<uint32_t>(ours_us + ahead + ours_us / 1'000'000 * ppm);
  }
};

TEST(the_way_of_a_push_does_not_depend_on_the_clocks_of_two_hosts) {
  for (const int64_t ahead : {int64_t{0}, int64_t{-7'000'000'000}, int64_t{4'294'967'290}}) {
    const Producer producer{ahead};
    PushTimes times;
    times.NoteRoundTrip(300);
    times.NoteRoundTrip(200);
    times.NoteRoundTrip(5'000);
    int64_t now = 50'000'000;
    CHECK_EQ(times.WayOf(producer.At(now - 100), now), 100);
    now += 1'000;
    CHECK_EQ(times.WayOf(producer.At(now - 3'100), now), 3'100);
    now += 1'000;
    CHECK_EQ(times.WayOf(producer.At(now - 100), now), 100);
  }
}

TEST(clocks_that_drift_apart_do_not_look_like_a_slow_wire) {
  const Producer producer{-123'456'789, -50};
  PushTimes times;
  times.NoteRoundTrip(200);
  for (int64_t now = 1'000'000; now < 3'600'000'000; now += 500'000) {
    const int64_t way = times.WayOf(producer.At(now - 100), now);
    CHECK(way >= 100 && way <= 100 + 50 * 21);  // the drift of two windows
  }
}

}  // namespace
}  // namespace tensorwire::plugin

RUN_TESTS()
