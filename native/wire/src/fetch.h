#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorwire/wire/engine.h"

namespace tensorwire::wire {

// Fetches a payload that its owner holds, in ranges: one over each connection to the peer. A range
// that one of the further connections cannot carry goes over the main one. `done` is called when
// all ranges have ended, with the first failure if there is one. A failure cancels the other
// ranges. Thread-safe.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  // Begins a range over the main connection. Any thread.
  using OverMain = std::function<void(const std::shared_ptr<Fetch>& fetch, size_t range)>;
  // The buffers `into` add up to `bytes`.
  Fetch(uint64_t number, uint64_t bytes, size_t ranges, std::vector<MutableBuffer> into,
        OverMain over_main, std::function<void(const Status&)> done)
      : number_(number),
        bytes_(bytes),
        ranges_(ranges),
        into_(std::move(into)),
        over_main_(std::move(over_main)),
        done_(std::move(done)),
        left_(ranges),
        cancels_(ranges) {}

  Message Request(size_t range) const {
    Message request(kFetchRange);
    request.Put<uint64_t>(number_);
    request.Put<uint64_t>(Begin(range));
    request.Put<uint64_t>(Begin(range + 1) - Begin(range));
    return request;
  }
  // The call that receives the range, and ends it.
  std::unique_ptr<Call> Range(size_t range) {
    return std::make_unique<RangeCall>(shared_from_this(), range);
  }
  void FetchOverMain(size_t range) { over_main_(shared_from_this(), range); }

  // Ends the call of a range; may be called from any thread, and after the call has ended.
  using RangeCancel = std::function<void(const Status&)>;
  // The range has been begun. Replaces an earlier `cancel`.
  void Begun(size_t range, RangeCancel cancel) {
    Status failure;
    {
      std::lock_guard lock(mutex_);
      if (failure_.ok()) {
        cancels_[range] = std::move(cancel);
        return;
      }
      failure = failure_;
    }
    cancel(failure);
  }
  // Cancels all ranges; the fetch ends with the last of them.
  void Cancel(const Status& why) {
    std::vector<RangeCancel> cancels;
    {
      std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = why;
      cancels.swap(cancels_);
    }
    for (const auto& cancel : cancels) {
      if (cancel) cancel(why);
    }
  }
  // A range has ended.
  void End(const Status& status) {
    if (!status.ok()) Cancel(status);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    std::unique_lock lock(mutex_);
    const Status outcome = failure_;
    lock.unlock();
    done_(outcome);
  }

 private:
  class RangeCall : public Call {
   public:
    RangeCall(std::shared_ptr<Fetch> fetch, size_t range)
        : fetch_(std::move(fetch)), range_(range) {}
    Status PrepareFromReactor(std::string_view /*metadata*/, uint64_t payload_bytes,
                              std::vector<MutableBuffer>* into) override {
      if (payload_bytes != fetch_->Begin(range_ + 1) - fetch_->Begin(range_)) {
        return Status(Code::kInternal, "a range of another size than was asked for");
      }
      fetch_->Slice(range_, into);
      return Status();
    }
    void Done(const Status& status) override { fetch_->End(status); }

   private:
    const std::shared_ptr<Fetch> fetch_;
    const size_t range_;
  };

  uint64_t Begin(size_t range) const {
    return range == ranges_ ? bytes_ : bytes_ / ranges_ * range;
  }
  void Slice(size_t range, std::vector<MutableBuffer>* out) const {
    uint64_t begin = Begin(range);
    uint64_t bytes = Begin(range + 1) - begin;
    for (const MutableBuffer& buffer : into_) {
      if (begin >= buffer.size) {
        begin -= buffer.size;
        continue;
      }
      const uint64_t size = std::min<uint64_t>(bytes, buffer.size - begin);
      out->push_back({static_cast<char*>(buffer.data) + begin, static_cast<size_t>(size)});
      bytes -= size;
      begin = 0;
      if (bytes == 0) return;
    }
  }

  const uint64_t number_;
  const uint64_t bytes_;
  const size_t ranges_;
  const std::vector<MutableBuffer> into_;
  const OverMain over_main_;
  const std::function<void(const Status&)> done_;
  std::atomic<size_t> left_;  // ranges that have not ended
  std::mutex mutex_;
  Status failure_;
  std::vector<RangeCancel> cancels_;  // empty once failure_ is set
};

}  // namespace tensorwire::wire
