#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace tensorwire::wire {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, lowest bit first

using Table = std::array<uint32_t, 256>;

// Tables[k][b]: the state after byte b and k zero bytes, from an empty state.
constexpr std::array<Table, 8> MakeTables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = state;
  }
  for (size_t zeros = 1; zeros < 8; ++zeros) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[zeros - 1][byte];
      tables[zeros][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = MakeTables();

uint64_t Load64(const unsigned char* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint32_t AdvanceByTable(uint32_t state, const unsigned char* at, size_t size) {
  for (; size >= 8; at += 8, size -= 8) {
    const uint64_t word = Load64(at) ^ state;
    state = 0;
    for (size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++at, --size) state = (state >> 8) ^ kTables[0][(state ^ *at) & 0xff];
  return state;
}

#if defined(__x86_64__)
#define TENSORWIRE_CRC_TARGET __attribute__((target("sse4.2")))
TENSORWIRE_CRC_TARGET inline uint32_t Step8(uint32_t state, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(state, word));
}
TENSORWIRE_CRC_TARGET inline uint32_t Step1(uint32_t state, unsigned char byte) {
  return _mm_crc32_u8(state, byte);
}
bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__aarch64__)
#define TENSORWIRE_CRC_TARGET
// Not <arm_acle.h>: before clang 16 it declares these only if the whole file is compiled for
// processors that have them.
inline uint32_t Step8(uint32_t state, uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
  return state;
}
inline uint32_t Step1(uint32_t state, unsigned char byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
  return state;
}
bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

#ifdef TENSORWIRE_CRC_TARGET

constexpr size_t kLaneBytes = 1024;

// kAcrossLane[k][b]: the state after kLaneBytes zero bytes, from a state whose byte k is b and
// whose other bytes are zero.
constexpr std::array<Table, 4> MakeAcrossLane() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t state = uint32_t{1} << bit;
    for (size_t i = 0; i < kLaneBytes; ++i) state = (state >> 8) ^ kTables[0][state & 0xff];
    of_bit[bit] = state;
  }
  std::array<Table, 4> across{};
  for (size_t k = 0; k < 4; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) across[k][byte] ^= of_bit[8 * k + bit];
      }
    }
  }
  return across;
}

constexpr std::array<Table, 4> kAcrossLane = MakeAcrossLane();

uint32_t AcrossLane(uint32_t state) {
  return kAcrossLane[0][state & 0xff] ^ kAcrossLane[1][state >> 8 & 0xff] ^
         kAcrossLane[2][state >> 16 & 0xff] ^ kAcrossLane[3][state >> 24];
}

TENSORWIRE_CRC_TARGET uint32_t AdvanceByInstruction(uint32_t state, const unsigned char* at,
                                                    size_t size) {
  for (; size >= 3 * kLaneBytes; at += 3 * kLaneBytes, size -= 3 * kLaneBytes) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      state = Step8(state, Load64(at + i));
      second = Step8(second, Load64(at + kLaneBytes + i));
      third = Step8(third, Load64(at + 2 * kLaneBytes + i));
    }
    state = AcrossLane(AcrossLane(state) ^ second) ^ third;
  }
  for (; size >= 8; at += 8, size -= 8) state = Step8(state, Load64(at));
  for (; size > 0; ++at, --size) state = Step1(state, *at);
  return state;
}

#endif

}  // namespace

bool HasCrc32cInstruction() {
#ifdef TENSORWIRE_CRC_TARGET
  static const bool has_instruction = HasInstruction();
  return has_instruction;
#else
  return false;
#endif
}

uint32_t ExtendCrc32cByTable(uint32_t crc, const void* data, size_t size) {
  return ~AdvanceByTable(~crc, static_cast<const unsigned char*>(data), size);
}

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size) {
#ifdef TENSORWIRE_CRC_TARGET
  if (HasCrc32cInstruction()) {
    return ~AdvanceByInstruction(~crc, static_cast<const unsigned char*>(data), size);
  }
#endif
  return ExtendCrc32cByTable(crc, data, size);
}

}  // namespace tensorwire::wire
