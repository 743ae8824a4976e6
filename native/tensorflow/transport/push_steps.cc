#include "transport/push_steps.h"

#include <algorithm>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/fingerprint.h"
#include "tensorflow/core/platform/logging.h"
#include "tensors/tensor_codec.h"
#include "transport/route.h"

namespace tensorwire::plugin {
namespace {

constexpr size_t kMostNotIn = 1024;  // more steps of one session are hardly under way

}  // namespace

uint64_t ScopeOf(const std::string& session_name) {
  return tensorflow::Fingerprint64(session_name);
}

wire::Message Declined(int64_t step_id) {
  wire::Message message;
  message.Put<int64_t>(step_id);
  EncodeTensor(tensorflow::Tensor(), kDead | kDeclined, /*made_us=*/0, &message);
  return message;
}

PushSteps::StepPtr PushSteps::Begin(int64_t step_id, uint64_t scope,
                                    const std::function<std::weak_ptr<const void>()>& find_alive,
                                    const std::weak_ptr<const void>& peers) {
  bool is_known = false;
  {
    std::lock_guard lock(mutex_);
    const auto at = sessions_.find(scope);
    is_known = at != sessions_.end() && at->second->is_known && !IsGoneLocked(*at->second);
  }
  std::weak_ptr<const void> alive;
  if (!is_known) {
    alive = find_alive();
    Sweep();
  }
  std::unordered_map<uint64_t, PushSession::Consumer> former;
  uint64_t event = 0;
  StepPtr step;
  {
    std::lock_guard lock(mutex_);
    const SessionPtr session = SessionLocked(scope);
    const bool is_same = !session->peers.owner_before(peers) && !peers.owner_before(session->peers);
    if (session->is_known && !is_same) {
      former = session->consumers;
      event = ++events_;
      for (const auto& [connection_id, consumer] : former) {
        DropOrdersLocked(session.get(), connection_id);
        auto& ordered = ordered_by_[connection_id];
        ordered.erase(std::remove_if(ordered.begin(), ordered.end(),
                                     [&](const auto& weak) { return weak.lock() == session; }),
                      ordered.end());
      }
    }
    session->peers = peers;
    if (!is_known) {
      session->is_known = !alive.expired();
      session->alive = std::move(alive);
    }
    step = StepLocked(step_id, session, /*is_again=*/ended_.Has(step_id));
    ended_.Remove(step_id);
    if (step->begun.load(std::memory_order_relaxed) == 0) step->begun.store(++events_);
  }
  for (const auto& [connection_id, consumer] : former) {
    Revoke(consumer.pusher, AllOrdersOf(consumer.number), event);
  }
  return step;
}

PushSteps::StepPtr PushSteps::Touch(int64_t step_id, const SessionPtr& session,
                                    std::shared_ptr<SessionPart> part) {
  std::lock_guard lock(mutex_);
  if (session->is_gone || (steps_.count(step_id) == 0 && ended_.Has(step_id))) return nullptr;
  StepPtr step = StepLocked(step_id, session, /*is_again=*/false);
  step->parts.push_back(std::move(part));
  return step;
}

void PushSteps::Join(const SessionPtr& session, std::shared_ptr<SessionPart> part) {
  std::lock_guard lock(mutex_);
  session->parts.push_back(std::move(part));
}

void PushSteps::EndStep(int64_t step_id) {
  if (step_id == kNoStep) return;
  StepPtr ended;  // freed after the lock is released
  {
    std::lock_guard lock(mutex_);
    ended_.Add(step_id);
    const auto at = steps_.find(step_id);
    if (at == steps_.end()) return;
    ended = std::move(at->second);
    steps_.erase(at);
    ended->session->steps.erase(step_id);
  }
  for (const auto& part : ended->parts) part->EndStep(step_id);
}

bool PushSteps::HasEnded(int64_t step_id) const {
  std::lock_guard lock(mutex_);
  return steps_.count(step_id) == 0 && ended_.Has(step_id);
}

bool PushSteps::IsGoneLocked(const PushSession& session) {
  if (session.is_known) return session.alive.expired();
  // Tensors were requested, but no part of it has ever run here.
  return session.consumers.empty() && session.parts.empty() &&
         std::all_of(session.steps.begin(), session.steps.end(),
                     [](const auto& step) { return step.second->begun.load() == 0; });
}

void PushSteps::Sweep() {
  std::vector<SessionPtr> gone;
  std::vector<StepPtr> ended;  // freed after the lock is released
  uint64_t event = 0;
  {
    std::lock_guard lock(mutex_);
    event = ++events_;
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      if (!IsGoneLocked(*at->second)) {
        ++at;
        continue;
      }
      at->second->is_gone = true;
      for (auto& [id, step] : at->second->steps) {
        steps_.erase(id);
        ended.push_back(std::move(step));
      }
      at->second->steps.clear();
      orders_.fetch_sub(at->second->orders.size());
      routes_.fetch_sub(at->second->routes.size());
      gone.push_back(std::move(at->second));
      at = sessions_.erase(at);
    }
  }
  for (const SessionPtr& session : gone) {
    for (const auto& part : session->parts) part->EndSession();
    for (const auto& [connection_id, consumer] : session->consumers) {
      Revoke(consumer.pusher, AllOrdersOf(consumer.number), event);
    }
  }
}

PushSteps::Taken PushSteps::Take(int64_t step_id, uint64_t scope, bool is_again,
                                 const Order& order) {
  Taken taken;
  std::shared_ptr<const Order> replaced;
  const uint64_t connection_id = order.pusher.connection_id();
  std::unique_lock lock(mutex_);
  if (steps_.count(step_id) == 0 && ended_.Has(step_id) && !is_again) return taken;
  const SessionPtr session = SessionLocked(scope);
  taken.step = StepLocked(step_id, session, is_again);
  const auto accepted = session->orders.Update(
      order.key, [&](const std::shared_ptr<const Order>& had) -> std::shared_ptr<const Order> {
        const bool same = had != nullptr && had->pusher.connection_id() == connection_id;
        if (same && had->number == order.number) return nullptr;
        if (had == nullptr && !Count(&orders_)) return nullptr;
        replaced = had;
        auto made = std::make_shared<Order>(order);
        made->slot = had != nullptr ? had->slot : session->last_slot++;
        made->since = ++events_;
        PushSession::Consumer& consumer = session->consumers[connection_id];
        if (consumer.keys.empty()) ordered_by_[connection_id].push_back(session);
        consumer.pusher = order.pusher;
        consumer.number = order.number;
        if (!same) consumer.keys.push_back(order.key);
        return made;
      });
  if (accepted == nullptr) return taken;
  taken.since = accepted->since;
  taken.slot = accepted->slot;
  for (const auto& [id, step] : session->steps) {
    const uint64_t begun = step->begun.load(std::memory_order_relaxed);
    if (id != step_id && begun != 0 && begun < taken.since) taken.not_in.push_back(id);
  }
  taken.is_accepted = taken.not_in.size() <= kMostNotIn;
  lock.unlock();
  if (replaced != nullptr) Revoke(replaced->pusher, replaced->number, taken.since);
  return taken;
}

void PushSteps::DropOrdersLocked(PushSession* session, uint64_t connection_id) {
  for (const std::string& key : session->consumers[connection_id].keys) {
    session->orders.Update(
        key, [&](const std::shared_ptr<const Order>& had) -> std::shared_ptr<const Order> {
          if (had == nullptr || had->pusher.connection_id() != connection_id) return nullptr;
          auto lost = std::make_shared<Order>(*had);
          lost->pusher = wire::Pusher();  // it keeps the connection's descriptor
          return lost;
        });
  }
  session->consumers.erase(connection_id);
}

void PushSteps::Forget(uint64_t connection_id) {
  {
    std::lock_guard lock(mutex_);
    const auto at = ordered_by_.find(connection_id);
    if (at == ordered_by_.end()) return;
    for (const auto& weak : at->second) {
      const SessionPtr session = weak.lock();
      if (session == nullptr) continue;
      DropOrdersLocked(session.get(), connection_id);
    }
    ordered_by_.erase(at);
  }
  Sweep();
}

void PushSteps::Abort(int64_t step_id, uint64_t scope) const {
  std::vector<std::pair<wire::Pusher, uint64_t>> consumers;
  {
    std::lock_guard lock(mutex_);
    const auto session = sessions_.find(scope);
    if (step_id == kNoStep || session == sessions_.end()) return;
    for (const auto& [connection_id, consumer] : session->second->consumers) {
      consumers.emplace_back(consumer.pusher, consumer.number);
    }
  }
  for (const auto& [pusher, number] : consumers) {
    pusher.Push(AllOrdersOf(number), Declined(step_id));
  }
}

void PushSteps::Revoke(const wire::Pusher& pusher, uint64_t number, uint64_t event) {
  wire::Message message = Declined(kNoStep);
  message.Put<uint64_t>(event);
  pusher.Push(number, std::move(message));
}

size_t PushSteps::sessions() const {
  std::lock_guard lock(mutex_);
  return sessions_.size();
}

size_t PushSteps::live_steps() const {
  std::lock_guard lock(mutex_);
  return steps_.size();
}

PushSteps::SessionPtr PushSteps::SessionLocked(uint64_t scope) {
  SessionPtr& session = sessions_[scope];
  if (session == nullptr) session = std::make_shared<PushSession>(scope);
  return session;
}

PushSteps::StepPtr PushSteps::StepLocked(int64_t step_id, const SessionPtr& session,
                                         bool is_again) {
  StepPtr& step = steps_[step_id];
  if (step == nullptr) {
    step = std::make_shared<PushStep>(step_id, session, is_again);
    session->steps.emplace(step_id, step);
  }
  return step;
}

bool PushSteps::Count(std::atomic<size_t>* count) {
  if (count->fetch_add(1, std::memory_order_relaxed) < kMostOrders) return true;
  count->fetch_sub(1, std::memory_order_relaxed);
  static std::atomic<bool> is_told{false};
  if (!is_told.exchange(true)) {
    LOG(WARNING) << "grpc++: this task has " << kMostOrders
                 << " standing orders for tensors; further tensors are requested in every step";
  }
  return false;
}

}  // namespace tensorwire::plugin
