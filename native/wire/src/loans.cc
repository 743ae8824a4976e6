#include "loans.h"

#include <algorithm>
#include <utility>

namespace tensorwire::wire {
namespace {

// A smaller payload is sent: that costs no more than the loan's own frames.
constexpr uint64_t kLeastBytes = 256u << 10;
// Limit for one peer. Beyond it payloads are sent, and back-pressure applies.
constexpr uint64_t kMostBytes = 1u << 30;
constexpr size_t kMostPieces = 256;
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

bool Loan::ReadHeld(std::string_view* metadata, Loan* out) {
  if (metadata->size() < kHeadBytes) return false;
  MetadataReader reader(metadata->substr(metadata->size() - kHeadBytes));
  metadata->remove_suffix(kHeadBytes);
  reader.Get(&out->number);
  reader.Get(&out->bytes);
  return out->number != 0;
}

uint64_t HeldPayloads::Add(const std::shared_ptr<const Payload>& payload) {
  std::lock_guard lock(mutex_);
  for (;;) {
    const uint64_t number = random_.Next();
    if (number == 0 || held_.emplace(number, payload).second) return number;
  }
}

void HeldPayloads::Remove(uint64_t number) {
  std::lock_guard lock(mutex_);
  held_.erase(number);
}

std::shared_ptr<const HeldPayloads::Payload> HeldPayloads::Find(uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto at = held_.find(number);
  return at == held_.end() ? nullptr : at->second.lock();
}

bool AddRange(const std::shared_ptr<const HeldPayloads::Payload>& payload, uint64_t offset,
              uint64_t bytes, Message* message) {
  if (offset > payload->bytes || bytes > payload->bytes - offset) return false;
  for (const ConstBuffer& buffer : payload->buffers) {
    if (offset >= buffer.size) {
      offset -= buffer.size;
      continue;
    }
    const uint64_t size = std::min<uint64_t>(bytes, buffer.size - offset);
    message->AddPayload(static_cast<const char*>(buffer.data) + offset, size);
    bytes -= size;
    offset = 0;
  }
  message->KeepAlive(payload);
  return true;
}

bool Loans::Hold(Message* message) {
  const uint64_t bytes = message->payload_bytes();
  if (bytes < least_held_bytes_.load(std::memory_order_acquire)) return false;
  auto payload = std::make_shared<HeldPayloads::Payload>();
  payload->bytes = bytes;
  {
    std::lock_guard lock(mutex_);
    if (bytes_ > kMostBytes) return false;
    payload->buffers.swap(message->payload_);
    payload->owner.swap(message->owner_);
    const uint64_t number = held_->Add(payload);
    if (number == 0) {
      payload->buffers.swap(message->payload_);
      payload->owner.swap(message->owner_);
      return false;
    }
    message->Put<uint64_t>(number);
    message->Put<uint64_t>(bytes);
    bytes_ += bytes;
    lent_.emplace(number, Lent{false, 0, bytes, std::move(payload)});
  }
  return true;
}

void Loans::End(uint64_t number, const Lent& lent) {
  if (lent.in_memory) {
    memory_->CloseLoan(lent.slot);
  } else {
    held_->Remove(number);
  }
}

uint16_t Loans::LendFromMemory(Message* message) {
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
    lent.in_memory = true;
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
  Lent lent;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  const auto at = lent_.find(number);
  if (at == lent_.end()) return;
  lent = std::move(at->second);
  lent_.erase(at);
  bytes_ -= lent.bytes;
  End(number, lent);
}

void Loans::ReturnAll() {
  std::unordered_map<uint64_t, Lent> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(lent_);
    bytes_ = 0;
    for (const auto& [number, lent] : all) End(number, lent);
  }
}

}  // namespace tensorwire::wire
