#include "outbox.h"

#include <cassert>
#include <utility>

namespace tensorwire::wire {
namespace {

constexpr uint64_t kGatherBytes = 4u << 20;  // enough for one system call

}  // namespace

Outbox::~Outbox() {
  while (MpscNode* node = pushed_.Pop()) delete static_cast<OutFrame*>(node);
}

bool Outbox::Push(std::unique_ptr<OutFrame> frame) {
  if (checked()) frame->Check();
  bytes_.fetch_add(frame->total_bytes, std::memory_order_relaxed);
  // Counted before the writer can find it. If the writer took an uncounted frame, the count would
  // be too low, and two threads could be the writer.
  const bool writer = frames_.fetch_add(1, std::memory_order_acq_rel) == 0;
  pushed_.Push(frame.release());
  return writer;
}

bool Outbox::PushLazily(std::unique_ptr<OutFrame> frame) {
  {
    std::lock_guard lock(lazy_mutex_);
    lazy_.push_back(std::move(frame));
  }
  return !has_lazy_.exchange(true, std::memory_order_acq_rel);
}

std::vector<std::unique_ptr<OutFrame>> Outbox::TakeLazy() {
  std::vector<std::unique_ptr<OutFrame>> frames;
  std::lock_guard lock(lazy_mutex_);
  has_lazy_.store(false, std::memory_order_release);
  frames.swap(lazy_);
  return frames;
}

void Outbox::TakePushedAsWriter() {
  if (has_lazy_.load(std::memory_order_acquire)) {
    std::vector<std::unique_ptr<OutFrame>> frames;
    {
      // The flag stays set: the thread that set it will still call TakeLazy.
      std::lock_guard lock(lazy_mutex_);
      frames.swap(lazy_);
    }
    frames_.fetch_add(frames.size(), std::memory_order_acq_rel);
    for (auto& frame : frames) {
      if (checked()) frame->Check();
      bytes_.fetch_add(frame->total_bytes, std::memory_order_relaxed);
      small_.push_back(std::move(frame));
    }
  }
  while (MpscNode* node = pushed_.Pop()) {
    std::unique_ptr<OutFrame> frame(static_cast<OutFrame*>(node));
    // A cancellation must not overtake its request.
    const bool ahead = frame->kind != FrameKind::kCancel || large_.empty();
    (frame->small() && ahead ? small_ : large_).push_back(std::move(frame));
  }
}

void Outbox::GatherAsWriter(Gathered* gathered) {
  assert(writing_);
  TakePushedAsWriter();
  bool more = true;  // may be gathered
  auto gather = [&](OutFrame& frame) {
    frame.Refill();
    // No other frame may come between the windows of one payload.
    more = !frame.has_more();
    for (size_t part = frame.part; part <= frame.payload.size(); ++part) {
      if (gathered->count == Gathered::kMostParts) return;
      const ConstBuffer whole =
          part == 0 ? ConstBuffer{frame.head.data(), frame.head.size()} : frame.payload[part - 1];
      const size_t skip = part == frame.part ? frame.part_offset : 0;
      gathered->parts[static_cast<size_t>(gathered->count++)] = {
          const_cast<char*>(static_cast<const char*>(whole.data)) + skip, whole.size - skip};
      gathered->bytes += whole.size - skip;
    }
  };
  if (partial_ != nullptr) gather(*partial_);
  for (auto* queue : {&small_, &large_}) {
    for (const auto& frame : *queue) {
      if (!more || gathered->count == Gathered::kMostParts || gathered->bytes > kGatherBytes) break;
      gather(*frame);
      ++gathered->frames;
    }
  }
}

size_t Outbox::AdvanceAsWriter(const Gathered& gathered, uint64_t bytes) {
  assert(writing_);
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  // Frame by frame, in the order in which they were gathered.
  uint64_t left = bytes;
  auto advance = [&](OutFrame* frame) {  // true: the whole frame has been written
    while (frame->part <= frame->payload.size()) {
      const size_t size =
          frame->part == 0 ? frame->head.size() : frame->payload[frame->part - 1].size;
      const uint64_t rest = size - frame->part_offset;
      if (left < rest) {
        frame->part_offset += left;
        left = 0;
        return false;
      }
      left -= rest;
      ++frame->part;
      frame->part_offset = 0;
    }
    return !frame->has_more();
  };
  size_t finished = 0;
  if (partial_ != nullptr && advance(partial_.get())) {
    partial_.reset();
    ++finished;
  }
  for (size_t frames = gathered.frames; partial_ == nullptr && frames > 0; --frames) {
    auto& queue = !small_.empty() ? small_ : large_;
    if (left == 0 && queue.front()->total_bytes > 0) break;
    std::unique_ptr<OutFrame> frame = std::move(queue.front());
    queue.pop_front();
    if (advance(frame.get())) {
      ++finished;
    } else {
      partial_ = std::move(frame);
    }
  }
  return finished;
}

}  // namespace tensorwire::wire
