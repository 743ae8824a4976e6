// Child processes of a task: what a child does with inherited memory does not affect the parent.

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "connection.h"
#include "harness.h"
#include "loans.h"
#include "shared_memory.h"
#include "tensorwire/wire/buffer_pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TENSORWIRE_SANITIZED
#else
static bool refuse_private_memory = false;

// Replaces the C library's mmap.
extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
  if (refuse_private_memory && (flags & (MAP_PRIVATE | MAP_FIXED)) == (MAP_PRIVATE | MAP_FIXED)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

// Replaces the C library's madvise.
static bool refuse_holes = false;
extern "C" int madvise(void* at, size_t bytes, int advice) noexcept {
  if (refuse_holes && advice == MADV_REMOVE) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_madvise, at, bytes, advice));
}
#endif

namespace tensorwire::wire {
namespace {

constexpr size_t kMb = 1u << 20;

// A pool that gives released blocks back to the system at once.
BufferPool::Options KeepsNothing(bool shared) {
  BufferPool::Options options;
  options.kept_bytes_cap = 0;
  options.shared = shared;
  return options;
}

bool Holds(const void* block, char byte, size_t bytes = kMb) {
  const auto* const data = static_cast<const char*>(block);
  return std::all_of(data, data + bytes, [byte](char b) { return b == byte; });
}

// Forks. A child that hangs is killed. Wait returns how the child ended.
pid_t Fork(const std::function<void()>& in_child) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);
    in_child();
    _exit(0);
  }
  return child;
}

int Wait(pid_t child) {
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

class Signal {
 public:
  Signal() { CHECK_EQ(pipe(ends_.data()), 0); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Give() const { CHECK_EQ(write(ends_[1], "x", 1), 1); }
  void Await() const {
    char byte = 0;
    CHECK_EQ(read(ends_[0], &byte, 1), 1);
  }

 private:
  std::array<int, 2> ends_{};
};

TEST(what_a_forked_process_does_with_its_parent_s_blocks_does_not_reach_the_parent) {
  auto pool = std::make_unique<BufferPool>(KeepsNothing(/*shared=*/true));
  void* const lent = pool->Acquire(kMb);
  void* const used_again = pool->Acquire(kMb);
  std::memset(lent, 'l', kMb);
  std::memset(used_again, 'u', kMb);
  HeldPayloads held;
  auto loans = std::make_unique<Loans>(pool->shared_memory(), &held);
  loans->AllowLending();
  Message message;
  message.AddPayload(lent, kMb);
  message.KeepAlive(std::shared_ptr<void>(lent, [&](void* block) { pool->Release(block); }));
  const uint16_t pieces = loans->Lend(&message);
  CHECK_EQ(pieces, 1);
  std::shared_ptr<const ForeignMemory> reader;
  CHECK(ForeignMemory::Open(pool->shared_memory()->descriptor(), &reader).ok());
  const OutFrame frame(FrameKind::kReply, kLent, 0, std::move(message));
  std::string_view metadata = std::string_view(frame.head).substr(kHeaderBytes);
  Loan loan;
  CHECK(Loan::Read(*reader, pieces, &metadata, &loan));

  const Signal go;
  const pid_t child = Fork([&] {
    go.Await();
    CHECK(Holds(lent, 'l'));
    std::memset(lent, 'c', kMb);
    std::memset(used_again, 'c', kMb);
    CHECK(Holds(lent, 'c'));
    pool->Release(used_again);
    CHECK(pool->Acquire(kMb) == nullptr);
    CHECK(pool->shared_memory() == nullptr);
    CHECK(pool->Owns(lent));  // no other allocator may free its memory
    pool->Trim();
    loans.reset();  // this releases the lent block
    pool.reset();
  });
  pool->Release(used_again);
  CHECK(pool->Acquire(kMb) == used_again);
  std::memset(used_again, 'n', kMb);
  go.Give();
  CHECK_EQ(Wait(child), 0);

  CHECK(Holds(lent, 'l'));
  CHECK(Holds(used_again, 'n'));
  CHECK(Holds(loan.pieces.at(0).data, 'l'));
  CHECK(reader->StillLent(loan.number, loan.slot));
  loans.reset();
  CHECK(!reader->StillLent(loan.number, loan.slot));
}

TEST(what_a_forked_process_writes_its_own_children_see) {
  BufferPool pool(KeepsNothing(/*shared=*/true));
  void* const block = pool.Acquire(kMb);
  std::memset(block, 'p', kMb);
  const pid_t child = Fork([&] {
    std::memset(block, 'c', kMb);
    const pid_t grandchild = Fork([&] {
      CHECK(Holds(block, 'c'));
      std::memset(block, 'g', kMb);
    });
    CHECK_EQ(Wait(grandchild), 0);
    CHECK(Holds(block, 'c'));
  });
  CHECK_EQ(Wait(child), 0);
  CHECK(Holds(block, 'p'));
  pool.Release(block);
}

TEST(a_forked_process_may_share_memory_of_its_own) {
  BufferPool of_parent(KeepsNothing(/*shared=*/true));
  const pid_t child = Fork([&] {
    BufferPool pool(KeepsNothing(/*shared=*/true));
    CHECK(pool.shared_memory() != nullptr);
    void* const block = pool.Acquire(kMb);
    std::memset(block, 'c', kMb);
    std::shared_ptr<const ForeignMemory> reader;
    CHECK(ForeignMemory::Open(pool.shared_memory()->descriptor(), &reader).ok());
    uint64_t offset = 0;
    CHECK(pool.shared_memory()->Find(block, kMb, &offset));
    CHECK(Holds(reader->At(offset, kMb), 'c'));
  });
  CHECK_EQ(Wait(child), 0);
}

TEST(a_pool_that_shares_nothing_works_in_a_forked_process) {
  BufferPool pool(KeepsNothing(/*shared=*/false));
  void* const block = pool.Acquire(kMb);
  std::memset(block, 'p', kMb);
  const pid_t child = Fork([&] {
    void* const other = pool.Acquire(kMb);
    CHECK(other != nullptr && other != block);
    std::memset(other, 'c', kMb);
    std::memset(block, 'c', kMb);
    pool.Release(other);
    pool.Release(block);
    CHECK_EQ(pool.stats().used_bytes, 0u);
  });
  CHECK_EQ(Wait(child), 0);
  CHECK(Holds(block, 'p'));
  pool.Release(block);
}

#ifndef TENSORWIRE_SANITIZED  // sanitizers do not support a fork of a process with threads
TEST(a_forked_process_waits_for_no_thread_that_it_has_not) {
  BufferPool shared(KeepsNothing(/*shared=*/true));
  BufferPool unshared(KeepsNothing(/*shared=*/false));
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (BufferPool* pool : {&shared, &unshared}) {
    threads.emplace_back([&over, pool] {
      while (!over) {
        pool->Release(pool->Acquire(100));
        pool->stats();
      }
    });
  }
  const int memory = shared.shared_memory()->descriptor();
  std::shared_ptr<const ForeignMemory> reader;
  threads.emplace_back([&] {
    std::shared_ptr<const ForeignMemory> other;
    while (!over) CHECK(ForeignMemory::Open(memory, &other).ok());
  });
  void* const block = unshared.Acquire(100);
  for (int i = 0; i < 300; ++i) {
    const pid_t child = Fork([&] {
      alarm(10);
      shared.stats();
      shared.Release(shared.Acquire(100));
      unshared.Release(unshared.Acquire(100));
      CHECK(unshared.Owns(block));
      ForeignMemory::Open(memory, &reader);
    });
    CHECK_EQ(Wait(child), 0);
  }
  over = true;
  for (auto& thread : threads) thread.join();
  unshared.Release(block);
}
#endif

#ifndef TENSORWIRE_SANITIZED  // sanitizers do not support a fork of a process with threads
// The sockets, epoll instances and the like of this process.
std::vector<std::string> Descriptors() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    found.push_back(std::filesystem::read_symlink(entry, gone).string());
  }
  std::erase_if(found, [](const std::string& name) {
    return name.rfind("socket:", 0) != 0 && name.rfind("anon_inode:", 0) != 0;
  });
  return found;
}

// A task is killed while a process that it has forked lives on. The port of a server beside the
// engine (gRPC's) is free again, too.
TEST(a_child_that_outlives_a_task_keeps_neither_its_ports_nor_its_connections) {
  const Signal ready;
  const Signal over;
  std::array<int, 2> ports{};
  CHECK_EQ(pipe(ports.data()), 0);
  const std::vector<std::string> inherited = Descriptors();
  const pid_t task = Fork([&] {
    Task peer("peer");
    Task own("own");
    const auto channel = own.engine->Connect(peer.Listen(), "peer");
    const std::string address = own.Listen();
    const int beside = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQ(bind(beside, reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
    CHECK_EQ(listen(beside, 1), 0);
    own.engine->CloseInForks(OwnAddress(beside).port());
    CHECK(Get(Begin(*channel, kEcho, "x")).status.ok());
    const std::array<int, 2> opened = {std::stoi(address.substr(address.rfind(':') + 1)),
                                       OwnAddress(beside).port()};
    CHECK_EQ(write(ports[1], opened.data(), sizeof(opened)), ssize_t{sizeof(opened)});
    ready.Await();  // a client has connected
    CHECK(Descriptors().size() > inherited.size() + 8);
    Fork([&] {
      // What is left has no peer and no name.
      for (int fd = 0; fd < 256; ++fd) {
        CHECK_EQ(PeerAddress(fd).port(), 0);
        CHECK_EQ(OwnAddress(fd).port(), 0);
      }
      for (const std::string& name : Descriptors()) CHECK(name.rfind("anon_inode:", 0) != 0);
      CHECK_EQ(write(ports[1], "f", 1), 1);
      over.Await();
    });
    pause();
  });
  std::array<int, 2> opened{};
  CHECK_EQ(read(ports[0], opened.data(), sizeof(opened)), ssize_t{sizeof(opened)});
  RawStream client = RawStream::To("127.0.0.1:" + std::to_string(opened[0]));
  client.Greet("raw", "own");
  ready.Give();
  char forked = 0;
  CHECK_EQ(read(ports[0], &forked, 1), 1);
  CHECK_EQ(kill(task, SIGKILL), 0);
  const int status = Wait(task);
  CHECK(WIFSIGNALED(status));
  client.ReadToEnd();  // the peer notices at once
  for (const int port : opened) {
    Fd again;
    int bound = 0;
    CHECK(ListenOn("127.0.0.1", port, &again, &bound).ok());
  }
  over.Give();
}
#endif

#ifndef TENSORWIRE_SANITIZED  // sanitizers have their own mmap
// As on gVisor.
TEST(where_shared_memory_cannot_be_given_back_nothing_is_shared) {
  refuse_holes = true;
  BufferPool pool(KeepsNothing(/*shared=*/true));
  CHECK(pool.shared_memory() == nullptr);
  void* const block = pool.Acquire(kMb);
  std::memset(block, 'p', kMb);
  pool.Release(block);
  refuse_holes = false;
}

// As on a system that does not overcommit memory (vm.overcommit_memory=2).
TEST(a_forked_process_that_gets_no_memory_of_its_own_cannot_write_its_parent_s) {
  BufferPool pool(KeepsNothing(/*shared=*/true));
  void* const block = pool.Acquire(kMb);
  std::memset(block, 'p', kMb);
  refuse_private_memory = true;
  const pid_t child = Fork([&] {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    CHECK(Holds(block, 'p'));
    std::memset(block, 'c', kMb);
  });
  refuse_private_memory = false;
  const int status = Wait(child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  CHECK(Holds(block, 'p'));
  pool.Release(block);
}
#endif

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
