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

// The place where the sending nodes of a group put the parts of a fused tensor, or where the
// receiving nodes find them.
class FuseBox {
 public:
  explicit FuseBox(size_t parts) : parts_(parts), missing_(static_cast<int>(parts)) {}
  explicit FuseBox(std::vector<FusedPart> parts)
      : parts_(std::move(parts)), missing_(static_cast<int>(parts_.size())) {}

  FusedPart& part(int64_t index) { return parts_[static_cast<size_t>(index)]; }
  const std::vector<FusedPart>& parts() const { return parts_; }
  // Each node calls this when it is done. True for the last one, which sees all writes of the
  // others.
  bool IsLastOne() { return missing_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  std::vector<FusedPart> parts_;
  std::atomic<int> missing_;
};

// The boxes of all steps and function calls that run in this process; each of these has its own
// rendezvous. A failed step leaves boxes behind. They are dropped when the step is cancelled, as
// every failed step is, or at the latest with its rendezvous, so that no later rendezvous at the
// same address finds them. (TensorFlow's own container of a step is not emptied after a function.)
// Thread-safe.
class FuseBoxes {
 public:
  static FuseBoxes& Get();

  // `id`: identifies the group and its end. FindOrMake, Add and Find fail if the step is cancelled.

  // Finds the box of this step, or makes it for `parts` parts.
  absl::Status FindOrMake(tensorflow::OpKernelContext* ctx, uint64_t id, size_t parts,
                          std::shared_ptr<FuseBox>* out);
  absl::Status Add(tensorflow::OpKernelContext* ctx, uint64_t id, std::shared_ptr<FuseBox> box);
  absl::Status Find(tensorflow::OpKernelContext* ctx, uint64_t id, std::shared_ptr<FuseBox>* out);
  // Called when all nodes of the group are done with the box.
  void Remove(tensorflow::OpKernelContext* ctx, uint64_t id);

 private:
  using Key = const tensorflow::RendezvousInterface*;
  struct Entry {
    uint64_t id = 0;
    std::shared_ptr<FuseBox> box;
    tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
  };
  struct Step {
    std::unique_ptr<tensorflow::core::WeakPtr<tensorflow::Rendezvous>> end;  // calls EndStep
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
