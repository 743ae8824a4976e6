#include "borrow.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "cores.h"

namespace tensorwire::wire {
namespace {

// Waking a thread costs as much as copying this.
constexpr uint64_t kAtOnceBytes = 512u << 10;
// One core does not fill the memory's bandwidth; four do.
constexpr uint64_t kBytesPerThread = 4u << 20;
constexpr uint64_t kMostThreads = 4;

// One copy, in parts that whoever comes first takes: a thread that comes late finds none left.
class Copy {
 public:
  Copy(std::shared_ptr<const ForeignMemory> memory, Loan loan,
       const std::vector<MutableBuffer>& into, uint64_t part_bytes, std::function<void(bool)> done)
      : memory_(std::move(memory)), loan_(std::move(loan)), done_(std::move(done)) {
    // Cut where either side begins another buffer, and at part_bytes.
    size_t target = 0;
    uint64_t target_offset = 0;
    for (const Loan::Piece& piece : loan_.pieces) {
      for (uint64_t offset = 0; offset < piece.bytes;) {
        if (target_offset == into[target].size) {
          ++target;
          target_offset = 0;
          continue;
        }
        const uint64_t size = std::min({part_bytes, piece.bytes - offset,
                                        static_cast<uint64_t>(into[target].size) - target_offset});
        parts_.push_back({static_cast<char*>(into[target].data) + target_offset,
                          piece.data + offset, static_cast<size_t>(size)});
        offset += size;
        target_offset += size;
      }
    }
  }

  size_t parts() const { return parts_.size(); }

  void Run() {
    for (;;) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= parts_.size()) return;
      const Part& part = parts_[index];
      std::memcpy(part.to, part.from, part.size);
      if (copied_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts_.size()) Finish();
    }
  }
  void Finish() { done_(memory_->StillLent(loan_.number, loan_.slot)); }

 private:
  struct Part {
    char* to;
    const char* from;
    size_t size;
  };
  const std::shared_ptr<const ForeignMemory> memory_;
  const Loan loan_;
  const std::function<void(bool)> done_;
  std::vector<Part> parts_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> copied_{0};
};

}  // namespace

bool IsCopiedAtOnce(uint64_t bytes) { return bytes <= kAtOnceBytes; }

void CopyLoan(std::shared_ptr<const ForeignMemory> memory, Loan loan,
              const std::vector<MutableBuffer>& into,
              const std::function<void(std::function<void()>)>& executor,
              std::function<void(bool)> done) {
  static const auto cores = static_cast<uint64_t>(UsableCores());
  const uint64_t bytes = loan.bytes;
  const uint64_t threads =
      std::clamp<uint64_t>(bytes / kBytesPerThread, 1, std::min(cores, kMostThreads));
  auto copy = std::make_shared<Copy>(std::move(memory), std::move(loan), into,
                                     (bytes + threads - 1) / threads, std::move(done));
  if (copy->parts() == 0) {
    copy->Finish();
  } else if (IsCopiedAtOnce(bytes)) {
    copy->Run();
  } else {
    for (uint64_t i = 0; i < threads; ++i) executor([copy] { copy->Run(); });
  }
}

}  // namespace tensorwire::wire
