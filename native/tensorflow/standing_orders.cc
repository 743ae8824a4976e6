#include "standing_orders.h"

#include <algorithm>
#include <utility>

#include "tensor_codec.h"
#include "tensorflow/core/platform/fingerprint.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {

uint64_t ScopeOf(const std::string& session_name) {
  return tensorflow::Fingerprint64(session_name);
}

StandingOrders::Asked StandingOrders::Ask(const Wish& wish, wire::Pusher pusher,
                                          tensorflow::Device* device, TensorCounters* counters,
                                          bool* accepted) {
  *accepted = false;
  if (wish.step_id == kNoStep) return Asked::kInRendezvous;
  const uint64_t connection_id = pusher.connection_id();
  // Before the note: a tensor that is pushed in between is noted as sent.
  if (wish.order != 0) {
    *accepted = orders_.Put(std::make_shared<const Order>(
        Order{std::string(wish.key), wish.scope, wish.order, std::move(pusher), device, counters}));
  }
  Part& part = PartOf(wish.step_id);
  std::lock_guard lock(part.mutex);
  Note& note = NotesOf(&part.StepLocked(wish.step_id))[HashOfKey(wish.key)];
  if (note.sent) return note.connection_id == connection_id ? Asked::kOnItsWay : Asked::kGone;
  note.connection_id = connection_id;
  part.CountNoteLocked();
  return Asked::kInRendezvous;
}

bool StandingOrders::Claim(int64_t step_id, std::string_view key, uint64_t connection_id) {
  if (step_id == kNoStep) return true;
  Part& part = PartOf(step_id);
  std::lock_guard lock(part.mutex);
  const auto at = part.steps.find(step_id);
  if (at == part.steps.end()) return true;
  const auto note = at->second.notes.find(HashOfKey(key));
  if (note == at->second.notes.end()) return true;
  if (note->second.connection_id != connection_id) return false;
  note->second.sent = true;
  return true;
}

StandingOrders::Reserved StandingOrders::Reserve(int64_t step_id, uint64_t scope,
                                                 std::string_view key) {
  Reserved reserved;
  if (orders_.empty() || step_id == kNoStep) return reserved;
  const uint64_t key_hash = HashOfKey(key);
  std::shared_ptr<const Order> order = orders_.Find(scope, key, key_hash);
  if (order == nullptr) return reserved;
  const bool is_taken = order->pusher.IsTaken();
  {
    Part& part = PartOf(step_id);
    std::lock_guard lock(part.mutex);
    Step& step = part.StepLocked(step_id);
    if (!step.notes.empty() && step.notes.count(key_hash) != 0) return reserved;
    if (is_taken) {
      step.pushed.push_back({key_hash, {order->pusher.connection_id(), /*sent=*/true}});
      part.CountNoteLocked();
    }
  }
  if (!is_taken) {
    wire::Message message;
    message.Put<int64_t>(step_id);
    EncodeTensor(tensorflow::Tensor(), kDead | kDeclined, /*made_us=*/0, &message);
    order->pusher.Push(order->number, std::move(message));
    return reserved;
  }
  reserved.step_id_ = step_id;
  reserved.key_hash_ = key_hash;
  reserved.order_ = std::move(order);
  return reserved;
}

bool StandingOrders::Push(const Reserved& reserved, const tensorflow::Tensor& tensor,
                          bool is_dead) {
  const Order& order = *reserved.order_;
  wire::Message message;
  message.Put<int64_t>(reserved.step_id_);
  EncodeTensor(tensor, is_dead ? kDead : 0, static_cast<uint32_t>(wire::NowUs()), &message);
  // Before it goes: who has the tensor may look at this task's figures.
  order.counters->Count(message.payload_bytes());
  if (order.pusher.Push(order.number, std::move(message))) return true;
  Release(reserved);  // the connection has ended just now
  return false;
}

void StandingOrders::Release(const Reserved& reserved) {
  Part& part = PartOf(reserved.step_id_);
  std::lock_guard lock(part.mutex);
  if (const auto at = part.steps.find(reserved.step_id_); at != part.steps.end()) {
    NotesOf(&at->second).erase(reserved.key_hash_);
  }
}

StandingOrders::Step& StandingOrders::Part::StepLocked(int64_t step_id) {
  const auto [at, fresh] = steps.try_emplace(step_id);
  if (fresh) {
    at->second.begun = ++steps_begun;
    ++notes;
  }
  return at->second;
}

std::unordered_map<uint64_t, StandingOrders::Note>& StandingOrders::NotesOf(Step* step) {
  step->notes.insert(step->pushed.begin(), step->pushed.end());
  step->pushed.clear();
  return step->notes;
}

void StandingOrders::Part::CountNoteLocked() {
  constexpr size_t kMost = kMostNotes >> kPartBits;
  auto size_of = [](const Step& step) { return 1 + step.notes.size() + step.pushed.size(); };
  if (++notes <= kMost) return;
  notes = 0;
  for (const auto& [id, step] : steps) notes += size_of(step);
  if (notes <= kMost) return;
  const uint64_t middle = steps_begun - steps.size() / 2;
  for (auto at = steps.begin(); at != steps.end();) {
    const size_t size = size_of(at->second);
    const bool drops = at->second.begun <= middle || size > kMost / 2;
    if (drops) notes -= size;
    at = drops ? steps.erase(at) : std::next(at);
  }
}

void StandingOrders::EndStep(int64_t step_id) {
  Part& part = PartOf(step_id);
  std::lock_guard lock(part.mutex);
  const auto at = part.steps.find(step_id);
  if (at == part.steps.end()) return;
  part.notes -= std::min(part.notes, 1 + at->second.notes.size() + at->second.pushed.size());
  part.steps.erase(at);
}

void StandingOrders::EndScope(uint64_t scope) {
  orders_.DropIf([scope](const Order& order) { return order.scope == scope; });
}

void StandingOrders::Forget(uint64_t connection_id) {
  orders_.DropIf([connection_id](const Order& order) {
    return order.pusher.connection_id() == connection_id;
  });
}

}  // namespace tensorwire::plugin
