#include "collections.h"

#include <utility>
#include <vector>

namespace tensorwire::wire {

Collections::At Collections::Add(Collection collection) {
  std::lock_guard lock(mutex_);
  return collections_.insert(collections_.end(), std::move(collection));
}

void Collections::SetCancel(At at, std::function<void(const Status&)> cancel) {
  std::lock_guard lock(mutex_);
  at->cancel = std::move(cancel);
}

void Collections::Cancel(std::optional<uint64_t> call_id, const Status& why) {
  std::vector<std::function<void(const Status&)>> cancels;
  {
    std::lock_guard lock(mutex_);
    for (Collection& collection : collections_) {
      if (collection.cancel == nullptr || (call_id && collection.call_id != *call_id)) continue;
      collection.why = collection.entry.EndedBy(why);
      cancels.push_back(std::exchange(collection.cancel, nullptr));
    }
  }
  for (const auto& cancel : cancels) cancel(why);  // this may take the collection out
}

Collection Collections::Take(At at) {
  std::list<Collection> taken;
  std::lock_guard lock(mutex_);
  taken.splice(taken.begin(), collections_, at);
  return std::move(taken.front());
}

}  // namespace tensorwire::wire
