#include "context.h"

namespace tensorwire::wire {

Reactor* Context::NextAccepting() {
  const size_t first = next_accepted_.fetch_add(1, std::memory_order_relaxed);
  Reactor* best = ReactorFor(first);
  for (size_t i = 1; i < reactors.size(); ++i) {
    Reactor* const other = ReactorFor(first + i);
    if (other->seats < best->seats) best = other;
  }
  return best;
}

void Context::AddName(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (name != options.name) more_names_.insert(name);
}

bool Context::IsNamed(const std::string& name) const {
  if (options.name.empty() || name == options.name) return true;
  std::lock_guard lock(mutex_);
  return more_names_.count(name) != 0;
}

std::shared_ptr<PeerCounters> Context::CountersFor(const std::string& peer) {
  // Names come from the network: a peer that uses a new name for each connection must not fill the
  // memory.
  constexpr size_t kMostPeers = 4096;
  std::lock_guard lock(mutex_);
  const bool known = counters_.size() < kMostPeers || counters_.count(peer) > 0;
  auto& counters = counters_[known ? peer : "others"];
  if (!counters) counters = std::make_shared<PeerCounters>();
  return counters;
}

EngineStats Context::Stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats;
  for (const auto& [peer, live] : counters_) {
    PeerStats figures;
    figures.peer = peer;
    figures.tx_bytes = live->tx_bytes.load(std::memory_order_relaxed);
    figures.rx_bytes = live->rx_bytes.load(std::memory_order_relaxed);
    figures.tx_frames = live->tx_frames.load(std::memory_order_relaxed);
    figures.rx_frames = live->rx_frames.load(std::memory_order_relaxed);
    figures.tx_syscalls = live->tx_syscalls.load(std::memory_order_relaxed);
    figures.rx_syscalls = live->rx_syscalls.load(std::memory_order_relaxed);
    figures.lent_bytes = live->lent_bytes.load(std::memory_order_relaxed);
    figures.read_bytes = live->read_bytes.load(std::memory_order_relaxed);
    figures.connects = live->connects.load(std::memory_order_relaxed);
    figures.damaged_frames = live->damaged_frames.load(std::memory_order_relaxed);
    stats.peers.push_back(std::move(figures));
  }
  for (const auto& reactor : reactors) stats.reactors.push_back({reactor->busy_us()});
  stats.polling = options.polling;
  return stats;
}

void Context::WarnAboutPeer(const std::string& peer, const std::string& line) {
  constexpr int64_t kQuietMs = 60'000;
  constexpr size_t kRemembered = 1024;
  {
    std::lock_guard lock(mutex_);
    const int64_t now = NowMs();
    const auto [at, fresh] = warned_at_ms_.emplace(peer.substr(0, peer.rfind(':')), now);
    if (!fresh) {
      if (now - at->second < kQuietMs) return;
      at->second = now;
    }
    if (warned_at_ms_.size() > kRemembered) warned_at_ms_.clear();
  }
  Log(LogLevel::kWarning, line);
}

}  // namespace tensorwire::wire
