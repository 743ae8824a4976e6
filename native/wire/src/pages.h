#pragma once

#include <unistd.h>

#include <cstddef>

namespace tensorwire::wire {

// The machine's page size: 4 KiB, or 16 or 64 KiB on many ARM servers. The kernel gives out and
// takes back whole pages only.
inline size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Large blocks begin at multiples of this size and are multiples of it: huge pages if pages have 4
// KiB. With larger pages a huge page has 32 or 512 MiB, too much to round up to.
inline size_t LargeUnitBytes(size_t page_bytes) {
  return page_bytes == 4096 ? size_t{2} << 20 : page_bytes;
}

inline size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace tensorwire::wire
