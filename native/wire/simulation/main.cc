#include <sys/personality.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "simulator.h"
#include "workload.h"

// simulate SEED...            run these, one after the other
// simulate --trace SEED       print everything that happens in one
// simulate --twice SEED...    run each twice; the traces must be equal
// simulate --seeds FROM..TO   run all from FROM to TO - 1
// simulate --seconds N [--from SEED]   run from SEED (or a random one) on, for N seconds
// simulate --kept FILE        run seeds that failed once: one per line, a comment may follow
// simulate --break SEED       break an invariant on purpose: the run must fail

namespace {

using namespace tensorwire::simulation;  // NOLINT

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Totals {
  uint64_t seeds = 0;
  uint64_t calls = 0;
  uint64_t ok = 0;
  uint64_t switches = 0;
  double simulated_s = 0;

  Outcome Run(uint64_t number) {
    const Outcome outcome = RunSeed(number);
    ++seeds;
    calls += outcome.calls;
    ok += outcome.calls_ok;
    switches += outcome.switches;
    simulated_s += static_cast<double>(outcome.simulated_ns) / kSecond;
    if (seeds % 20'000 == 0) Show("\n");
    return outcome;
  }
  void Show(const char* end) const {
    const double cpu_s = CpuSeconds();
    std::printf("%" PRIu64 " seeds, %" PRIu64 " calls (%" PRIu64
                " succeeded), %.0f simulated s, "
                "%.0f seeds a second of CPU%s",
                seeds, calls, ok, simulated_s, static_cast<double>(seeds) / cpu_s, end);
    std::fflush(stdout);
  }
};

[[noreturn]] void Usage() {
  std::fprintf(stderr,
               "usage: simulate [--trace|--twice|--break] SEED... | --seeds FROM..TO | "
               "--seconds N [--from SEED] | --kept FILE\n");
  std::exit(2);
}

uint64_t Number(const char* text) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(text, &end, 10);
  if (end == text || (*end != '\0' && *end != '.')) Usage();
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  // Switch off address randomisation, so that nothing depends on addresses.
  const int persona = personality(0xffffffff);
  if (persona != -1 && (persona & ADDR_NO_RANDOMIZE) == 0 &&
      personality(static_cast<unsigned long>(persona) | ADDR_NO_RANDOMIZE) != -1 &&
      std::getenv("TENSORWIRE_SIMULATE_AGAIN") == nullptr) {
    setenv("TENSORWIRE_SIMULATE_AGAIN", "1", 1);
    execv("/proc/self/exe", argv);
  }
  SetUp();
  Totals totals;
  bool twice = false;
  uint64_t from = 0;
  bool has_from = false;
  double seconds = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (flag == "--trace") {
      show_trace = true;
    } else if (flag == "--twice") {
      twice = true;
    } else if (flag == "--break") {
      break_a_promise = true;
    } else if (flag == "--from" && value != nullptr) {
      from = Number(argv[++i]);
      has_from = true;
    } else if (flag == "--seconds" && value != nullptr) {
      seconds = std::atof(argv[++i]);
    } else if (flag == "--seeds" && value != nullptr) {
      const char* const dots = std::strstr(value, "..");
      if (dots == nullptr) Usage();
      const uint64_t end = Number(dots + 2);
      for (uint64_t at = Number(argv[++i]); at < end; ++at) totals.Run(at);
    } else if (flag == "--kept" && value != nullptr) {
      std::ifstream kept(argv[++i]);
      if (!kept) Usage();
      for (std::string line; std::getline(kept, line);) {
        if (!line.empty() && line[0] != '#') totals.Run(std::stoull(line));
      }
    } else if (flag[0] == '-') {
      Usage();
    } else {
      const Outcome outcome = totals.Run(Number(argv[i]));
      std::printf("%s: %" PRIu64 " calls, %" PRIu64 " succeeded, %.3f s, %" PRIu64
                  " switches, trace %016" PRIx64 "\n",
                  argv[i], outcome.calls, outcome.calls_ok,
                  static_cast<double>(outcome.simulated_ns) / kSecond, outcome.switches,
                  outcome.hash);
      if (twice && totals.Run(Number(argv[i])).hash != outcome.hash) {
        std::fprintf(stderr, "SEED=%s has another trace the second time\n", argv[i]);
        return 1;
      }
    }
  }
  if (seconds > 0) {
    if (!has_from) {
      from = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) /
             1'000'000 % 1'000'000'000;
      std::printf("from seed %" PRIu64 " on\n", from);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (uint64_t at = from; std::chrono::steady_clock::now() < end; ++at) totals.Run(at);
  }
  if (totals.seeds == 0) Usage();
  totals.Show("\n");
  return 0;
}
