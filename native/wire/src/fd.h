#pragma once

#include <unistd.h>

#include <utility>

#include "fork.h"

namespace tensorwire::wire {

// Owns a file descriptor, which is this process's only: fork.h.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {
    if (valid()) NoteDescriptor(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (!valid()) return;
    ForgetDescriptor(fd_);
    ::close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace tensorwire::wire
