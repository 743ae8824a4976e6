#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorwire::wire {

// Extends `crc`, the CRC-32C (Castagnoli, RFC 3720) of earlier bytes, by `size` bytes at `data`;
// the CRC of no bytes is 0. Uses the processor's instruction if there is one, in three lanes,
// because the instruction takes three cycles and a new one can begin in each cycle.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// The same with tables, for processors without the instruction.
uint32_t ExtendCrc32cByTable(uint32_t crc, const void* data, size_t size);
bool HasCrc32cInstruction();

}  // namespace tensorwire::wire
