#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "call_table.h"
#include "connection.h"

namespace tensorwire::wire {

// A call or push whose payload has not come with its frame: it is fetched or copied.
struct Collection {
  CallTable::Entry entry;           // without a call: nobody wants it, and it is only returned
  std::optional<uint64_t> call_id;  // none: a push
  std::shared_ptr<Connection> lender;
  uint64_t loan = 0;
  Status why;  // it was cancelled
  // Makes it end soon. Empty while there is nothing to be ended, and once it has been called.
  std::function<void(const Status&)> cancel;
};

// The collections of a channel. Each is in here from the arrival of its frame until its payload has
// come, or comes no more; whoever takes it out ends it. Thread-safe.
class Collections {
 public:
  using At = std::list<Collection>::iterator;

  At Add(Collection collection);
  void SetCancel(At at, std::function<void(const Status&)> cancel);
  // All of them, or that of one call.
  void Cancel(std::optional<uint64_t> call_id, const Status& why);
  Collection Take(At at);

 private:
  std::mutex mutex_;
  std::list<Collection> collections_;
};

}  // namespace tensorwire::wire
