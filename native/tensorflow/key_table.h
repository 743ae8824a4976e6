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

// What is known of the tensors of sessions: entries by session and rendezvous key, which are the
// fields `scope` and `key` of an Entry. An entry does not change; it is replaced. The table is
// split into parts with a lock each, so that the threads of an executor seldom wait for each other.
// Thread-safe.
template <typename Entry>
class KeyTable {
 public:
  using EntryPtr = std::shared_ptr<const Entry>;

  // `most`: the table takes no further key when it has so many entries.
  explicit KeyTable(size_t most) : most_(most) {}

  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

  // Null if there is none. `key_hash`: HashOfKey(key).
  EntryPtr Find(uint64_t scope, std::string_view key, uint64_t key_hash) const {
    const uint64_t hash = HashOf(scope, key_hash);
    const Part& part = PartOf(hash);
    std::lock_guard lock(part.mutex);
    const auto at = part.entries.find(hash);
    return at != part.entries.end() && Is(*at->second, scope, key) ? at->second : nullptr;
  }

  // Adds an entry, or replaces that of the same session and key. False if the table is full, or has
  // an entry whose session and key have the same hash.
  bool Put(EntryPtr entry) {
    const uint64_t hash = HashOf(entry->scope, HashOfKey(entry->key));
    Part& part = PartOf(hash);
    std::lock_guard lock(part.mutex);
    const auto at = part.entries.find(hash);
    if (at != part.entries.end()) {
      if (!Is(*at->second, entry->scope, entry->key)) return false;
      at->second = std::move(entry);
      return true;
    }
    if (size_.load(std::memory_order_relaxed) >= most_) return false;
    part.entries.emplace(hash, std::move(entry));
    size_.fetch_add(1, std::memory_order_release);
    return true;
  }

  template <typename Unwanted>
  void DropIf(Unwanted unwanted) {
    for (Part& part : parts_) {
      std::lock_guard lock(part.mutex);
      for (auto at = part.entries.begin(); at != part.entries.end();) {
        const bool drops = unwanted(*at->second);
        if (drops) size_.fetch_sub(1, std::memory_order_release);
        at = drops ? part.entries.erase(at) : std::next(at);
      }
    }
  }

 private:
  struct alignas(64) Part {
    mutable std::mutex mutex;
    std::unordered_map<uint64_t, EntryPtr> entries;  // by HashOf
  };

  static bool Is(const Entry& entry, uint64_t scope, std::string_view key) {
    return entry.scope == scope && entry.key == key;
  }
  static uint64_t HashOf(uint64_t scope, uint64_t key_hash) {
    return key_hash ^ (scope * 0x9e3779b97f4a7c15u);
  }
  Part& PartOf(uint64_t hash) { return parts_[hash >> 60]; }
  const Part& PartOf(uint64_t hash) const { return parts_[hash >> 60]; }

  const size_t most_;
  std::atomic<size_t> size_{0};
  std::array<Part, 16> parts_;
};

}  // namespace tensorwire::plugin
