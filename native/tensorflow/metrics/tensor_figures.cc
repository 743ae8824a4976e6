#include "metrics/tensor_figures.h"

#include <algorithm>
#include <array>

namespace tensorwire::plugin {
namespace {

// "/job:ps/replica:0/task:0" of "/job:ps/replica:0/task:0/device:CPU:0".
std::string_view TaskOf(std::string_view device) {
  return device.substr(0, device.find("/device:"));
}

// The name of the node at the start of an edge. The partitioner names the edge "edge_12_" and that
// name. "" if `edge` is no edge of the user's graph.
std::string_view NodeOf(std::string_view edge) {
  constexpr std::string_view kEdge = "edge_";
  constexpr std::string_view kPrefix = kNodePrefix;
  if (edge.substr(0, kEdge.size()) != kEdge) return {};
  const size_t end = edge.find_first_not_of("0123456789", kEdge.size());
  if (end == std::string_view::npos || end == kEdge.size() || edge[end] != '_') return {};
  const std::string_view node = edge.substr(end + 1);
  return node.substr(0, kPrefix.size()) == kPrefix ? std::string_view() : node;
}

}  // namespace

TensorCounters* TensorFigures::Of(std::string_view key, Direction direction) {
  const Ends ends = EndsOf(key);
  return Find(ends, NodeOf(ends.edge), direction);
}

TensorCounters* TensorFigures::OfPart(std::string_view from, std::string_view to,
                                      std::string_view node) {
  return Find({TaskOf(from), TaskOf(to), {}}, node, Direction::kFused);
}

TensorFigures::Ends TensorFigures::EndsOf(std::string_view key) {
  // Producer's device; incarnation; consumer's device; edge; frame and iteration.
  std::array<std::string_view, 4> parts;
  for (std::string_view& part : parts) {
    const size_t end = key.find(';');
    part = key.substr(0, end);
    key = end == std::string_view::npos ? std::string_view() : key.substr(end + 1);
  }
  return {TaskOf(parts[0]), TaskOf(parts[2]), parts[3]};
}

TensorCounters* TensorFigures::Find(const Ends& ends, std::string_view name, Direction direction) {
  std::lock_guard lock(mutex_);
  Entry* entry = FindLocked(ends, name, direction);
  if (entry == nullptr) entry = FindLocked(ends, "", direction);
  if (entry != nullptr) return &entry->counters;
  static auto* const rest = new TensorCounters;  // only with more peers than any cluster has
  return rest;
}

TensorFigures::Entry* TensorFigures::FindLocked(const Ends& ends, std::string_view name,
                                                Direction direction) {
  std::string id(1, direction == Direction::kOut ? '>' : direction == Direction::kIn ? '<' : '+');
  id.append(ends.producer).append(";").append(ends.consumer).append(";").append(name);
  const auto known = entries_.find(id);
  if (known != entries_.end()) return known->second.get();
  if (entries_.size() >= (name.empty() ? kMostEntries : kMostTensors)) return nullptr;
  auto entry = std::make_unique<Entry>();
  entry->task = direction == Direction::kIn ? ends.consumer : ends.producer;
  entry->peer = direction == Direction::kIn ? ends.producer : ends.consumer;
  entry->direction = direction;
  entry->name = name;
  return entries_.emplace(std::move(id), std::move(entry)).first->second.get();
}

void TensorFigures::ForEach(const std::function<void(const Entry&)>& visit) const {
  std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) visit(*entry);
}

void UnionClock::Begin(int64_t now_us) {
  uint64_t state = state_.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    const bool first = (state & ((1u << kCountBits) - 1)) == 0;
    next = (first ? static_cast<uint64_t>(now_us) << kCountBits : state) + 1;
  } while (!state_.compare_exchange_weak(state, next, std::memory_order_relaxed));
}

void UnionClock::End(int64_t now_us) {
  const uint64_t state = state_.fetch_sub(1, std::memory_order_relaxed);
  if ((state & ((1u << kCountBits) - 1)) != 1) return;
  const auto since_us = static_cast<int64_t>(state >> kCountBits);
  total_us_.fetch_add(static_cast<uint64_t>(std::max<int64_t>(0, now_us - since_us)),
                      std::memory_order_relaxed);
}

uint64_t UnionClock::total_us(int64_t now_us) {
  // Read in this order, so that a period that ends meanwhile is missed rather than counted twice.
  uint64_t total = total_us_.load(std::memory_order_acquire);
  const uint64_t state = state_.load(std::memory_order_relaxed);
  if ((state & ((1u << kCountBits) - 1)) != 0) {
    const auto since_us = static_cast<int64_t>(state >> kCountBits);
    total += static_cast<uint64_t>(std::max<int64_t>(0, now_us - since_us));
  }
  uint64_t told = told_us_.load(std::memory_order_relaxed);
  while (told < total && !told_us_.compare_exchange_weak(told, total, std::memory_order_relaxed)) {
  }
  return std::max(told, total);
}

}  // namespace tensorwire::plugin
