// Compiled into the plug-in for `make coverage`: tests end most tasks by signals, which leave no time
// to write what was counted. So it is written as long as they live, each task's to a folder of its
// own in TENSORWIRE_GCOV_FOLDER: one that is killed while it writes spoils no other's.
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <thread>

extern "C" void __gcov_dump();
extern "C" void __gcov_reset();

static const bool gcov_is_flushed = [] {
  const char* const folder = getenv("TENSORWIRE_GCOV_FOLDER");
  if (folder == nullptr) return false;
  setenv("GCOV_PREFIX", (std::string(folder) + "/" + std::to_string(getpid())).c_str(), 1);
  setenv("GCOV_PREFIX_STRIP", "99", 1);  // all folders of where it was compiled
  std::thread([] {
    for (;;) {
      usleep(200'000);
      __gcov_dump();
      __gcov_reset();
    }
  }).detach();
  return true;
}();
