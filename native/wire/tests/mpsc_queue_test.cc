#include "mpsc_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

namespace tensorwire::wire {
namespace {

struct Item : MpscNode {
  int producer = 0;
  int number = 0;
};

TEST(an_empty_queue_gives_nothing) {
  MpscQueue queue;
  CHECK(queue.Pop() == nullptr);
  CHECK(queue.Pop() == nullptr);
}

TEST(first_in_is_first_out_and_nodes_can_be_used_again) {
  MpscQueue queue;
  Item items[3];
  for (int round = 0; round < 10; ++round) {
    for (Item& item : items) queue.Push(&item);
    for (Item& item : items) CHECK(queue.Pop() == &item);
    CHECK(queue.Pop() == nullptr);
    queue.Push(&items[1]);
    CHECK(queue.Pop() == &items[1]);
  }
}

TEST(many_producers_lose_nothing_and_keep_their_own_order) {
  constexpr int kProducers = 4;
  constexpr int kItems = 50'000;
  MpscQueue queue;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kItems; ++i) {
        auto item = std::make_unique<Item>();
        item->producer = p;
        item->number = i;
        queue.Push(item.release());
      }
    });
  }
  int next[kProducers] = {};
  for (int got = 0; got < kProducers * kItems;) {
    std::unique_ptr<Item> item(static_cast<Item*>(queue.Pop()));
    if (item == nullptr) {
      std::this_thread::yield();
      continue;
    }
    CHECK_EQ(item->number, next[item->producer]);
    ++next[item->producer];
    ++got;
  }
  for (auto& producer : producers) producer.join();
  CHECK(queue.Pop() == nullptr);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
