// Payloads that a peer on this host reads in the owner's shared memory.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "connection.h"
#include "copy_threads.h"
#include "harness.h"
#include "loans.h"
#include "shared_memory.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kMb = 1u << 20;

BufferPool::Options Shared() {
  BufferPool::Options options;
  options.shared = true;
  return options;
}

// Answers with a block of `pool` that has as many bytes as the metadata says.
class PoolHandler : public TestHandler {
 public:
  explicit PoolHandler(BufferPool* pool) : pool_(pool) {}
  void Handle(Request request) override {
    if (request.method != kBytes) {
      TestHandler::Handle(std::move(request));
      return;
    }
    const auto bytes = static_cast<size_t>(std::stoul(request.metadata));
    std::shared_ptr<void> block(pool_->Acquire(bytes), [this](void* b) { pool_->Release(b); });
    std::memset(block.get(), 'm', bytes);
    static_cast<char*>(block.get())[bytes - 1] = 'e';
    Message reply;
    reply.AppendMetadata("meta");
    const size_t half = bytes / 2;  // in two pieces
    reply.AddPayload(block.get(), half);
    reply.AddPayload(static_cast<char*>(block.get()) + half, bytes - half);
    reply.KeepAlive(block);
    request.Reply(std::move(reply));
  }

 private:
  BufferPool* const pool_;
};

struct Pair {
  explicit Pair(Transport of_ps = Transport::kAuto, Transport of_worker = Transport::kAuto)
      : pool(Shared()),
        ps("ps:0", 1,
           [&](EngineOptions* options) {
             options->pool = &pool;
             options->transport = of_ps;
           }),
        worker("worker:0", 1, [&](EngineOptions* options) { options->transport = of_worker; }) {
    ps.handler = std::make_shared<PoolHandler>(&pool);
    address = ps.Listen();
    channel = worker.engine->Connect(address, "ps:0");
  }
  PeerStats OfPs() {
    const EngineStats stats = ps.engine->stats();
    return stats.peers.empty() ? PeerStats() : stats.peers[0];
  }

  BufferPool pool;
  Task ps;
  Task worker;
  std::string address;
  std::shared_ptr<Channel> channel;
};

void CheckBytes(Pair& pair, size_t bytes) {
  const Outcome outcome = Get(Begin(*pair.channel, kBytes, std::to_string(bytes)));
  CHECK(outcome.status.ok());
  CHECK_EQ(outcome.metadata, "meta");
  CHECK_EQ(outcome.payload.size(), bytes);
  CHECK_EQ(outcome.payload.find_first_not_of('m'), bytes - 1);
  CHECK_EQ(outcome.payload.back(), 'e');
}

TEST(large_payloads_are_read_in_the_peers_memory_and_small_ones_are_sent) {
  Pair pair;
  // Sizes around the limits for lending, for copying at once, and for copying by several threads.
  for (const size_t bytes : {3 * kMb / 10 + 1, kMb / 2, kMb / 2 + 1, 13 * kMb + 7, 40 * kMb}) {
    const uint64_t before = pair.OfPs().lent_bytes;
    CheckBytes(pair, bytes);
    CHECK_EQ(pair.OfPs().lent_bytes - before, bytes);
  }
  CHECK(pair.OfPs().tx_bytes < 10'000);
  CHECK_EQ(pair.worker.engine->stats().peers.at(0).read_bytes, pair.OfPs().lent_bytes);
  const uint64_t lent = pair.OfPs().lent_bytes;
  CheckBytes(pair, 1000);
  CHECK_EQ(pair.OfPs().lent_bytes, lent);
}

TEST(what_is_read_in_the_peers_memory_goes_into_as_many_buffers_as_its_asker_has) {
  Pair pair;
  for (const size_t bytes : {kMb, 13 * kMb + 7}) {  // copied at once, and by several threads
    std::promise<std::string> done;
    auto future = done.get_future();
    Message request(kBytes);
    request.AppendMetadata(std::to_string(bytes));
    pair.channel->Start(std::move(request), std::make_unique<ScatterCall>(300, std::move(done)),
                        {});
    CHECK(future.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    CHECK(future.get() == std::string(bytes - 1, 'm') + 'e');
    CHECK(pair.OfPs().lent_bytes >= bytes);
  }
}

// A worker's first call to a peer that the test plays, over TCP and at a lane.
struct CallToRawPeer {
  Task worker{"worker:0"};
  RawServer server;
  RawLane lane;
  const std::shared_ptr<Channel> channel = worker.engine->Connect(server.address(), "ps:0");
  std::future<Outcome> outcome = Begin(*channel, kEcho, "");
};

// Keeps all threads of a CopyThreads busy until it is destroyed.
class HeldThreads {
 public:
  // `add` starts a copy that calls the given function at its end, in the thread that copied.
  explicit HeldThreads(const std::function<void(std::function<void()>)>& add) {
    for (size_t i = 0; i < CopyThreads::Count(); ++i) {
      add([this] {
        busy_.count_down();
        free_.wait();
        left_.count_down();
      });
    }
    busy_.wait();
  }
  ~HeldThreads() {
    free_.count_down();
    left_.wait();
  }

 private:
  std::latch busy_{static_cast<ptrdiff_t>(CopyThreads::Count())};
  std::latch left_{static_cast<ptrdiff_t>(CopyThreads::Count())};
  std::latch free_{1};
};

// A call that calls something at its end.
class EndingCall : public ScatterCall {
 public:
  explicit EndingCall(std::function<void()> at_end)
      : ScatterCall(1, std::promise<std::string>()), at_end_(std::move(at_end)) {}
  void Done(const Status&) override { at_end_(); }

 private:
  const std::function<void()> at_end_;
};

TEST(a_copy_that_no_thread_begins_ends_by_deadline_cancellation_and_loss) {
  for (const Code how : {Code::kDeadlineExceeded, Code::kCancelled, Code::kUnavailable}) {
    Pair pair;
    CheckBytes(pair, kMb);  // now it is connected
    std::optional<HeldThreads> held(std::in_place, [&](std::function<void()> at_end) {
      Message request(kBytes);
      request.AppendMetadata(std::to_string(kMb));
      pair.channel->Start(std::move(request), std::make_unique<EndingCall>(std::move(at_end)), {});
    });
    CallOptions options;
    options.done_on = RunOn::kReactor;
    if (how == Code::kDeadlineExceeded) options.deadline_ms = 500;
    const uint64_t lent = pair.OfPs().lent_bytes;
    uint64_t id = 0;
    auto call = Begin(*pair.channel, kBytes, std::to_string(13 * kMb), "", options, &id);
    if (options.deadline_ms == 0) Eventually([&] { return pair.OfPs().lent_bytes > lent; });
    if (how == Code::kCancelled) pair.channel->Cancel(id);
    if (how == Code::kUnavailable) pair.ps.engine->Stop();
    CHECK(Get(std::move(call)).status.code() == how);
    held.reset();  // nothing may be written to the buffer, which is gone
    pair.worker.engine->Stop();
  }
}

TEST(copies_take_turns_so_that_a_small_one_ends_first_and_the_end_cancels_what_is_left) {
  const auto memory = SharedMemory::Create();
  std::shared_ptr<const ForeignMemory> foreign;
  CHECK(ForeignMemory::Open(memory->descriptor(), &foreign).ok());
  char* const block = static_cast<char*>(memory->Map(64 * kMb));
  Loan loan;
  CHECK(memory->OpenLoan(&loan.number, &loan.slot));
  std::string room(64 * kMb, '\0');
  const auto copy = [&](size_t bytes, std::function<void(bool)> done) {
    loan.bytes = bytes;
    loan.pieces = {{block, bytes}};
    return std::make_shared<LoanCopy>(
        foreign, loan, std::vector<MutableBuffer>{{room.data(), bytes}}, std::move(done));
  };
  CopyThreads threads;
  std::mutex mutex;
  std::string order;
  std::latch ended(2);
  const auto note = [&](char what) {
    return [&, what](bool whole) {
      std::lock_guard lock(mutex);
      order += whole ? what : '-';
      ended.count_down();
    };
  };
  const auto hold = [&](const std::function<void()>& at_end) {
    threads.Add(copy(kMb, [at_end](bool) { at_end(); }));
  };
  {
    const HeldThreads held(hold);
    threads.Add(copy(64 * kMb, note('L')));
    threads.Add(copy(kMb, note('s')));
  }
  ended.wait();
  CHECK_EQ(order, "sL");

  bool whole = true;
  std::thread stop;
  {
    const HeldThreads held(hold);
    threads.Add(copy(kMb, [&](bool all) { whole = all; }));
    stop = std::thread([&] { threads.Stop(); });
    Eventually([&] {
      const auto refused = std::make_shared<std::atomic<bool>>(false);
      threads.Add(copy(1, [refused](bool all) { refused->store(!all); }));
      return refused->load();
    });
  }
  stop.join();
  CHECK(!whole);
}

TEST(what_was_lent_is_the_owners_again_once_it_has_been_read) {
  Pair pair;
  for (int i = 0; i < 20; ++i) CheckBytes(pair, 5 * kMb);
  Eventually([&] { return pair.pool.stats().used_bytes == 0; });
  CHECK(pair.pool.stats().misses <= 2);  // a loan may be returned a moment after the reply
}

TEST(a_pool_that_nobody_touches_gives_back_what_it_keeps) {
  BufferPool::Options of_pool = Shared();
  of_pool.kept_ms = 100;
  BufferPool pool(of_pool);
  Task ps("ps:0", 1, [&](EngineOptions* options) { options->pool = &pool; });
  pool.Release(pool.Acquire(10 * kMb));
  CHECK(pool.stats().kept_bytes > 0);
  Eventually([&] { return pool.stats().kept_bytes == 0; });
}

TEST(either_end_can_insist_on_tcp) {
  for (const bool at_ps : {true, false}) {
    Pair pair(at_ps ? Transport::kTcp : Transport::kAuto,
              at_ps ? Transport::kAuto : Transport::kTcp);
    CheckBytes(pair, 5 * kMb);
    CHECK_EQ(pair.OfPs().lent_bytes, 0u);
    // The bytes are counted after the system call has returned; the reply may arrive before that.
    Eventually([&] { return pair.OfPs().tx_bytes > 5 * kMb; });
  }
}

TEST(what_is_not_in_shared_memory_is_sent) {
  Pair pair;
  const Outcome outcome = Get(Begin(*pair.channel, kEcho, "", std::string(3 * kMb, 'q')));
  CHECK(outcome.payload == std::string(3 * kMb, 'q'));
  CHECK_EQ(pair.OfPs().lent_bytes, 0u);
}

TEST(who_insists_on_memory_is_told_when_the_peer_has_none_to_read) {
  Task ps("ps:0");
  Task worker("worker:0", 1, [](EngineOptions* o) { o->transport = Transport::kMemory; });
  const auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  const Outcome outcome = Get(Begin(*channel, kEcho, ""));
  CHECK(outcome.status.code() == Code::kFailedPrecondition);
  CHECK(Contains(outcome.status.message(), "through memory only"));
  CHECK(Contains(outcome.status.message(), "shares no memory"));
}

TEST(a_peer_whose_memory_cannot_be_read_is_one_line_in_the_log_and_sends) {
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CallToRawPeer call;
  RawStream stream = call.server.AcceptAndGreet(call.lane.line());
  RawStream refused = call.lane.AcceptAndGreet(null.get());
  ReadFrame frame;
  CHECK(stream.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kRequest);  // not kMapped
  CHECK(stream.Send(Frame(FrameKind::kReply, frame.header.request_id, 0, "", "sent")));
  CHECK_EQ(Get(std::move(call.outcome)).payload, "sent");
  CHECK(refused.ReadToEnd().empty());
  CHECK_EQ(call.worker.Log().size(), 1u);
  CHECK(
      Contains(call.worker.Log()[0], "payloads of ps:0 come by TCP, although it is on this host"));
}

TEST(a_lane_that_is_not_on_this_host_is_not_talked_of) {
  for (const char* const lane : {"lane=0123456789abcdef\n", "lane=../../run/other.sock\n"}) {
    Task worker("worker:0");
    RawServer server;
    const auto channel = worker.engine->Connect(server.address(), "ps:0");
    auto outcome = Begin(*channel, kEcho, "");
    RawStream stream = server.AcceptAndGreet(lane);
    ReadFrame frame;
    CHECK(stream.Read(&frame));
    CHECK(stream.Send(Frame(FrameKind::kReply, frame.header.request_id, 0, "", "sent")));
    CHECK_EQ(Get(std::move(outcome)).payload, "sent");
    CHECK(worker.Log().empty());
  }
}

TEST(a_peer_that_is_late_at_its_lane_is_waited_for) {
  const auto memory = SharedMemory::Create();
  CallToRawPeer call;
  RawStream stream = call.server.AcceptAndGreet(call.lane.line());
  // A machine with more to do than it has processors takes longer than this, too.
  pollfd request{stream.fd(), POLLIN, 0};
  CHECK_EQ(::poll(&request, 1, 3000), 0);
  RawStream late = call.lane.AcceptAndGreet(memory->descriptor());
  ReadFrame frame;
  do CHECK(late.Read(&frame));
  while (frame.header.kind == FrameKind::kMapped);
  CHECK(frame.header.kind == FrameKind::kRequest);
  CHECK(late.Send(Frame(FrameKind::kReply, frame.header.request_id, 0, "", "sent")));
  CHECK_EQ(Get(std::move(call.outcome)).payload, "sent");
}

TEST(a_peer_that_hangs_up_before_its_lane_is_open_is_unavailable) {
  CallToRawPeer call;
  {
    call.server.AcceptAndGreet(call.lane.line());
  }
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  SleepMs(50);
  call.lane.AcceptAndGreet(null.get());
  CHECK(Get(std::move(call.outcome)).status.code() == Code::kUnavailable);
}

TEST(calls_that_were_cancelled_give_their_loans_back) {
  Pair pair;
  CheckBytes(pair, kMb);
  for (int i = 0; i < 30; ++i) {
    uint64_t id = 0;
    auto outcome = Begin(*pair.channel, kBytes, std::to_string(8 * kMb), "", {}, &id);
    if (i % 3 != 0) SleepMs(i % 3);
    pair.channel->Cancel(id);
    const Outcome ended = Get(std::move(outcome));
    CHECK(ended.status.ok() || ended.status.code() == Code::kCancelled);
  }
  CheckBytes(pair, kMb);
  Eventually([&] { return pair.pool.stats().used_bytes == 0; });
}

TEST(a_peer_that_disconnects_gives_everything_back) {
  BufferPool pool(Shared());
  Task ps("ps:0", 1, [&](EngineOptions* options) { options->pool = &pool; });
  ps.handler = std::make_shared<PoolHandler>(&pool);
  {
    RawStream client = RawStream::To(ps.Listen());
    client.Greet("worker:0", "ps:0");
    CHECK(client.Send(Frame(FrameKind::kMapped, 0)));
    CHECK(client.Send(Frame(FrameKind::kRequest, 1, kBytes, std::to_string(kMb))));
    CHECK(client.Send(Frame(FrameKind::kReturn, 77)));  // a number that was never lent
    ReadFrame reply;
    CHECK(client.Read(&reply));
    CHECK_EQ(reply.header.flags & kLent, kLent);
    CHECK_EQ(reply.header.payload_bytes, 0u);
    CHECK(pool.stats().used_bytes > 0);
  }
  Eventually([&] { return pool.stats().used_bytes == 0; });
}

TEST(a_loan_of_memory_that_is_not_there_ends_the_connection_and_nothing_else) {
  const auto memory = SharedMemory::Create();
  CHECK(memory != nullptr);
  auto lent = [](uint64_t number, uint32_t slot, uint64_t offset, uint64_t bytes) {
    Message message;
    message.Put(number);
    message.Put(slot);
    message.Put<uint32_t>(0);
    message.Put(offset);
    message.Put(bytes);
    OutFrame frame(FrameKind::kReply, kLent, 0, std::move(message));
    return frame.head.substr(kHeaderBytes);
  };
  const struct {
    uint16_t pieces;
    std::string description;
  } lies[] = {
      {1, lent(1, 0, 0, kMb)},                  // memory of the slots
      {1, lent(1, 0, ~uint64_t{0} - 10, kMb)},  // offset beyond the file
      {1, lent(1, 0, 2 * kMb, ~uint64_t{0})},   // size beyond the file
      {1, lent(0, 0, 2 * kMb, kMb)},            // no number
      {2, lent(1, 0, 2 * kMb, kMb)},            // one piece short
      {0, lent(1, 0, 2 * kMb, kMb)},            // no piece
      {60'000, lent(1, 0, 2 * kMb, kMb)},
      {1, ""},
  };
  for (const auto& lie : lies) {
    CallToRawPeer call;
    {
      call.server.AcceptAndGreet(call.lane.line());
      RawStream stream = call.lane.AcceptAndGreet(memory->descriptor());
      ReadFrame frame;
      uint64_t id = 0;
      for (bool mapped = false; id == 0 || !mapped;) {
        CHECK(stream.Read(&frame));
        if (frame.header.kind == FrameKind::kMapped) mapped = true;
        if (frame.header.kind == FrameKind::kRequest) id = frame.header.request_id;
      }
      CHECK(stream.Send(Frame(FrameKind::kReply, id, lie.pieces, lie.description, "", kLent)));
      CHECK(stream.Read(&frame));
      CHECK(frame.header.kind == FrameKind::kGoodbye);
    }
    CHECK(!Get(std::move(call.outcome)).status.ok());
  }
}

TEST(a_loan_that_ended_while_it_was_copied_is_not_taken_for_the_payload) {
  CallToRawPeer call;
  const auto memory = SharedMemory::Create();
  call.server.AcceptAndGreet(call.lane.line());
  RawStream stream = call.lane.AcceptAndGreet(memory->descriptor());
  ReadFrame frame;
  do CHECK(stream.Read(&frame));
  while (frame.header.kind != FrameKind::kRequest);
  Loans loans(memory.get(), nullptr);
  loans.AllowLending();
  Message reply;
  void* const block = memory->Map(4 * kMb);
  reply.AddPayload(block, 4 * kMb);
  const uint16_t pieces = loans.Lend(&reply);
  CHECK_EQ(pieces, 1);
  OutFrame out(FrameKind::kReply, kLent, 0, std::move(reply));
  loans.ReturnAll();  // as after a lost connection
  CHECK(stream.Send(Frame(FrameKind::kReply, frame.header.request_id, pieces,
                          out.head.substr(kHeaderBytes), "", kLent)));
  const Outcome ended = Get(std::move(call.outcome));
  CHECK(ended.status.code() == Code::kUnavailable);
  CHECK(Contains(ended.status.message(), "in mid-payload"));
}

TEST(a_loan_stands_until_it_is_returned_and_its_slot_serves_again) {
  const auto memory = SharedMemory::Create();
  std::shared_ptr<const ForeignMemory> foreign;
  CHECK(ForeignMemory::Open(memory->descriptor(), &foreign).ok());
  uint64_t first = 0;
  uint64_t second = 0;
  uint32_t slot = 0;
  uint32_t slot_again = 0;
  CHECK(memory->OpenLoan(&first, &slot));
  CHECK(foreign->StillLent(first, slot));
  memory->CloseLoan(slot);
  CHECK(!foreign->StillLent(first, slot));
  CHECK(memory->OpenLoan(&second, &slot_again));
  CHECK_EQ(slot_again, slot);
  CHECK(!foreign->StillLent(first, slot));
  CHECK(foreign->StillLent(second, slot));
  CHECK(!foreign->StillLent(second, ~0u));
}

TEST(the_range_has_room_for_four_times_the_machine_s_memory) {
  struct sysinfo about;
  CHECK_EQ(sysinfo(&about), 0);
  const size_t wanted = std::min(size_t{1} << 40, 4 * about.totalram * about.mem_unit);
  const auto memory = SharedMemory::Create();
  CHECK(memory != nullptr);
  size_t most = 0;
  for (size_t bytes = wanted; most == 0; bytes -= wanted / 100 / kMb * kMb) {
    if (memory->Map(bytes) != nullptr) most = bytes;
  }
  CHECK(most >= wanted / 100 * 98);
}

#ifndef TENSORWIRE_EMULATED  // an emulator does not pass madvise on to the system
TEST(blocks_given_back_cost_no_memory_and_come_back_zeroed) {
  const auto memory = SharedMemory::Create();
  auto* const block = static_cast<char*>(memory->Map(64 * kMb));
  std::memset(block, 'x', 64 * kMb);
  const int64_t before = ResidentBytes();
  memory->Unmap(block, 64 * kMb);
  CHECK(before - ResidentBytes() > static_cast<int64_t>(60 * kMb));
  CHECK(memory->Map(64 * kMb) == block);
  CHECK_EQ(block[123], '\0');
}

// The number of mappings of shared memory, and how many of them a core file leaves out.
std::pair<int, int> MappingsAndThoseLeftOutOfACore() {
  std::ifstream smaps("/proc/self/smaps");
  std::pair<int, int> counted{0, 0};
  bool is_ours = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("/memfd:tensorwire") != std::string::npos) {
      is_ours = true;
      ++counted.first;
    } else if (is_ours && line.rfind("VmFlags:", 0) == 0) {
      if ((line + " ").find(" dd ") != std::string::npos) ++counted.second;
      is_ours = false;
    }
  }
  return counted;
}

TEST(a_core_file_has_no_shared_memory) {
  const auto memory = SharedMemory::Create();
  std::shared_ptr<const ForeignMemory> foreign;
  CHECK(ForeignMemory::Open(memory->descriptor(), &foreign).ok());
  auto [mapped, left_out] = MappingsAndThoseLeftOutOfACore();
  CHECK(mapped >= 2);
  CHECK_EQ(left_out, mapped);
  const pid_t child = fork();
  if (child == 0) {
    std::tie(mapped, left_out) = MappingsAndThoseLeftOutOfACore();
    _exit(mapped >= 2 && left_out == mapped ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}
#endif

TEST(a_peer_finds_loans_and_blocks_whatever_a_page_has) {
  for (const size_t page_bytes : {size_t{4096}, size_t{16} << 10, size_t{64} << 10}) {
    const auto memory = SharedMemory::Create(page_bytes);
    CHECK(memory != nullptr);
    std::shared_ptr<const ForeignMemory> foreign;
    CHECK(ForeignMemory::Open(memory->descriptor(), &foreign).ok());
    uint64_t number = 0;
    uint32_t slot = 0;
    uint64_t first = 0;
    uint64_t second = 0;
    auto* const block = static_cast<char*>(memory->Map(page_bytes));
    CHECK(memory->Find(block, page_bytes, &first));
    CHECK(memory->Find(memory->Map(5 * page_bytes), 5 * page_bytes, &second));
    CHECK_EQ(first % page_bytes, 0u);
    CHECK_EQ(second, first + page_bytes);
    std::memset(block, 'b', page_bytes);
    CHECK(memory->OpenLoan(&number, &slot));
    CHECK_EQ(std::string(foreign->At(first, page_bytes), page_bytes), std::string(page_bytes, 'b'));
    CHECK(foreign->StillLent(number, slot));
  }
}

TEST(a_file_that_is_no_shared_memory_is_refused) {
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd program(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const Fd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK_EQ(ftruncate(unsealed.get(), 64 * kMb), 0);
  const Fd small(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK_EQ(ftruncate(small.get(), 4096), 0);
  CHECK_EQ(fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  std::shared_ptr<const ForeignMemory> foreign;
  for (const int file : {-1, null.get(), program.get(), unsealed.get(), small.get()}) {
    CHECK(ForeignMemory::Open(file, &foreign).code() == Code::kInvalidArgument);
  }
}

TEST(what_is_passed_to_peers_cannot_be_written_to) {
  const auto memory = SharedMemory::Create();
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory->descriptor(), 0) ==
        MAP_FAILED);
  void* const read = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory->descriptor(), 0);
  CHECK(read != MAP_FAILED);
  CHECK_EQ(mprotect(read, 4096, PROT_READ | PROT_WRITE), -1);
  munmap(read, 4096);
  struct stat about;
  CHECK_EQ(fstat(memory->descriptor(), &about), 0);
  CHECK_EQ(about.st_mode & 0777, mode_t{S_IRUSR});  // or it could be opened again for writing
}

TEST(a_process_of_another_user_is_turned_away_at_the_lane) {
  if (getuid() != 0) {
    std::fprintf(stderr, "skipped: only root can become another user\n");
    return;
  }
  RawLane lane;
  SocketAddress address;
  CHECK(LaneAddress("", lane.name(), &address));
  for (const unsigned user : {0u, 65534u}) {
    const pid_t child = fork();
    if (child == 0) {
      if (user != 0 && setuid(user) != 0) _exit(2);
      Fd fd;
      _exit(BeginConnect(address, &fd).ok() && IsSameUser(fd.get()) ? 0 : 1);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WEXITSTATUS(status), user == 0 ? 0 : 1);
  }
}

// A directory for lanes, removed at the end.
class HostDirectory {
 public:
  HostDirectory() { CHECK(mkdtemp(path_) != nullptr); }
  ~HostDirectory() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  char path_[32] = "/tmp/tensorwire-test-XXXXXX";
};

TEST(tasks_that_share_a_directory_share_memory_and_leave_no_file_there) {
  const HostDirectory directory;
  {
    BufferPool pool(Shared());
    Task ps("ps:0", 1, [&](EngineOptions* options) {
      options->pool = &pool;
      options->host_directory = directory.path();
    });
    ps.handler = std::make_shared<PoolHandler>(&pool);
    const std::string address = ps.Listen();
    CHECK_EQ(directory.files(), 1u);
    for (const bool shares : {true, false}) {
      Task worker("worker:0", 1, [&](EngineOptions* options) {
        if (shares) options->host_directory = directory.path();
      });
      const auto channel = worker.engine->Connect(address, "ps:0");
      CHECK(Get(Begin(*channel, kBytes, std::to_string(kMb))).status.ok());
      CHECK_EQ(worker.engine->stats().peers.at(0).read_bytes, shares ? kMb : 0);
    }
  }
  CHECK_EQ(directory.files(), 0u);
}

TEST(the_files_of_killed_tasks_are_removed_and_those_of_living_ones_are_not) {
  const HostDirectory directory;
  {
    const RawLane killed(directory.path());
  }  // leaves its file
  CHECK_EQ(directory.files(), 1u);
  const RawLane living(directory.path());
  CHECK_EQ(directory.files(), 1u);
  const RawLane another(directory.path());
  CHECK_EQ(directory.files(), 2u);
}

TEST(a_directory_where_no_lane_can_be_is_named) {
  for (const std::string& path : {std::string("/does/not/exist"), "/tmp/" + std::string(90, 'x')}) {
    BufferPool pool(Shared());
    Task ps("ps:0", 1, [&](EngineOptions* options) {
      options->pool = &pool;
      options->host_directory = path;
    });
    int port = 0;
    const Status status = ps.engine->Listen("127.0.0.1", 0, ps.handler, &port);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(Contains(status.message(), "TENSORWIRE_HOST_DIR=" + path));
  }
}

TEST(a_peer_whose_process_is_killed_is_a_lost_connection) {
  if (kSanitized) return;  // sanitizers do not support a fork of a process with threads
  int to_parent[2];
  CHECK_EQ(pipe(to_parent), 0);
  const pid_t child = fork();
  if (child == 0) {
    BufferPool pool(Shared());
    Task ps("ps:0", 1, [&](EngineOptions* options) { options->pool = &pool; });
    ps.handler = std::make_shared<PoolHandler>(&pool);
    const std::string address = ps.Listen();
    CHECK_EQ(write(to_parent[1], address.data(), address.size()),
             static_cast<ssize_t>(address.size()));
    for (;;) pause();
  }
  char address[64] = {};
  CHECK(read(to_parent[0], address, sizeof(address) - 1) > 0);
  Task worker("worker:0");
  const auto channel = worker.engine->Connect(address, "ps:0");
  const Outcome whole = Get(Begin(*channel, kBytes, std::to_string(20 * kMb)));
  CHECK(whole.status.ok());
  CHECK(worker.engine->stats().peers.at(0).read_bytes == 20 * kMb);
  std::vector<std::future<Outcome>> outcomes;
  for (int i = 0; i < 20; ++i)
    outcomes.push_back(Begin(*channel, kBytes, std::to_string(20 * kMb)));
  kill(child, SIGKILL);
  for (auto& future : outcomes) {
    const Outcome outcome = Get(std::move(future));
    if (outcome.status.ok()) {
      CHECK_EQ(outcome.payload.find_first_not_of('m'), 20 * kMb - 1);
    } else {
      CHECK(outcome.status.code() == Code::kUnavailable);
    }
  }
  CHECK_EQ(waitpid(child, nullptr, 0), child);
  // Its memory is not kept until there is another connection.
  Eventually([] {
    std::ifstream maps("/proc/self/maps");
    const std::string all{std::istreambuf_iterator<char>(maps), {}};
    return all.find("memfd:tensorwire") == std::string::npos;
  });
  close(to_parent[0]);
  close(to_parent[1]);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
