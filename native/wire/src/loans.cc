#include "loans.h"

#include <utility>

namespace tensorwire::wire {
namespace {

// Below this, sending it costs no more than agreeing on it.
constexpr uint64_t kLeastBytes = 256u << 10;
// To one peer. Beyond it payloads are sent, at the speed at which the peer takes them.
constexpr uint64_t kMostBytes = 1u << 30;
constexpr size_t kMostPieces = 16;
constexpr size_t kHeadBytes = 16;
constexpr size_t kPieceBytes = 16;

}  // namespace

bool Loan::Read(const ForeignMemory& memory, uint16_t pieces, std::string_view* metadata,
                Loan* out) {
  const size_t size = kHeadBytes + pieces * kPieceBytes;
  if (pieces == 0 || pieces > kMostPieces || metadata->size() < size) return false;
  MetadataReader reader(metadata->substr(metadata->size() - size));
  metadata->remove_suffix(size);
  uint32_t reserved = 0;
  reader.Get(&out->number);
  reader.Get(&out->slot);
  reader.Get(&reserved);
  for (uint16_t i = 0; i < pieces; ++i) {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    reader.Get(&offset);
    reader.Get(&bytes);
    const char* const data = memory.At(offset, bytes);
    if (data == nullptr) return false;
    out->pieces.push_back({data, bytes});
    out->bytes += bytes;
  }
  return out->number != 0;
}

uint16_t Loans::Lend(Message* message) {
  const uint64_t bytes = message->payload_bytes();
  if (memory_ == nullptr || bytes < kLeastBytes || message->payload_.size() > kMostPieces) return 0;
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  for (const ConstBuffer& buffer : message->payload_) {
    uint64_t offset = 0;
    if (!memory_->Find(buffer.data, buffer.size, &offset)) return 0;
    pieces.emplace_back(offset, buffer.size);
  }
  uint64_t number = 0;
  Lent lent;
  {
    std::lock_guard lock(mutex_);
    if (bytes_ > kMostBytes || !memory_->OpenLoan(&number, &lent.slot)) return 0;
    bytes_ += bytes;
    lent.bytes = bytes;
    lent.owner = std::move(message->owner_);
    message->owner_.reset();
    message->payload_.clear();
    message->Put<uint64_t>(number);
    message->Put<uint32_t>(lent.slot);
    message->Put<uint32_t>(0);
    lent_.emplace(number, std::move(lent));
  }
  for (const auto& [offset, size] : pieces) {
    message->Put<uint64_t>(offset);
    message->Put<uint64_t>(size);
  }
  return static_cast<uint16_t>(pieces.size());
}

void Loans::Return(uint64_t number) {
  Lent lent;  // its owner goes without the lock
  std::lock_guard lock(mutex_);
  const auto at = lent_.find(number);
  if (at == lent_.end()) return;
  lent = std::move(at->second);
  lent_.erase(at);
  bytes_ -= lent.bytes;
  memory_->CloseLoan(lent.slot);
}

void Loans::ReturnAll() {
  std::unordered_map<uint64_t, Lent> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(lent_);
    bytes_ = 0;
    for (const auto& [number, lent] : all) memory_->CloseLoan(lent.slot);
  }
}

}  // namespace tensorwire::wire
