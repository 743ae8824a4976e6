#include "crc32c.h"

#include <fstream>
#include <random>
#include <string>

#include "check.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace tensorwire::wire {
namespace {

uint32_t Crc(const std::string& bytes) { return ExtendCrc32c(0, bytes.data(), bytes.size()); }

TEST(the_examples_of_rfc_3720_come_out) {
  std::string rising;
  std::string falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  CHECK_EQ(Crc(""), 0u);
  CHECK_EQ(Crc(std::string(32, '\0')), 0x8a9136aau);
  CHECK_EQ(Crc(std::string(32, '\xff')), 0x62a8ab43u);
  CHECK_EQ(Crc(rising), 0x46dd794eu);
  CHECK_EQ(Crc(falling), 0x113fdb5cu);
  CHECK_EQ(Crc("123456789"), 0xe3069283u);
}

// Reads this from the processor itself; the engine asks the system. -1: unknown.
int ProcessorHasInstruction() {
#if defined(__x86_64__)
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0) return (line + " ").find(" sse4_2 ") != std::string::npos;
  }
#elif defined(__aarch64__)
  constexpr unsigned long kMayReadRegister = 1u << 11;  // HWCAP_CPUID
  if ((getauxval(AT_HWCAP) & kMayReadRegister) != 0) {
    uint64_t features = 0;
    asm("mrs %0, ID_AA64ISAR0_EL1" : "=r"(features));
    return (features >> 16 & 15) != 0;
  }
#endif
  return -1;
}

// Without the instruction, the next test would compare the tables with themselves.
TEST(the_instruction_is_used_where_there_is_one) {
  if (const int has = ProcessorHasInstruction(); has >= 0) {
    CHECK_EQ(HasCrc32cInstruction(), has == 1);
  }
}

TEST(instruction_and_tables_agree_at_every_size_and_alignment) {
  std::mt19937_64 random(7);
  std::string bytes(20'000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t size = 0; size < 80; ++size) {
      const char* const at = bytes.data() + offset;
      CHECK_EQ(ExtendCrc32c(1, at, size), ExtendCrc32cByTable(1, at, size));
    }
  }
  for (int i = 0; i < 300; ++i) {
    const size_t offset = random() % 100;
    const size_t size = random() % (bytes.size() - offset);
    const auto crc = static_cast<uint32_t>(random());
    CHECK_EQ(ExtendCrc32c(crc, bytes.data() + offset, size),
             ExtendCrc32cByTable(crc, bytes.data() + offset, size));
  }
}

TEST(a_checksum_in_pieces_is_that_of_the_whole) {
  std::mt19937_64 random(11);
  std::string bytes(50'000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (int i = 0; i < 50; ++i) {
    uint32_t crc = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t step = std::min<size_t>(random() % 9000, bytes.size() - at);
      crc = ExtendCrc32c(crc, bytes.data() + at, step);
      at += step;
    }
    CHECK_EQ(crc, Crc(bytes));
  }
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
