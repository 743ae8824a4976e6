#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tensorwire::plugin {

inline uint64_t HashOfKey(std::string_view key) { return std::hash<std::string_view>()(key); }

// What is known of the tensors of a session: entries by rendezvous key, which is the field `key` of
// an Entry. An entry does not change; it is replaced. The table is split into parts with a lock
// each, so that the threads of an executor seldom wait for each other. Thread-safe.
template <typename Entry>
class KeyTable {
 public:
  using EntryPtr = std::shared_ptr<const Entry>;

  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
  size_t size() const { return size_.load(std::memory_order_acquire); }

  // Null if there is none.
  EntryPtr Find(std::string_view key) const {
    const uint64_t hash = HashOfKey(key);
    const Part& part = PartOf(hash);
    std::lock_guard lock(part.mutex);
    const auto at = part.entries.find(hash);
    return at != part.entries.end() && at->second->key == key ? at->second : nullptr;
  }

  // Puts what `make` returns into the place of the key's entry, with the lock of its part. `make`
  // gets that entry, or null; it returns null to change nothing. Returns the entry that the table
  // has now: null if `make` returned none, or if another key has the same hash.
  template <typename Make>
  EntryPtr Update(std::string_view key, Make make) {
    const uint64_t hash = HashOfKey(key);
    Part& part = PartOf(hash);
    std::lock_guard lock(part.mutex);
    const auto at = part.entries.find(hash);
    if (at != part.entries.end()) {
      if (at->second->key != key) return nullptr;
      if (EntryPtr made = make(at->second); made != nullptr) at->second = std::move(made);
      return at->second;
    }
    EntryPtr made = make(EntryPtr());
    if (made == nullptr) return nullptr;
    part.entries.emplace(hash, made);
    size_.fetch_add(1, std::memory_order_release);
    return made;
  }

 private:
  struct alignas(64) Part {
    mutable std::mutex mutex;
    std::unordered_map<uint64_t, EntryPtr> entries;  // by HashOfKey
  };

  Part& PartOf(uint64_t hash) { return parts_[hash >> 60]; }
  const Part& PartOf(uint64_t hash) const { return parts_[hash >> 60]; }

  std::atomic<size_t> size_{0};
  std::array<Part, 16> parts_;
};

}  // namespace tensorwire::plugin
