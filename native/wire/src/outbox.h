#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "mpsc_queue.h"
#include "out_frame.h"

namespace tensorwire::wire {

// The outgoing frames of one connection, and the role of the writer.
//
// Any thread pushes frames, without a lock. The thread that raises the number of frames from zero
// is the *writer* until it brings the number back to zero. The writer may pass its role to another
// thread, as long as a frame is left. A method that only the writer may call ends in AsWriter.
class Outbox {
 public:
  explicit Outbox(bool checked) : checked_(checked) {}
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // --- any thread ---
  // True: the caller is the writer now.
  bool Push(std::unique_ptr<OutFrame> frame);
  // The frame leaves with the next one that is pushed. True if no other frame waits in this way;
  // then the caller must push what TakeLazy returns after a short time.
  bool PushLazily(std::unique_ptr<OutFrame> frame);
  std::vector<std::unique_ptr<OutFrame>> TakeLazy();
  // True if so much waits to be sent that the caller should not produce more.
  bool HasBacklog() const {
    return frames_.load(std::memory_order_acquire) >= kMostFrames ||
           bytes_.load(std::memory_order_relaxed) >= kMostBytes;
  }
  // Adds checksums to frames from now on.
  void Check() { checked_.store(true, std::memory_order_release); }
  bool checked() const { return checked_.load(std::memory_order_acquire); }

  // Makes the caller the writer before anything is pushed, by counting one frame that does not
  // exist. Frames that are pushed wait until FinishAsWriter has been called for that one, too.
  void Reserve() { frames_.fetch_add(1, std::memory_order_acq_rel); }

  // --- the writer ---
  // The calling thread takes over the role, or releases it so that another thread can take it over.
  // For assertions only: one thread has the role at a time.
  void ResumeAsWriter() {
    assert(frames_.load(std::memory_order_relaxed) > 0);
    assert(!writing_);
    writing_ = true;
  }
  void PauseAsWriter() {
    assert(writing_);
    writing_ = false;
  }

  // The pieces that one system call writes.
  struct Gathered {
    static constexpr int kMostParts = 512;
    std::array<iovec, kMostParts> parts;
    int count = 0;
    uint64_t bytes = 0;
    size_t frames = 0;  // not counting the one that has been written in part
  };
  // Gathers the next frames. There may be none although the count is not zero: a thread counts a
  // frame before it pushes it.
  void GatherAsWriter(Gathered* gathered);
  // The first `bytes` of `gathered` have been written. Returns how many frames have been written
  // completely.
  size_t AdvanceAsWriter(const Gathered& gathered, uint64_t bytes);
  // `frames` frames are finished. False if there are no others; then the caller is no longer the
  // writer.
  bool FinishAsWriter(size_t frames) {
    if (frames == 0) return true;
    PauseAsWriter();  // before another thread can become the writer
    if (frames_.fetch_sub(frames, std::memory_order_acq_rel) == frames) return false;
    ResumeAsWriter();
    return true;
  }

 private:
  // Limits on what waits for a slow peer. Beyond them the peer's requests wait in the socket, and
  // nothing is pushed to it.
  static constexpr size_t kMostFrames = 4096;
  static constexpr uint64_t kMostBytes = 256u << 20;

  void TakePushedAsWriter();

  MpscQueue pushed_;
  // Counts the frames in pushed_, small_, large_ and partial_, and those that TLS has taken and the
  // socket has not.
  std::atomic<size_t> frames_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> checked_;

  std::mutex lazy_mutex_;
  std::vector<std::unique_ptr<OutFrame>> lazy_;
  std::atomic<bool> has_lazy_{false};

  // The writer's.
  std::unique_ptr<OutFrame> partial_;            // written in part
  std::deque<std::unique_ptr<OutFrame>> small_;  // sent first, because callers wait for them
  std::deque<std::unique_ptr<OutFrame>> large_;
  bool writing_ = false;  // a thread has taken over the role
};

}  // namespace tensorwire::wire
