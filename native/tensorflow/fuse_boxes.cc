#include "fuse_boxes.h"

#include <algorithm>

namespace tensorwire::plugin {

FuseBoxes& FuseBoxes::Get() {
  static auto* const boxes = new FuseBoxes;  // a rendezvous may outlive the library's statics
  return *boxes;
}

absl::Status FuseBoxes::FindOrBeginLocked(Shard* shard, tensorflow::RendezvousInterface* rendezvous,
                                          OfRendezvous** out) {
  const auto known = shard->steps.find(rendezvous);
  if (known != shard->steps.end()) {
    *out = &known->second;
    return absl::OkStatus();
  }
  auto* const counted = dynamic_cast<tensorflow::Rendezvous*>(rendezvous);
  if (counted == nullptr) {
    return absl::InternalError("tensor_fuse: this step has no rendezvous that other tasks reach");
  }
  OfRendezvous& fresh = shard->steps[rendezvous];
  fresh.end = std::make_unique<tensorflow::core::WeakPtr<tensorflow::Rendezvous>>(
      counted, [this, rendezvous] { End(rendezvous); });
  *out = &fresh;
  return absl::OkStatus();
}

absl::Status FuseBoxes::FindOrMake(tensorflow::RendezvousInterface* rendezvous, uint64_t id,
                                   size_t parts, std::shared_ptr<FuseBox>* out) {
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  OfRendezvous* step = nullptr;
  if (absl::Status s = FindOrBeginLocked(&shard, rendezvous, &step); !s.ok()) return s;
  for (const auto& [known, box] : step->boxes) {
    if (known != id) continue;
    *out = box;
    return absl::OkStatus();
  }
  *out = std::make_shared<FuseBox>(parts);
  step->boxes.emplace_back(id, *out);
  return absl::OkStatus();
}

absl::Status FuseBoxes::Add(tensorflow::RendezvousInterface* rendezvous, uint64_t id,
                            std::shared_ptr<FuseBox> box) {
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  OfRendezvous* step = nullptr;
  if (absl::Status s = FindOrBeginLocked(&shard, rendezvous, &step); !s.ok()) return s;
  step->boxes.emplace_back(id, std::move(box));
  return absl::OkStatus();
}

std::shared_ptr<FuseBox> FuseBoxes::Find(tensorflow::RendezvousInterface* rendezvous, uint64_t id) {
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  const auto step = shard.steps.find(rendezvous);
  if (step == shard.steps.end()) return nullptr;
  for (const auto& [known, box] : step->second.boxes) {
    if (known == id) return box;
  }
  return nullptr;
}

void FuseBoxes::Remove(tensorflow::RendezvousInterface* rendezvous, uint64_t id) {
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  const auto step = shard.steps.find(rendezvous);
  if (step == shard.steps.end()) return;
  auto& boxes = step->second.boxes;
  boxes.erase(std::remove_if(boxes.begin(), boxes.end(),
                             [id](const auto& entry) { return entry.first == id; }),
              boxes.end());
}

void FuseBoxes::End(Key rendezvous) {
  OfRendezvous ended;  // what is in its boxes is freed without the lock
  Shard& shard = ShardOf(rendezvous);
  std::lock_guard lock(shard.mutex);
  const auto at = shard.steps.find(rendezvous);
  if (at == shard.steps.end()) return;
  ended = std::move(at->second);
  shard.steps.erase(at);
}

size_t FuseBoxes::size() const {
  size_t boxes = 0;
  for (const Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    for (const auto& [rendezvous, step] : shard.steps) boxes += step.boxes.size();
  }
  return boxes;
}

}  // namespace tensorwire::plugin
