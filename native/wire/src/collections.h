#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "call_table.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// A call or push whose payload was not in its frame: it is fetched or copied.
struct Collection {
  CallTable::Entry entry;           // without a call: the payload is not wanted, and only returned
  std::optional<uint64_t> call_id;  // empty: a push
  uint64_t loan = 0;
  Status why;  // not OK: it was cancelled
  // Makes it end soon. Empty while there is nothing to end, and after it has been called.
  std::function<void(const Status&)> cancel;
};

// The collections of a peer. Each is in here from the arrival of its frame until its payload is
// complete or has failed; the code that takes it out ends it. Thread-safe.
class Collections {
 public:
  using At = std::list<Collection>::iterator;

  At Add(Collection collection) {
    std::lock_guard lock(mutex_);
    return collections_.insert(collections_.end(), std::move(collection));
  }
  void SetCancel(At at, std::function<void(const Status&)> cancel) {
    std::lock_guard lock(mutex_);
    at->cancel = std::move(cancel);
  }
  // Cancels all of them, or that of one call.
  void Cancel(std::optional<uint64_t> call_id, const Status& why) {
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
  Collection Take(At at) {
    std::list<Collection> taken;
    std::lock_guard lock(mutex_);
    taken.splice(taken.begin(), collections_, at);
    return std::move(taken.front());
  }

 private:
  std::mutex mutex_;
  std::list<Collection> collections_;
};

}  // namespace tensorwire::wire
