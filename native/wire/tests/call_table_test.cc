#include "call_table.h"

#include <memory>
#include <set>
#include <vector>

#include "check.h"

namespace tensorwire::wire {
namespace {

class NoCall : public Call {
 public:
  Status PrepareFromReactor(std::string_view, uint64_t, std::vector<MutableBuffer>*) override {
    return Status();
  }
  void Done(const Status&) override {}
};

TEST(a_call_can_be_taken_once) {
  CallTable table;
  auto call = std::make_unique<NoCall>();
  const Call* address = call.get();
  const uint64_t id = table.Insert(std::move(call), RunOn::kReactor);
  CHECK(id != 0);
  CHECK_EQ(table.size(), 1u);
  const CallTable::Entry entry = table.Take(id);
  CHECK(entry.call.get() == address);
  CHECK(entry.done_on == RunOn::kReactor);
  CHECK(table.Take(id).call == nullptr);
  CHECK_EQ(table.size(), 0u);
}

TEST(ids_that_were_never_given_are_nobody) {
  CallTable table;
  table.Insert(std::make_unique<NoCall>(), RunOn::kExecutor);
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{99}, ~uint64_t{0}}) {
    CHECK(table.Take(id).call == nullptr);
  }
}

TEST(an_id_comes_back_only_after_billions) {
  CallTable table;
  std::set<uint64_t> seen;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t id = table.Insert(std::make_unique<NoCall>(), RunOn::kExecutor);
    CHECK(seen.insert(id).second);
    CHECK(table.Take(id).call != nullptr);
  }
}

TEST(all_of_them_are_taken_at_once) {
  CallTable table;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 10; ++i) {
    ids.push_back(table.Insert(std::make_unique<NoCall>(), RunOn::kExecutor));
  }
  table.Take(ids[3]);
  CHECK_EQ(table.TakeAll().size(), 9u);
  CHECK_EQ(table.size(), 0u);
  for (const uint64_t id : ids) CHECK(table.Take(id).call == nullptr);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
