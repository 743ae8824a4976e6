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

// A call or push whose payload was not in its frame: it is fetched or copied.
struct Collection {
  CallTable::Entry entry;           // without a call: the payload is not wanted, and only returned
  std::optional<uint64_t> call_id;  // empty: a push
  std::shared_ptr<Connection> lender;
  uint64_t loan = 0;
  Status why;  // not OK: it was cancelled
  // Makes it end soon. Empty while there is nothing to end, and after it has been called.
  std::function<void(const Status&)> cancel;
};

// The collections of a channel. Each is in here from the arrival of its frame until its payload is
// complete or has failed; the code that takes it out ends it. Thread-safe.
class Collections {
 public:
  using At = std::list<Collection>::iterator;

  At Add(Collection collection);
  void SetCancel(At at, std::function<void(const Status&)> cancel);
  // Cancels all of them, or that of one call.
  void Cancel(std::optional<uint64_t> call_id, const Status& why);
  Collection Take(At at);

 private:
  std::mutex mutex_;
  std::list<Collection> collections_;
};

}  // namespace tensorwire::wire
