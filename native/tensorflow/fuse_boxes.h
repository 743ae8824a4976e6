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
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tensorwire::plugin {

// The place where the nodes of one group put the tensors that travel as one, or find them.
class FuseBox {
 public:
  explicit FuseBox(size_t parts) : parts_(parts), missing_(static_cast<int>(parts)) {}
  explicit FuseBox(std::vector<FusedPart> parts)
      : parts_(std::move(parts)), missing_(static_cast<int>(parts_.size())) {}

  FusedPart& part(int64_t index) { return parts_[static_cast<size_t>(index)]; }
  const std::vector<FusedPart>& parts() const { return parts_; }
  // Called by each node that is done. True for the last one, which sees what the others did.
  bool IsLastOne() { return missing_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  std::vector<FusedPart> parts_;
  std::atomic<int> missing_;
};

// The boxes of all steps and calls of functions that run in this process, each of which has a
// rendezvous of its own. A step that fails leaves boxes: they go when it is cancelled, as every
// step that fails is, or at the latest with its rendezvous, so that no later one at the same
// address finds them. (TensorFlow's own container of a step is not emptied after a function.)
// Thread-safe.
class FuseBoxes {
 public:
  static FuseBoxes& Get();

  // `id`: of the group, and which end of it. All fail where the step is cancelled.
  // The box of this step, made for `parts` parts when it is asked for first.
  absl::Status FindOrMake(tensorflow::OpKernelContext* ctx, uint64_t id, size_t parts,
                          std::shared_ptr<FuseBox>* out);
  absl::Status Add(tensorflow::OpKernelContext* ctx, uint64_t id, std::shared_ptr<FuseBox> box);
  absl::Status Find(tensorflow::OpKernelContext* ctx, uint64_t id, std::shared_ptr<FuseBox>* out);
  // All of its nodes are done with it.
  void Remove(tensorflow::OpKernelContext* ctx, uint64_t id);

 private:
  using Key = const tensorflow::RendezvousInterface*;
  struct Entry {
    uint64_t id = 0;
    std::shared_ptr<FuseBox> box;
    tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
  };
  struct Step {
    std::unique_ptr<tensorflow::core::WeakPtr<tensorflow::Rendezvous>> end;  // tells of its end
    std::vector<Entry> boxes;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<Key, Step> steps;
  };
  static constexpr size_t kShards = 16;

  Shard& ShardOf(Key rendezvous) {
    return shards_[reinterpret_cast<uintptr_t>(rendezvous) / 64 % kShards];
  }
  absl::Status AddLocked(Shard* shard, tensorflow::OpKernelContext* ctx, uint64_t id,
                         std::shared_ptr<FuseBox> box);
  static Entry* FindLocked(Shard* shard, Key rendezvous, uint64_t id);
  void Drop(Key rendezvous, uint64_t id);
  void EndStep(Key rendezvous);

  std::array<Shard, kShards> shards_;
};

}  // namespace tensorwire::plugin
