#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorwire::wire {

// The traffic between this task and one peer since the engine started, over all connections to it.
struct PeerStats {
  std::string peer;  // the peer's name; its address if it has not said its name
  uint64_t tx_bytes = 0;
  uint64_t rx_bytes = 0;
  uint64_t tx_frames = 0;
  uint64_t rx_frames = 0;
  uint64_t tx_syscalls = 0;
  uint64_t rx_syscalls = 0;
  uint64_t lent_bytes = 0;  // payloads the peer read in this task's memory; not in tx_bytes
  uint64_t read_bytes = 0;  // payloads read in the peer's memory; not in rx_bytes
  uint64_t connects = 0;
  uint64_t damaged_frames = 0;  // frames whose checksum did not match
};

struct ReactorStats {
  uint64_t busy_us = 0;  // outside of epoll_wait; when polling: only in rounds with work
};

struct EngineStats {
  std::vector<PeerStats> peers;
  std::vector<ReactorStats> reactors;
  bool polling = false;
};

}  // namespace tensorwire::wire
