#include "fuse_boxes.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/platform/status.h"

namespace tensorwire::plugin {

using tensorflow::OpKernelContext;

FuseBoxes& FuseBoxes::Get() {
  static auto* const boxes = new FuseBoxes;  // a rendezvous may outlive the library's statics
  return *boxes;
}

FuseBoxes::Entry* FuseBoxes::FindLocked(Shard* shard, Key rendezvous, uint64_t id) {
  const auto step = shard->steps.find(rendezvous);
  if (step == shard->steps.end()) return nullptr;
  for (Entry& entry : step->second.boxes) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

absl::Status FuseBoxes::AddLocked(Shard* shard, OpKernelContext* ctx, uint64_t id,
                                  std::shared_ptr<FuseBox> box) {
  const Key rendezvous = ctx->rendezvous();
  auto step = shard->steps.find(rendezvous);
  if (step == shard->steps.end()) {
    auto* const counted = dynamic_cast<tensorflow::Rendezvous*>(ctx->rendezvous());
    if (counted == nullptr) {
      return absl::InternalError("tensor_fuse: this step has no rendezvous that other tasks reach");
    }
    step = shard->steps.try_emplace(rendezvous).first;
    step->second.end = std::make_unique<tensorflow::core::WeakPtr<tensorflow::Rendezvous>>(
        counted, [this, rendezvous] { EndStep(rendezvous); });
  }
  Entry entry{id, std::move(box)};
  if (auto* const cancellation = ctx->cancellation_manager(); cancellation != nullptr) {
    entry.token = cancellation->get_cancellation_token();
    if (!cancellation->RegisterCallback(entry.token,
                                        [this, rendezvous, id] { Drop(rendezvous, id); })) {
      return tensorflow::StatusGroup::MakeDerived(
          absl::CancelledError("tensor_fuse: the step has been cancelled"));
    }
  }
  step->second.boxes.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status FuseBoxes::FindOrMake(OpKernelContext* ctx, uint64_t id, size_t parts,
                                   std::shared_ptr<FuseBox>* out) {
  Shard& shard = ShardOf(ctx->rendezvous());
  std::lock_guard lock(shard.mutex);
  if (const Entry* const known = FindLocked(&shard, ctx->rendezvous(), id); known != nullptr) {
    *out = known->box;
    return absl::OkStatus();
  }
  *out = std::make_shared<FuseBox>(parts);
  return AddLocked(&shard, ctx, id, *out);
}

absl::Status FuseBoxes::Add(OpKernelContext* ctx, uint64_t id, std::shared_ptr<FuseBox> box) {
  Shard& shard = ShardOf(ctx->rendezvous());
  std::lock_guard lock(shard.mutex);
  return AddLocked(&shard, ctx, id, std::move(box));
}

absl::Status FuseBoxes::Find(OpKernelContext* ctx, uint64_t id, std::shared_ptr<FuseBox>* out) {
  Shard& shard = ShardOf(ctx->rendezvous());
  std::lock_guard lock(shard.mutex);
  const Entry* const known = FindLocked(&shard, ctx->rendezvous(), id);
  if (known == nullptr) {
    return tensorflow::StatusGroup::MakeDerived(
        absl::CancelledError("tensor_fuse: the step has been cancelled"));
  }
  *out = known->box;
  return absl::OkStatus();
}

void FuseBoxes::Remove(OpKernelContext* ctx, uint64_t id) {
  auto token = tensorflow::CancellationManager::kInvalidToken;
  {
    Shard& shard = ShardOf(ctx->rendezvous());
    std::lock_guard lock(shard.mutex);
    if (const Entry* const known = FindLocked(&shard, ctx->rendezvous(), id); known != nullptr) {
      token = known->token;
    }
  }
  if (token != tensorflow::CancellationManager::kInvalidToken) {
    ctx->cancellation_manager()->TryDeregisterCallback(token);  // if false, it is dropping the box
  }
  Drop(ctx->rendezvous(), id);
}

void FuseBoxes::Drop(Key rendezvous, uint64_t id) {
  std::shared_ptr<FuseBox> dropped;  // its contents are freed after the lock is released
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  Entry* const known = FindLocked(&shard, rendezvous, id);
  if (known == nullptr) return;
  dropped = std::move(known->box);
  auto& boxes = shard.steps[rendezvous].boxes;
  boxes.erase(boxes.begin() + (known - boxes.data()));
}

void FuseBoxes::EndStep(Key rendezvous) {
  Step ended;  // freed after the lock is released
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  const auto at = shard.steps.find(rendezvous);
  if (at == shard.steps.end()) return;
  ended = std::move(at->second);
  shard.steps.erase(at);
}

}  // namespace tensorwire::plugin
