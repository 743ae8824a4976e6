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

// The frames on their way out of one connection, and the role of who writes them.
//
// Any thread pushes frames, without a lock. Whoever raises the number of frames from zero is the
// *writer* until it brings the number back to zero. The writer may pass its role to another thread,
// as long as a frame is left. A method that only the writer may call ends in AsWriter.
class Outbox {
 public:
  explicit Outbox(bool checked) : checked_(checked) {}
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // --- any thread ---
  // True: the caller is the writer now.
  bool Push(std::unique_ptr<OutFrame> frame);
  // The frame leaves with the next one that is pushed. True: no other frame waits so, and the
  // caller sees to it that what TakeLazy returns is pushed after a moment.
  bool PushLazily(std::unique_ptr<OutFrame> frame);
  std::vector<std::unique_ptr<OutFrame>> TakeLazy();
  // True if so much waits to be sent that more should not be made.
  bool HasBacklog() const {
    return frames_.load(std::memory_order_acquire) >= kMostFrames ||
           bytes_.load(std::memory_order_relaxed) >= kMostBytes;
  }
  // Adds checksums to frames from now on.
  void Check() { checked_.store(true, std::memory_order_release); }
  bool checked() const { return checked_.load(std::memory_order_acquire); }

  // Before anything is pushed: makes the caller the writer. What is pushed waits until it has
  // called FinishAsWriter for one frame more than there were.
  void Reserve() { frames_.fetch_add(1, std::memory_order_acq_rel); }

  // --- the writer ---
  // The calling thread takes the role up, or lets go of it without an end, so that another thread
  // can take it up. For assertions: one thread has it at a time.
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
    size_t frames = 0;  // beside the one that has been written in part
  };
  // Looks for frames, and gathers what comes next. There may be nothing: who pushes a frame counts
  // it first.
  void GatherAsWriter(Gathered* gathered);
  // So many bytes of that have left. Returns how many frames have left as a whole.
  size_t AdvanceAsWriter(const Gathered& gathered, uint64_t bytes);
  // So many frames are done with. False: there are no others, and the caller is no longer the
  // writer.
  bool FinishAsWriter(size_t frames) {
    if (frames == 0) return true;
    PauseAsWriter();  // before anybody else can be the writer
    if (frames_.fetch_sub(frames, std::memory_order_acq_rel) == frames) return false;
    ResumeAsWriter();
    return true;
  }

 private:
  // So much unsent to a peer that takes none: then what it asks for waits in its own socket, and
  // what it has not asked for is not made to wait here.
  static constexpr size_t kMostFrames = 4096;
  static constexpr uint64_t kMostBytes = 256u << 20;

  void TakePushedAsWriter();

  MpscQueue pushed_;
  // Frames in pushed_, small_, large_ and partial_, and those that TLS has and the socket not.
  std::atomic<size_t> frames_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> checked_;

  std::mutex lazy_mutex_;
  std::vector<std::unique_ptr<OutFrame>> lazy_;
  std::atomic<bool> has_lazy_{false};

  // The writer's.
  std::unique_ptr<OutFrame> partial_;            // written in part
  std::deque<std::unique_ptr<OutFrame>> small_;  // go first: they are what somebody waits for
  std::deque<std::unique_ptr<OutFrame>> large_;
  bool writing_ = false;  // some thread has taken the role up
};

}  // namespace tensorwire::wire
