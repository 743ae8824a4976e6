#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

// A deterministic world for the engine: virtual time, processes, and fibers instead of threads, all
// in one real thread. The seed decides everything, so that a run can be repeated.
//
// The engine's own object files run in it. The linker redirects their system calls, locks and
// threads to the simulator (system_calls.cc); the engine does not know.
namespace tensorwire::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);  // SplitMix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 to n - 1.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(Below(static_cast<uint64_t>(most - least) + 1));
  }
  // Small numbers are as frequent as large ones.
  int64_t AnySize(int64_t least, int64_t most);

 private:
  uint64_t state_;
};

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kUs = 1000;
constexpr int64_t kMs = 1000 * kUs;
constexpr int64_t kSecond = 1000 * kMs;

class File;
struct Block;
struct Process;

struct Fiber {
  Process* process = nullptr;
  uint64_t id = 0;
  std::function<void()> body;
  enum class State { kReady, kBlocked, kEnded } state = State::kReady;
  const void* waits_for = nullptr;  // while it is blocked
  uint64_t waits = 0;  // how often it has blocked: distinguishes an old timeout from a new one
  bool timed_out = false;
  // Saved while others run.
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  std::vector<char> thread_locals;
  int error = 0;               // errno
  int inside = 0;              // KernelMode
  int undisturbed = 0;         // while a static variable is initialised
  int64_t handed_over_ns = 0;  // when its current closure was given to the executor; 0: none
  int yields = 0;              // consecutive ones
};

// One simulated process. Its memory is counted, and freed if the process is killed.
struct Process {
  std::string name;
  int pid = 0;
  int machine = 0;
  bool frozen = false;
  bool ended = false;
  int fibers = 0;             // the number that have not ended
  std::vector<char> statics;  // the engine's static variables, while others run
  std::vector<std::shared_ptr<File>> files;
  Block* blocks = nullptr;  // of its memory
  size_t block_count = 0;
  size_t block_bytes = 0;
  std::unordered_map<void*, size_t> mappings;
  std::vector<Fiber*> parked;    // ready, but frozen
  std::function<void()> at_end;  // the last fiber has ended
};

// The network link from one machine to another.
struct Link {
  int64_t latency_ns = 50 * kUs;
  int64_t bytes_per_s = 1'000'000'000;
  int64_t clogged_until_ns = 0;
};

struct Machine {
  bool up = true;
  int boots = 0;
};

class World {
 public:
  explicit World(uint64_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Random random;
  static constexpr int64_t kBeginNs = 1000 * kSecond;
  int64_t now_ns = kBeginNs;

  // --- what the seed chose for the machines (workload.cc sets it) ---
  uint64_t switch_one_in = 0;  // how rarely a fiber loses its core at a Point; 0: never
  uint64_t stall_one_in = 0;   // how rarely such a loss is long
  int64_t longest_stall_ns = 5 * kMs;
  int64_t call_ns = 300;          // the duration of a system call
  uint64_t partial_one_in = 0;    // short reads and writes
  uint64_t interrupt_one_in = 0;  // EINTR
  uint64_t epoll_failure_one_in = 0;
  uint64_t descriptor_failure_one_in = 0;
  uint64_t flip_one_in = 0;          // segments in which one bit is flipped
  size_t buffer_bytes = 256u << 10;  // of a connection, in each direction
  uint64_t damaged_segments = 0;
  uint64_t failed_calls = 0;  // by epoll and descriptor failures

  // --- time ---
  void At(int64_t time_ns, std::function<void()> event);
  void After(int64_t delay_ns, std::function<void()> event) {
    At(now_ns + delay_ns, std::move(event));
  }
  // Runs until `done` is true; checked between events.
  void Run(const std::function<bool()>& done);
  uint64_t switches() const { return switches_; }

  // --- processes and fibers ---
  Process* Start(std::string name, int machine, std::function<void()> body);
  Fiber* AddFiber(Process* process, std::function<void()> body);
  void Freeze(Process* process);
  void Thaw(Process* process);
  // Ends a process: its fibers never run again. `silently`: its peers are not told.
  void Kill(Process* process, bool silently);
  // The process's blocks that no pointer leads to and that it should have freed.
  std::string Leaks(Process* process);

  // --- on a fiber, in KernelMode ---
  // False if the time came first.
  bool Block(const void* on, int64_t until_ns = kNever);
  void Wake(Fiber* fiber);
  void WakeAll(const void* on);
  void WakeOne(const void* on);
  void Yield();  // lets other fibers run
  void Stall();  // the fiber loses its core for a while

  // --- network ---
  Link& LinkBetween(int from, int to);
  std::vector<Machine> machines;
  std::unordered_map<uint64_t, File*> listeners;                // by machine and port
  std::map<std::pair<int, std::string>, File*> unix_listeners;  // by machine and name
  int next_port = 40'000;

  std::vector<std::unique_ptr<Process>> processes;
  std::vector<std::unique_ptr<Fiber>> fibers;
  int next_pid = 100;

 private:
  struct Event {
    int64_t time_ns;
    uint64_t number;
    std::function<void()> run;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time_ns != b.time_ns ? a.time_ns > b.time_ns : a.number > b.number;
    }
  };
  void MakeReady(Fiber* fiber);
  void EndProcess(Process* process);
  void RunFiber(Fiber* fiber);

  std::priority_queue<Event, std::vector<Event>, Later> events_;
  uint64_t last_event_ = 0;
  std::vector<Fiber*> ready_;
  uint64_t switches_ = 0;
  std::unordered_map<uint64_t, Link> links_;
};

// The world that is being simulated, and the fiber that runs in it; null outside.
extern World* world;
extern Fiber* current;

// While one lives, the code runs as the simulator and not as the process: memory is not counted,
// system calls are real, and no other fiber runs.
class KernelMode {
 public:
  KernelMode() { ++depth; }
  ~KernelMode() { --depth; }
  KernelMode(const KernelMode&) = delete;
  KernelMode& operator=(const KernelMode&) = delete;
  static int depth;
};
inline bool InProcess() { return current != nullptr && KernelMode::depth == 0; }

// A point where another fiber may run: at system calls, locks and atomic operations.
extern int64_t points_left;
void TakePoint();
inline void Point() {
  if (--points_left <= 0) TakePoint();
}

// Prepares what all worlds share. Must be called first.
void SetUp();

// --- the trace ---
// Everything that happens goes into a hash, and to stdout if show_trace is set.
extern bool show_trace;
extern uint64_t trace_hash;
void Trace(const char* what, int64_t a = 0, int64_t b = 0, int64_t c = 0);
void TraceText(const std::string& text);

// An invariant does not hold: prints this with the seed, and ends this process.
[[noreturn]] void Violated(const std::string& what);
extern uint64_t seed;

// --- memory (memory.cc) ---
void FreeAll(Process* process);
void ForgetMemory();  // all processes have ended: addresses start from the beginning
// Calls with each block's address and size.
void ForEachBlock(const Process* process, const std::function<void(char*, size_t)>& visit);

}  // namespace tensorwire::simulation
