#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "metrics/single.h"

namespace tensorwire::plugin {

// Prefix of the name of each node that needs our kernel. A task without that kernel names the node
// that it cannot run, so the user reads this prefix.
constexpr char kNodePrefix[] = "import_tensorwire.tf_in_every_task/";

// One tensor's figures in one direction between two tasks. Only the receiver has waits.
struct TensorCounters {
  std::atomic<uint64_t> tensors{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> not_ready_us{0};  // Recvs waited for the producer
  std::atomic<uint64_t> wire_us{0};       // Recvs waited for a tensor that was made
  std::atomic<uint64_t> waiting{0};       // Recvs that wait for it now

  void Count(uint64_t tensor_bytes) {
    tensors.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(tensor_bytes, std::memory_order_relaxed);
  }
  void CountWait(int64_t not_ready, int64_t wire) {
    if (not_ready + wire == 0) return;  // as for most pushes
    not_ready_us.fetch_add(static_cast<uint64_t>(not_ready), std::memory_order_relaxed);
    wire_us.fetch_add(static_cast<uint64_t>(wire), std::memory_order_relaxed);
  }
};

// The figures of all tensors that this process has moved. A tensor of a graph has its own entry,
// named after the node that makes it. All others (eager execution makes up a key for each copy)
// share one entry per peer. Entries stay for the life of the process, so that pointers to them may
// be kept, and are bounded in number. Thread-safe; the lock is for finding an entry only.
class TensorFigures {
 public:
  // kFused: went out as a part of another tensor, which is counted as well.
  enum class Direction { kOut, kIn, kFused };
  struct Entry {
    std::string task;  // of this process
    std::string peer;
    Direction direction = Direction::kOut;
    std::string name;  // "": tensors without their own entry
    TensorCounters counters;
  };

  static TensorFigures& Get() { return Single<TensorFigures>(); }

  // The counters for the tensor that travels under this rendezvous key.
  TensorCounters* Of(std::string_view key, Direction direction);
  // The counters for the output of `node`, when it travels as a part of a fused tensor between
  // these devices.
  TensorCounters* OfPart(std::string_view from, std::string_view to, std::string_view node);
  void ForEach(const std::function<void(const Entry&)>& visit) const;

 private:
  static constexpr size_t kMostTensors = 4096;
  static constexpr size_t kMostEntries = 8192;  // those for peers included

  struct Ends {
    std::string_view producer;
    std::string_view consumer;
    std::string_view edge;
  };
  static Ends EndsOf(std::string_view key);
  TensorCounters* Find(const Ends& ends, std::string_view name, Direction direction);
  Entry* FindLocked(const Ends& ends, std::string_view name, Direction direction);

  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
};

// Measures for how long at least one of several operations was under way. Lock-free and
// thread-safe; as exact as the times that it is given.
class UnionClock {
 public:
  void Begin(int64_t now_us);
  void End(int64_t now_us);
  // Includes what is still under way, and never decreases.
  uint64_t total_us(int64_t now_us);

 private:
  // The low bits count what is under way; the bits above say since when, if anything is.
  static constexpr int kCountBits = 20;
  std::atomic<uint64_t> state_{0};
  std::atomic<uint64_t> total_us_{0};  // without what is under way
  std::atomic<uint64_t> told_us_{0};   // the largest total that was returned
};

// The time in which at least one Recv of this process waited for another task.
inline UnionClock& RecvClock() { return Single<UnionClock>(); }

}  // namespace tensorwire::plugin
