// Compiled into the plug-in for `make coverage`. Tests end most tasks by signals, so tasks cannot
// write their counters at exit. Instead they write them periodically, each to its own folder in
// TENSORWIRE_GCOV_FOLDER, so that a task that is killed while writing damages only its own data.
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
