// Reports one gigabyte of memory, for tests on an emulated machine. An emulator keeps a record of
// each page of a mapping, and a task's shared memory is a mapping of four times the memory.

#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

extern "C" int sysinfo(struct sysinfo* about) noexcept {
  const long result = syscall(SYS_sysinfo, about);
  about->totalram = 1u << 30;
  about->mem_unit = 1;
  return static_cast<int>(result);
}
