#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tensorwire::bench {

inline constexpr uint8_t kFill = 0x5a;  // the value of every byte of the tensors

// The rendezvous key of a step's tensor number `index`, from the ps's CPU to a worker's.
inline std::string KeyOf(int64_t index, uint64_t incarnation) {
  return tensorflow::Rendezvous::CreateKey("/job:ps/replica:0/task:0/device:CPU:0", incarnation,
                                           "/job:worker/replica:0/task:0/device:CPU:0",
                                           std::to_string(index) + "_variable/read",
                                           tensorflow::FrameAndIter(0, 0));
}

// Null, or an error message that stays valid until the thread's next call.
inline const char* Words(const absl::Status& status) {
  thread_local std::string words;
  if (status.ok()) return nullptr;
  words = std::string(status.message());
  return words.c_str();
}

}  // namespace tensorwire::bench
