#pragma once

#include <atomic>

namespace tensorwire::wire {

// A node of MpscQueue; derive from it.
struct MpscNode {
  std::atomic<MpscNode*> next{nullptr};
};

// A first-in, first-out queue. Any thread may push, without waiting; one thread at a time may pop.
// It does not own its nodes. (The algorithm is Dmitry Vyukov's intrusive MPSC queue.)
class MpscQueue {
 public:
  MpscQueue() : last_(&stub_), first_(&stub_) {}
  MpscQueue(const MpscQueue&) = delete;
  MpscQueue& operator=(const MpscQueue&) = delete;

  void Push(MpscNode* node) {
    node->next.store(nullptr, std::memory_order_relaxed);
    MpscNode* previous = last_.exchange(node, std::memory_order_acq_rel);
    previous->next.store(node, std::memory_order_release);
  }

  // Null if empty, and also while another thread's push is half done.
  MpscNode* Pop() {
    MpscNode* first = first_;
    MpscNode* next = first->next.load(std::memory_order_acquire);
    if (first == &stub_) {
      if (next == nullptr) return nullptr;
      first_ = next;
      first = next;
      next = next->next.load(std::memory_order_acquire);
    }
    if (next != nullptr) {
      first_ = next;
      return first;
    }
    if (first != last_.load(std::memory_order_acquire)) return nullptr;
    Push(&stub_);
    next = first->next.load(std::memory_order_acquire);
    if (next == nullptr) return nullptr;
    first_ = next;
    return first;
  }

 private:
  std::atomic<MpscNode*> last_;
  MpscNode* first_;
  MpscNode stub_;
};

}  // namespace tensorwire::wire
