#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorwire/wire/engine.h"

namespace tensorwire::wire {

// Fetches a payload that its owner holds: one range per stream of the channel, each by a call over
// its own stream. `done` is called when all ranges have ended, with the first failure if there is
// one. A failure cancels the other ranges. The calls keep this object alive.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  // The buffers `into` add up to `bytes`.
  Fetch(uint64_t bytes, size_t ranges, std::vector<MutableBuffer> into,
        std::function<void(const Status&)> done)
      : bytes_(bytes),
        ranges_(ranges),
        into_(std::move(into)),
        done_(std::move(done)),
        left_(ranges + 1) {}

  size_t ranges() const { return ranges_; }
  Message Request(uint64_t number, size_t range) const {
    Message request(kFetchRange);
    request.Put<uint64_t>(number);
    request.Put<uint64_t>(Begin(range));
    request.Put<uint64_t>(Begin(range + 1) - Begin(range));
    return request;
  }
  std::unique_ptr<Call> Range(size_t range) {
    return std::make_unique<RangeCall>(shared_from_this(), range);
  }

  using Cancels = std::vector<std::function<void(const Status&)>>;
  // Must be called once, after the calls of all ranges have been started; `done` is not called
  // before it. Each of `cancels` ends one call that has not ended, and may be called from any
  // thread.
  void Started(Cancels cancels) {
    Status failure;
    {
      std::lock_guard lock(mutex_);
      cancels_ = std::move(cancels);
      failure = failure_;
    }
    End(failure);
  }
  // Cancels all ranges; the fetch ends with the last of them. Any thread.
  void Cancel(const Status& why) {
    Cancels cancels;
    {
      std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = why;
      cancels.swap(cancels_);
    }
    for (const auto& cancel : cancels) cancel(why);
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
  void End(const Status& status) {
    if (!status.ok()) Cancel(status);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    std::unique_lock lock(mutex_);
    const Status outcome = failure_;
    lock.unlock();
    done_(outcome);
  }

  const uint64_t bytes_;
  const size_t ranges_;
  const std::vector<MutableBuffer> into_;
  const std::function<void(const Status&)> done_;
  std::atomic<size_t> left_;  // ranges that have not ended, plus one until Started
  std::mutex mutex_;
  Status failure_;
  Cancels cancels_;
};

}  // namespace tensorwire::wire
