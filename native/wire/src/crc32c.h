#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorwire::wire {

// The CRC-32C (Castagnoli, RFC 3720) of what `crc` is the checksum of and, behind it, `size` bytes
// at `data`; that of nothing is 0. With the processor's instruction where it has one: three lanes,
// because the instruction takes three cycles and another can begin in each.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// The same by tables, for processors without the instruction.
uint32_t ExtendCrc32cByTable(uint32_t crc, const void* data, size_t size);
bool HasCrc32cInstruction();

}  // namespace tensorwire::wire
