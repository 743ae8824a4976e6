#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fused_tensor.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tensorwire::plugin {

// Where the nodes of one group put the tensors that travel as one, or find them.
class FuseBox {
 public:
  explicit FuseBox(size_t parts) : parts_(parts), missing_(static_cast<int>(parts)) {}
  explicit FuseBox(std::vector<FusedPart> parts)
      : parts_(std::move(parts)), missing_(static_cast<int>(parts_.size())) {}

  FusedPart& part(int64_t index) { return parts_[static_cast<size_t>(index)]; }
  const std::vector<FusedPart>& parts() const { return parts_; }
  // One node is done with its part. True for the last one, which sees what the others did.
  bool IsLastOne() { return missing_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  std::vector<FusedPart> parts_;
  std::atomic<int> missing_;
};

// The boxes of all steps and calls of functions that run in this process. Each of them has a
// rendezvous of its own, and its boxes end with that: what a step that fails leaves goes with it,
// also where TensorFlow keeps a step's container for longer (it does for functions), and a later
// step whose rendezvous has the same address finds no box of it. Thread-safe.
class FuseBoxes {
 public:
  static FuseBoxes& Get();

  // `id`: of the group, and which end of it.
  // The box, made for `parts` parts when it is asked for first.
  absl::Status FindOrMake(tensorflow::RendezvousInterface* rendezvous, uint64_t id, size_t parts,
                          std::shared_ptr<FuseBox>* out);
  absl::Status Add(tensorflow::RendezvousInterface* rendezvous, uint64_t id,
                   std::shared_ptr<FuseBox> box);
  // Null where there is none.
  std::shared_ptr<FuseBox> Find(tensorflow::RendezvousInterface* rendezvous, uint64_t id);
  void Remove(tensorflow::RendezvousInterface* rendezvous, uint64_t id);

  size_t size() const;  // how many boxes there are

 private:
  using Key = const tensorflow::RendezvousInterface*;
  struct OfRendezvous {
    std::unique_ptr<tensorflow::core::WeakPtr<tensorflow::Rendezvous>> end;  // tells of its end
    std::vector<std::pair<uint64_t, std::shared_ptr<FuseBox>>> boxes;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<Key, OfRendezvous> steps;
  };
  static constexpr size_t kShards = 16;

  Shard& ShardOf(Key rendezvous) {
    return shards_[reinterpret_cast<uintptr_t>(rendezvous) / 64 % kShards];
  }
  absl::Status FindOrBeginLocked(Shard* shard, tensorflow::RendezvousInterface* rendezvous,
                                 OfRendezvous** out);
  void End(Key rendezvous);

  std::array<Shard, kShards> shards_;
};

}  // namespace tensorwire::plugin
