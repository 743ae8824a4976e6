#include "standing_orders.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tensor_codec.h"
#include "tensorflow/core/platform/fingerprint.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {
namespace {

uint64_t HashOfKey(std::string_view key) { return std::hash<std::string_view>()(key); }

uint64_t HashOfOrder(uint64_t scope, uint64_t key_hash) {
  return key_hash ^ (scope * 0x9e3779b97f4a7c15u);
}

}  // namespace

uint64_t ScopeOf(const std::string& session_name) {
  return tensorflow::Fingerprint64(session_name);
}

StandingOrders::Asked StandingOrders::Ask(const Wish& wish, wire::Pusher pusher,
                                          TensorCounters* counters, bool* accepted) {
  *accepted = false;
  if (wish.step_id == kNoStep) return Asked::kInRendezvous;
  const uint64_t key_hash = HashOfKey(wish.key);
  const uint64_t connection_id = pusher.connection_id();
  std::lock_guard lock(mutex_);
  if (wish.order != 0) {
    const uint64_t hash = HashOfOrder(wish.scope, key_hash);
    const auto at = orders_.find(hash);
    if (at == orders_.end() ? orders_.size() < kMostOrders : at->second.key == wish.key) {
      orders_[hash] = {std::string(wish.key), wish.scope, wish.order, std::move(pusher), counters};
      any_.store(true, std::memory_order_release);
      *accepted = true;
    }
  }
  Note& note = NotesLocked(&StepLocked(wish.step_id))[key_hash];
  if (note.sent) return note.connection_id == connection_id ? Asked::kOnItsWay : Asked::kGone;
  note.connection_id = connection_id;
  ++notes_;
  MakeRoomLocked();
  return Asked::kInRendezvous;
}

bool StandingOrders::Claim(int64_t step_id, std::string_view key, uint64_t connection_id) {
  if (step_id == kNoStep) return true;
  std::lock_guard lock(mutex_);
  const auto at = steps_.find(step_id);
  if (at == steps_.end()) return true;
  const auto note = at->second.notes.find(HashOfKey(key));
  if (note == at->second.notes.end()) return true;
  if (note->second.connection_id != connection_id) return false;
  note->second.sent = true;
  return true;
}

bool StandingOrders::Push(int64_t step_id, uint64_t scope, std::string_view key,
                          const tensorflow::Tensor& tensor, bool is_dead) {
  if (!any_.load(std::memory_order_acquire) || step_id == kNoStep) return false;
  const uint64_t key_hash = HashOfKey(key);
  uint32_t number = 0;
  wire::Pusher pusher;
  TensorCounters* counters = nullptr;
  bool is_taken = false;
  {
    std::lock_guard lock(mutex_);
    const auto at = orders_.find(HashOfOrder(scope, key_hash));
    if (at == orders_.end() || at->second.key != key) return false;
    number = at->second.number;
    pusher = at->second.pusher;
    counters = at->second.counters;
    Step& step = StepLocked(step_id);
    if (!step.notes.empty() && step.notes.count(key_hash) != 0) return false;
    is_taken = pusher.IsTaken();
    if (is_taken) {
      step.pushed.push_back({key_hash, {pusher.connection_id(), /*sent=*/true}});
      ++notes_;
      MakeRoomLocked();
    }
  }
  wire::Message message;
  message.Put<int64_t>(step_id);
  if (!is_taken) {
    EncodeTensor(tensorflow::Tensor(), kDead | kDeclined, /*made_us=*/0, &message);
    pusher.Push(number, std::move(message));
    return false;
  }
  EncodeTensor(tensor, is_dead ? kDead : 0, static_cast<uint32_t>(wire::NowUs()), &message);
  // Counted before it is sent: a consumer that has the tensor may read this task's metrics at once.
  counters->Count(message.payload_bytes());
  if (pusher.Push(number, std::move(message))) return true;
  // The connection has ended just now.
  std::lock_guard lock(mutex_);
  if (const auto at = steps_.find(step_id); at != steps_.end()) {
    NotesLocked(&at->second).erase(key_hash);
  }
  return false;
}

StandingOrders::Step& StandingOrders::StepLocked(int64_t step_id) {
  const auto [at, fresh] = steps_.try_emplace(step_id);
  if (fresh) {
    at->second.begun = ++steps_begun_;
    ++notes_;
  }
  return at->second;
}

std::unordered_map<uint64_t, StandingOrders::Note>& StandingOrders::NotesLocked(Step* step) {
  step->notes.insert(step->pushed.begin(), step->pushed.end());
  step->pushed.clear();
  return step->notes;
}

void StandingOrders::MakeRoomLocked() {
  auto size_of = [](const Step& step) { return 1 + step.notes.size() + step.pushed.size(); };
  if (notes_ <= kMostNotes) return;
  notes_ = 0;
  for (const auto& [id, step] : steps_) notes_ += size_of(step);
  if (notes_ <= kMostNotes) return;
  const uint64_t middle = steps_begun_ - steps_.size() / 2;
  for (auto at = steps_.begin(); at != steps_.end();) {
    const size_t size = size_of(at->second);
    const bool drops = at->second.begun <= middle || size > kMostNotes / 2;
    if (drops) notes_ -= size;
    at = drops ? steps_.erase(at) : std::next(at);
  }
}

void StandingOrders::EndStep(int64_t step_id) {
  std::lock_guard lock(mutex_);
  const auto at = steps_.find(step_id);
  if (at == steps_.end()) return;
  notes_ -= std::min(notes_, 1 + at->second.notes.size() + at->second.pushed.size());
  steps_.erase(at);
}

template <typename Unwanted>
void StandingOrders::DropOrdersLocked(Unwanted unwanted) {
  for (auto at = orders_.begin(); at != orders_.end();) {
    at = unwanted(at->second) ? orders_.erase(at) : std::next(at);
  }
  any_.store(!orders_.empty(), std::memory_order_release);
}

void StandingOrders::EndScope(uint64_t scope) {
  std::lock_guard lock(mutex_);
  DropOrdersLocked([scope](const Order& order) { return order.scope == scope; });
}

void StandingOrders::Forget(uint64_t connection_id) {
  std::lock_guard lock(mutex_);
  DropOrdersLocked([connection_id](const Order& order) {
    return order.pusher.connection_id() == connection_id;
  });
}

}  // namespace tensorwire::plugin
