// The parts of a connection that know no socket: outbox, frame reader, liveness, back-pressure. The
// other tests cover how they work together.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "back_pressure.h"
#include "check.h"
#include "deadlines.h"
#include "frame_reader.h"
#include "hello.h"
#include "liveness.h"
#include "outbox.h"
#include "reactor.h"

namespace tensorwire::wire {
namespace {

std::unique_ptr<OutFrame> FrameOf(size_t payload_bytes, uint64_t number = 0) {
  Message message;
  message.AppendMetadata("meta");
  message.SetOwnedPayload(std::string(payload_bytes, 'p'));
  return std::make_unique<OutFrame>(FrameKind::kRequest, 0, number, std::move(message));
}

// Everything that the writer writes, at most `most` bytes at a time.
std::string WriteAll(Outbox* outbox, size_t most) {
  std::string written;
  outbox->ResumeAsWriter();
  for (;;) {
    Outbox::Gathered gathered;
    outbox->GatherAsWriter(&gathered);
    std::string now;
    for (int i = 0; i < gathered.count; ++i) {
      const iovec& part = gathered.parts[static_cast<size_t>(i)];
      now.append(static_cast<const char*>(part.iov_base), part.iov_len);
    }
    CHECK_EQ(now.size(), gathered.bytes);
    now.resize(std::min(now.size(), most));
    written += now;
    if (!outbox->FinishAsWriter(outbox->AdvanceAsWriter(gathered, now.size()))) return written;
  }
}

TEST(who_pushes_the_first_frame_is_the_writer_until_none_is_left) {
  Outbox outbox(/*checked=*/false);
  CHECK(outbox.Push(FrameOf(100)));
  CHECK(!outbox.Push(FrameOf(200)));
  CHECK_EQ(WriteAll(&outbox, 1u << 20).size(), 2 * (kHeaderBytes + 4) + 300);
  CHECK(outbox.Push(FrameOf(1)));
}

TEST(frames_leave_whole_whatever_one_write_takes) {
  for (const bool checked : {false, true}) {
    std::string whole;
    for (const size_t most : {size_t{1} << 30, size_t{1}, size_t{7}, size_t{4096}}) {
      Outbox outbox(checked);
      outbox.Push(FrameOf(100, 1));
      outbox.Push(FrameOf(1000, 2));
      const std::string written = WriteAll(&outbox, most);
      if (whole.empty()) whole = written;
      CHECK(written == whole);
    }
  }
}

TEST(a_small_frame_overtakes_a_large_one_and_a_lazy_one_leaves_with_it) {
  Outbox outbox(/*checked=*/false);
  outbox.Push(FrameOf(kSmallFrameBytes + 1, 1));
  outbox.Push(FrameOf(1, 2));
  CHECK(outbox.PushLazily(FrameOf(1, 3)));
  CHECK(!outbox.PushLazily(FrameOf(1, 4)));
  const std::string written = WriteAll(&outbox, 1u << 30);
  std::vector<uint64_t> order;
  for (size_t at = 0; at < written.size();) {
    FrameHeader header;
    CHECK(ParseHeader(written.data() + at, FrameLimits(), &header).ok());
    order.push_back(header.request_id);
    at += kHeaderBytes + header.metadata_bytes + header.payload_bytes;
  }
  CHECK((order == std::vector<uint64_t>{3, 4, 2, 1}));
  CHECK(outbox.TakeLazy().empty());
}

TEST(reading_pauses_while_much_is_unsent_where_it_shall) {
  Outbox outbox(/*checked=*/false);
  BackPressure back_pressure(&outbox);
  while (!outbox.HasBacklog()) outbox.Push(FrameOf(0));
  CHECK(!back_pressure.ShouldPause());
  back_pressure.Apply();
  CHECK(back_pressure.ShouldPause());
  CHECK(back_pressure.Pause());
  CHECK(!back_pressure.Pause());
  CHECK(!back_pressure.Resume());
  WriteAll(&outbox, 1u << 30);
  CHECK(back_pressure.Resume());
  CHECK(!back_pressure.Resume());
}

// Reads `bytes` in pieces of `piece`. `direct`: payloads go to InFrame::into, otherwise to
// InFrame::bytes.
std::vector<std::string> ReadFrames(std::string_view bytes, size_t piece, bool direct) {
  std::vector<std::string> payloads;
  std::string scratch(1u << 16, '\0');
  std::string into;
  FrameReader reader;
  while (!bytes.empty()) {
    FrameReader::Room room;
    reader.MakeRoom(scratch.data(), scratch.size(), &room);
    size_t left = std::min({piece, bytes.size(), room.bytes});
    const size_t got = left;
    for (int i = 0; i < room.count && left > 0; ++i) {
      const iovec& part = room.parts[static_cast<size_t>(i)];
      const size_t some = std::min(left, part.iov_len);
      bytes.copy(static_cast<char*>(part.iov_base), some);
      bytes.remove_prefix(some);
      left -= some;
    }
    reader.Take(room, got);
    Status why;
    while (reader.has_more()) {
      const FrameReader::Found found = reader.Next(FrameLimits(), &why);
      if (found == FrameReader::Found::kNothing) break;
      InFrame& frame = reader.frame();
      if (found == FrameReader::Found::kHead) {
        CHECK(reader.metadata() == "meta");
        CHECK(reader.unfinished() == nullptr);
        into.assign(frame.header.payload_bytes, '\0');
        frame.payload = direct ? InFrame::Payload::kInto : InFrame::Payload::kBytes;
        if (direct) frame.into = {{into.data(), 10}, {}, {into.data() + 10, into.size() - 10}};
        reader.ExpectPayload();
        CHECK(reader.unfinished() == &frame);
      } else {
        CHECK(found == FrameReader::Found::kFrame);
        payloads.push_back(reader.is_damaged() ? "damaged" : direct ? into : frame.bytes);
        reader.Forget();
      }
    }
    reader.Stash();
  }
  return payloads;
}

TEST(frames_are_read_whole_whatever_one_read_brings) {
  for (const bool checked : {false, true}) {
    Outbox outbox(checked);
    outbox.Push(FrameOf(100));
    outbox.Push(FrameOf(20));
    outbox.Push(FrameOf(3000));
    const std::string written = WriteAll(&outbox, 1u << 30);
    const std::vector<std::string> sent = {std::string(100, 'p'), std::string(20, 'p'),
                                           std::string(3000, 'p')};
    for (const bool direct : {false, true}) {
      for (const size_t piece : {size_t{1}, size_t{7}, size_t{33}, size_t{200}, written.size()}) {
        CHECK(ReadFrames(written, piece, direct) == sent);
      }
    }
    if (!checked) continue;
    std::string damaged = written;
    damaged[kCheckedHeaderBytes + 4 + 50] ^= 1;  // in the first payload
    CHECK(ReadFrames(damaged, damaged.size(), true)[0] == "damaged");
    CHECK(ReadFrames(damaged, damaged.size(), true)[1] == sent[1]);
  }
}

TEST(what_follows_a_proof_in_a_greeting_is_not_read) {
  const std::string covered = "task=x proof=y\nlane=m\n";
  const std::string metadata = covered + "proof=p\nlane=evil\nchecksum=1\nproof=q\n";
  CHECK(Hello::BeforeProof(metadata) == covered);
  const Hello hello = Hello::Decode(metadata);
  CHECK_EQ(hello.task, "x proof=y");
  CHECK_EQ(hello.lane, "m");
  CHECK_EQ(hello.proof, "p");
  CHECK(!hello.checksum);
  CHECK(Hello::BeforeProof("proof=p\n") == "");
  CHECK(Hello::BeforeProof("task=a\n") == "task=a\n");
}

TEST(the_time_in_which_nobody_looked_is_no_silence) {
  using Verdict = Liveness::Verdict;
  Liveness liveness(/*ping_after_ms=*/100, /*silent_timeout_ms=*/300);
  int64_t now = 1'000'000;
  liveness.Heard(now);
  CHECK(liveness.Look(now) == Verdict::kAlive);
  CHECK_EQ(liveness.next_look_ms(), now + 100);
  now += 100 + 5000;  // this process was stopped
  CHECK(liveness.Look(now) == Verdict::kPing);
  CHECK_EQ(liveness.silent_ms(now), 100);
  now = liveness.next_look_ms();
  CHECK(liveness.Look(now) == Verdict::kPing);
  now = liveness.next_look_ms();
  CHECK(liveness.Look(now) == Verdict::kSilent);
  liveness.Heard(now);
  CHECK(liveness.Look(now) == Verdict::kAlive);
}

TEST(an_earlier_deadline_wants_an_earlier_look) {
  Deadlines deadlines;
  CHECK(!deadlines.PlanLook());
  CHECK(deadlines.Add(100, 1));
  CHECK(!deadlines.Add(200, 2));
  CHECK(deadlines.Add(50, 3));
  deadlines.Remove(50, 3);
  deadlines.Remove(0, 2);
  CHECK((deadlines.TakeOverdue(150) == std::vector<uint64_t>{1}));
  CHECK(deadlines.PlanLook() == 200);
  CHECK(deadlines.Add(150, 4));
}

#ifndef NDEBUG
// Makes the mistake in a child process, which an assertion must abort.
template <typename Mistake>
bool IsNoticed(const Mistake& mistake) {
  const pid_t child = fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    mistake();
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST(a_reactor_s_work_in_another_thread_is_noticed) {
  const EngineOptions options;
  Reactor reactor(0, options);
  CHECK(IsNoticed([&] { reactor.AtFromReactor(0, [] {}); }));
}

TEST(a_second_writer_is_noticed) {
  Outbox outbox(/*checked=*/false);
  CHECK(IsNoticed([&] { outbox.ResumeAsWriter(); }));  // there is nothing to write
  outbox.Push(FrameOf(1));
  outbox.ResumeAsWriter();
  CHECK(IsNoticed([&] { outbox.ResumeAsWriter(); }));
  outbox.PauseAsWriter();
  CHECK(IsNoticed([&] {
    Outbox::Gathered gathered;
    outbox.GatherAsWriter(&gathered);
  }));
}
#endif

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
