#include "simulator.h"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernel.h"
#include "statics.h"
#include "switch.h"

namespace tensorwire::simulation {

World* world = nullptr;
Fiber* current = nullptr;
int KernelMode::depth = 1;  // 1 outside of fibers
int64_t points_left = INT64_MAX;
bool show_trace = false;
uint64_t trace_hash = 0;
uint64_t seed = 0;

namespace {

constexpr size_t kStackBytes = 256u << 10;
constexpr int kSpinCpuS = 20;  // CPU time of one seed, after which a thread is assumed to spin
constexpr uint64_t kMostSwitches = 30'000'000;

void* scheduler_stack = nullptr;
std::vector<char*> free_stacks;

// This program's thread-local variables, including the engine's.
char* thread_locals = nullptr;
size_t thread_local_bytes = 0;
std::vector<char> fresh_thread_locals;
std::vector<char> fresh_statics;
Fiber* locals_of = nullptr;
Process* statics_of = nullptr;

int FindThreadLocals(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
    thread_locals = static_cast<char*>(info->dlpi_tls_data);
    thread_local_bytes = info->dlpi_phdr[i].p_memsz;
  }
  return 1;  // stop: the program itself comes first; thread-locals of libraries are not switched
}

size_t DataBytes() { return static_cast<size_t>(statics_end - statics_begin); }
size_t ZeroedBytes() { return static_cast<size_t>(zeroed_statics_end - zeroed_statics_begin); }
void SaveStatics(std::vector<char>* to) {
  to->resize(DataBytes() + ZeroedBytes());
  std::memcpy(to->data(), statics_begin, DataBytes());
  std::memcpy(to->data() + DataBytes(), zeroed_statics_begin, ZeroedBytes());
}
void LoadStatics(const std::vector<char>& from) {
  std::memcpy(statics_begin, from.data(), DataBytes());
  std::memcpy(zeroed_statics_begin, from.data() + DataBytes(), ZeroedBytes());
}

void UseProcess(Process* process) {
  if (statics_of == process) return;
  if (statics_of != nullptr) SaveStatics(&statics_of->statics);
  if (process != nullptr) LoadStatics(process->statics);
  statics_of = process;
}

void UseFiber(Fiber* fiber) {
  if (locals_of == fiber) return;
  if (locals_of != nullptr) {
    std::memcpy(locals_of->thread_locals.data(), thread_locals, thread_local_bytes);
  }
  if (fiber != nullptr) std::memcpy(thread_locals, fiber->thread_locals.data(), thread_local_bytes);
  locals_of = fiber;
}

char* TakeStack() {
  if (!free_stacks.empty()) {
    char* const stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  constexpr size_t kGuardBytes = 4096;
  void* const mapped = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  mprotect(mapped, kGuardBytes, PROT_NONE);
  return static_cast<char*>(mapped) + kGuardBytes;
}

void GiveBackStack(char* stack) { free_stacks.push_back(stack); }

void ToScheduler() {
  Fiber* const fiber = current;
  fiber->error = errno;
  fiber->inside = KernelMode::depth;
  tensorwire_switch_stack(&fiber->stack_pointer, scheduler_stack);
  KernelMode::depth = fiber->inside;
  errno = fiber->error;
}

void FiberMain() {
  KernelMode::depth = 0;
  current->body();
  ++KernelMode::depth;
  current->body = nullptr;
  current->state = Fiber::State::kEnded;
  world->WakeAll(current);
  ToScheduler();
  std::abort();
}

// Ends the program from a signal handler, without allocating.
[[noreturn]] void Fatal(const char* what) {
  ++KernelMode::depth;  // so that write is the real one
  char line[128];
  const int bytes = std::snprintf(line, sizeof(line), "SEED=%llu: %s\n",
                                  static_cast<unsigned long long>(seed), what);
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line, static_cast<size_t>(bytes));
  _exit(1);
}
void Spins(int) { Fatal("a thread spins without a system call"); }
[[maybe_unused]] void Crashes(int signal) {
  Fatal(signal == SIGABRT ? "the process is aborted" : "an invalid address is used");
}

void NextPoint() {
  points_left = world->switch_one_in == 0
                    ? INT64_MAX
                    : 1 + static_cast<int64_t>(world->random.Below(2 * world->switch_one_in));
}

}  // namespace

int64_t Random::AnySize(int64_t least, int64_t most) {
  int bits = 0;
  while ((int64_t{1} << bits) <= most - least) ++bits;
  const int64_t bound = int64_t{1} << Below(static_cast<uint64_t>(bits) + 1);
  return least +
         static_cast<int64_t>(Below(static_cast<uint64_t>(std::min(bound, most - least + 1))));
}

void SetUp() {
  // The next seed reuses memory that a seed has freed, so that the system need not provide it
  // again.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  dl_iterate_phdr(FindThreadLocals, nullptr);
  // The engine's variables must be between the marks. Otherwise the program's sections are not in
  // the order that simulation.cmake sets.
  constexpr size_t kMost = 1u << 20;
  if (thread_locals == nullptr || DataBytes() <= kMarkBytes || DataBytes() > kMost ||
      ZeroedBytes() <= kMarkBytes || ZeroedBytes() > kMost) {
    std::fprintf(stderr, "the engine's static variables are not between the marks\n");
    std::exit(1);
  }
  fresh_thread_locals.assign(thread_locals, thread_locals + thread_local_bytes);
  SaveStatics(&fresh_statics);
  struct sigaction action{};
  action.sa_handler = Spins;
  sigaction(SIGVTALRM, &action, nullptr);
  static char signal_stack[16 << 10];
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof(signal_stack);
  sigaltstack(&stack, nullptr);
  action.sa_handler = Crashes;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    sigaction(signal, &action, nullptr);
  }
}

void Violated(const std::string& what) {
  ++KernelMode::depth;
  const double ms = world != nullptr ? static_cast<double>(world->now_ns) / kMs : 0;
  std::fflush(stdout);
  std::fprintf(stderr, "SEED=%llu at %.3f ms: %s\n", static_cast<unsigned long long>(seed), ms,
               what.c_str());
  std::fflush(stderr);
  _exit(1);
}

void Trace(const char* what, int64_t a, int64_t b, int64_t c) {
  auto mix = [](uint64_t value) { trace_hash = (trace_hash ^ value) * 0x9e3779b97f4a7c15 + 1; };
  mix(static_cast<uint64_t>(what[0]) << 8 | static_cast<uint64_t>(what[1]));
  mix(static_cast<uint64_t>(a));
  mix(static_cast<uint64_t>(b) << 32 ^ static_cast<uint64_t>(c));
  mix(static_cast<uint64_t>(world->now_ns));
  if (!show_trace) return;
  std::printf("%12.6f %-10s #%-3d %-18s %lld %lld %lld\n", static_cast<double>(world->now_ns) / kMs,
              current != nullptr ? current->process->name.c_str() : "world",
              current != nullptr ? static_cast<int>(current->id) : 0, what,
              static_cast<long long>(a), static_cast<long long>(b), static_cast<long long>(c));
}

void TraceText(const std::string& text) {
  uint64_t hash = 0;
  for (const char c : text) hash = hash * 131 + static_cast<unsigned char>(c);
  const bool shown = std::exchange(show_trace, false);
  Trace("text", static_cast<int64_t>(hash));
  show_trace = shown;
  if (!show_trace) return;
  std::printf("%12.6f %-10s #%-3d | %s\n", static_cast<double>(world->now_ns) / kMs,
              current != nullptr ? current->process->name.c_str() : "world",
              current != nullptr ? static_cast<int>(current->id) : 0, text.c_str());
}

// --- the world ---------------------------------------------------------------------------------

World::World(uint64_t seed) : random(seed) {
  world = this;
  const itimerval limit{{0, 0}, {kSpinCpuS, 0}};
  setitimer(ITIMER_VIRTUAL, &limit, nullptr);
}

World::~World() {
  for (const auto& process : processes) {
    if (!process->ended) Kill(process.get(), /*silently=*/true);
  }
  for (const auto& fiber : fibers) {
    if (fiber->stack != nullptr) GiveBackStack(fiber->stack);
  }
  ForgetMemory();
  world = nullptr;
}

void World::At(int64_t time_ns, std::function<void()> event) {
  events_.push({std::max(time_ns, now_ns), ++last_event_, std::move(event)});
}

void World::Run(const std::function<bool()>& done) {
  NextPoint();
  while (!done()) {
    while (!events_.empty() && events_.top().time_ns <= now_ns) {
      auto run = std::move(const_cast<Event&>(events_.top()).run);
      events_.pop();
      run();
    }
    if (ready_.empty()) {
      if (events_.empty()) Violated("all threads wait for each other");
      now_ns = std::max(now_ns, events_.top().time_ns);
      continue;
    }
    const size_t index = random.Below(ready_.size());
    Fiber* const fiber = ready_[index];
    ready_[index] = ready_.back();
    ready_.pop_back();
    RunFiber(fiber);
    if (++switches_ > kMostSwitches) Violated("the world does not come to rest");
  }
  points_left = INT64_MAX;
}

void World::RunFiber(Fiber* fiber) {
  UseProcess(fiber->process);
  UseFiber(fiber);
  current = fiber;
  now_ns += call_ns / 4;
  tensorwire_switch_stack(&scheduler_stack, fiber->stack_pointer);
  current = nullptr;
  KernelMode::depth = 1;
  if (fiber->state != Fiber::State::kEnded) return;
  locals_of = nullptr;
  GiveBackStack(std::exchange(fiber->stack, nullptr));
  if (--fiber->process->fibers == 0) EndProcess(fiber->process);
}

Process* World::Start(std::string name, int machine, std::function<void()> body) {
  processes.push_back(std::make_unique<Process>());
  Process* const process = processes.back().get();
  process->name = std::move(name);
  process->pid = next_pid++;
  process->machine = machine;
  process->statics = fresh_statics;
  Trace("start", process->pid, machine);
  AddFiber(process, std::move(body));
  return process;
}

Fiber* World::AddFiber(Process* process, std::function<void()> body) {
  fibers.push_back(std::make_unique<Fiber>());
  Fiber* const fiber = fibers.back().get();
  fiber->process = process;
  fiber->id = fibers.size();
  fiber->body = std::move(body);
  fiber->thread_locals = fresh_thread_locals;
  fiber->stack = TakeStack();
  fiber->stack_pointer = PrepareStack(fiber->stack, kStackBytes, FiberMain);
  ++process->fibers;
  MakeReady(fiber);
  return fiber;
}

void World::MakeReady(Fiber* fiber) {
  fiber->state = Fiber::State::kReady;
  fiber->waits_for = nullptr;
  (fiber->process->frozen ? fiber->process->parked : ready_).push_back(fiber);
}

void World::Freeze(Process* process) {
  if (process->frozen || process->ended) return;
  Trace("freeze", process->pid);
  process->frozen = true;
  const auto parked = [&](Fiber* fiber) { return fiber->process == process; };
  std::copy_if(ready_.begin(), ready_.end(), std::back_inserter(process->parked), parked);
  std::erase_if(ready_, parked);
}

void World::Thaw(Process* process) {
  if (!process->frozen || process->ended) return;
  Trace("thaw", process->pid);
  process->frozen = false;
  ready_.insert(ready_.end(), process->parked.begin(), process->parked.end());
  process->parked.clear();
}

void World::Kill(Process* process, bool silently) {
  if (process->ended) return;
  Trace("kill", process->pid, silently);
  std::erase_if(ready_, [&](Fiber* fiber) { return fiber->process == process; });
  process->parked.clear();
  for (const auto& fiber : fibers) {
    if (fiber->process != process || fiber->state == Fiber::State::kEnded) continue;
    fiber->state = Fiber::State::kEnded;
    fiber->body = nullptr;
    if (locals_of == fiber.get()) locals_of = nullptr;
    GiveBackStack(std::exchange(fiber->stack, nullptr));
  }
  process->fibers = 0;
  CloseAll(process, silently);
  FreeAll(process);
  process->ended = true;
  if (statics_of == process) statics_of = nullptr;
}

void World::EndProcess(Process* process) {
  Trace("exit", process->pid);
  if (statics_of == process) {
    SaveStatics(&process->statics);
    statics_of = nullptr;
  }
  if (process->at_end) process->at_end();
  CloseAll(process, /*silently=*/false);
  FreeAll(process);
  process->ended = true;
}

std::string World::Leaks(Process* process) {
  // Finds memory that can be reached from the static variables, the roots of this leak check.
  std::vector<std::pair<char*, size_t>> blocks;
  ForEachBlock(process, [&](char* at, size_t bytes) { blocks.emplace_back(at, bytes); });
  std::sort(blocks.begin(), blocks.end());
  std::vector<bool> reached(blocks.size());
  std::vector<std::pair<const char*, size_t>> to_look_at{
      {process->statics.data(), process->statics.size()}};
  while (!to_look_at.empty()) {
    const auto [begin, bytes] = to_look_at.back();
    to_look_at.pop_back();
    for (size_t at = 0; at + sizeof(char*) <= bytes; at += sizeof(char*)) {
      char* pointer = nullptr;
      std::memcpy(&pointer, begin + at, sizeof(pointer));
      auto block = std::upper_bound(blocks.begin(), blocks.end(), std::pair{pointer, SIZE_MAX});
      if (block == blocks.begin()) continue;
      --block;
      const auto index = static_cast<size_t>(block - blocks.begin());
      if (pointer > block->first + block->second || reached[index]) continue;
      reached[index] = true;
      to_look_at.emplace_back(block->first, block->second);
    }
  }
  std::string leaks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!reached[i]) leaks += " " + std::to_string(blocks[i].second);
  }
  return leaks;
}

// --- on a fiber --------------------------------------------------------------------------------

bool World::Block(const void* on, int64_t until_ns) {
  Fiber* const fiber = current;
  fiber->state = Fiber::State::kBlocked;
  fiber->waits_for = on;
  fiber->timed_out = false;
  const uint64_t number = ++fiber->waits;
  if (until_ns != kNever) {
    // The closure is small enough for a std::function without an allocation.
    At(until_ns, [fiber, number] {
      if (fiber->state != Fiber::State::kBlocked || fiber->waits != number) return;
      fiber->timed_out = true;
      world->MakeReady(fiber);
    });
  }
  ToScheduler();
  return !fiber->timed_out;
}

void World::Wake(Fiber* fiber) {
  if (fiber->state == Fiber::State::kBlocked) MakeReady(fiber);
}

void World::WakeAll(const void* on) {
  for (const auto& fiber : fibers) {
    if (fiber->state == Fiber::State::kBlocked && fiber->waits_for == on) MakeReady(fiber.get());
  }
}

void World::WakeOne(const void* on) {
  std::vector<Fiber*> waiting;
  for (const auto& fiber : fibers) {
    if (fiber->state == Fiber::State::kBlocked && fiber->waits_for == on) {
      waiting.push_back(fiber.get());
    }
  }
  if (!waiting.empty()) MakeReady(waiting[random.Below(waiting.size())]);
}

void World::Yield() {
  MakeReady(current);
  ToScheduler();
}

void World::Stall() {
  Trace("stall");
  // Most stalls are short, because otherwise nothing would meet its deadline.
  Block(nullptr, now_ns + (random.OneIn(16) ? random.Between(longest_stall_ns / 2, longest_stall_ns)
                                            : random.AnySize(1 * kUs, longest_stall_ns)));
}

void TakePoint() {
  if (world == nullptr || !InProcess()) {
    points_left = 1;  // as soon as possible
    return;
  }
  if (current->undisturbed > 0) {
    points_left = 1;
    return;
  }
  NextPoint();
  KernelMode kernel;
  if (world->stall_one_in > 0 && world->random.OneIn(world->stall_one_in)) {
    world->Stall();
  } else {
    world->Yield();
  }
}

}  // namespace tensorwire::simulation
