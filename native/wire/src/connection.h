#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "call_table.h"
#include "checked.h"
#include "context.h"
#include "fd.h"
#include "loans.h"
#include "mpsc_queue.h"
#include "reactor.h"
#include "tensorwire/wire/engine.h"
#include "tls.h"

namespace tensorwire::wire {

// A frame on its way out.
struct OutFrame : MpscNode {
  // Fills in the header before `message`'s metadata.
  OutFrame(FrameKind kind, uint16_t flags, uint64_t request_id, Message message);

  // Puts in the checksums. A small payload moves into the head.
  void Check();
  // What can be written next is in `head` and `payload`: with a large checked payload not all of it
  // at once. By the writer, before it gathers the frame.
  void Refill();
  bool has_more() const;  // when `head` and `payload` have left

  const FrameKind kind;
  std::string head;  // header and metadata
  std::vector<ConstBuffer> payload;
  std::shared_ptr<const void> owner;
  uint64_t total_bytes = 0;

  // How far it has been written: part 0 is the head, part i + 1 is payload[i].
  size_t part = 0;
  size_t part_offset = 0;
  bool started() const { return part > 0 || part_offset > 0; }

  // Of a large payload with a checksum: all of it, while `payload` is a window.
  std::unique_ptr<CheckedPayload> checked;
};

// A frame on its way in: its head is here, its payload is arriving.
struct InFrame {
  FrameHeader header;
  enum class Payload { kDiscard, kInto, kBytes } payload = Payload::kDiscard;
  std::vector<MutableBuffer> into;  // kInto: adds up to header.payload_bytes
  std::string bytes;                // kBytes: grows as they arrive, never ahead of them
  std::string metadata;             // kept where the receiver needs it at the end
  std::shared_ptr<char> placed;     // of a request: owns what `into` names
  Claim claim;                      // of a request

  // Of a reply or push: where its payload is if it did not come along, the call it ends and how.
  Loan loan;
  std::unique_ptr<Call> call;
  RunOn done_on = RunOn::kExecutor;
  int64_t deadline_ms = 0;
  Status status;

  // Whether a checksum comes behind the payload, and that of what has arrived. One that does not
  // match, of a payload that is not discarded, makes the status kDataLoss.
  bool checked = false;
  uint32_t checksum = 0;
};

// What stands behind a connection: a channel, or a server's session. All on the reactor.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  // The head of a frame: says where its payload goes. `metadata` is valid during the call only.
  // An error closes the connection.
  virtual Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) = 0;
  // All of it is here.
  virtual Status OnFrameFromReactor(InFrame frame) = 0;
  // Once; nothing comes after it.
  virtual void OnClosedFromReactor(const Status& why, InFrame* unfinished) = 0;
};

// One TCP stream of frames, and the reactor it belongs to for its whole life.
//
// Reading happens on the reactor. Writing happens wherever a frame is sent, without a lock: frames
// go into `outbox_`, and whoever raises `queued_` from zero is the *writer* until it brings it back
// to zero. A writer that finds the socket full, or that has written enough for a thread with other
// duties, passes the role to the reactor. So a lone small frame leaves in the thread that sent it,
// without a change of threads, while frames that come in a burst pile up behind a writer and leave
// together.
class Connection : public EventTarget, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Context> context, Reactor* reactor, Fd fd, std::string address);
  ~Connection() override;

  // --- any thread ---
  void Send(std::unique_ptr<OutFrame> frame);
  // Sends a frame that says all by its kind and number.
  void Signal(FrameKind kind, uint64_t number = 0);
  // A frame of the greeting.
  void Greet(FrameKind kind, std::string_view metadata);
  // A reply or push; its payload is lent or held rather than sent along where that is better.
  std::unique_ptr<OutFrame> FrameWithPayload(FrameKind kind, uint64_t request_id, Message message);
  // Whether so much waits to be sent that more should not be made.
  bool HasBacklog() const;
  // Leaves with the next frame that is sent, or a little later on its own.
  void SendLazily(std::unique_ptr<OutFrame> frame);

  uint64_t id() const { return id_; }
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // "host:port" of the other end.
  const std::string& address() const { return address_; }
  // The other end as a person knows it: its task's name once it has said it, and its address.
  const std::string& peer() const { return peer_; }
  PeerCounters& counters() const { return *counters_; }
  const FrameLimits& limits() const { return context_->options.limits; }

  // --- on the reactor ---
  // Begins to read. `connecting`: the socket is not connected yet.
  Status OpenFromReactor(std::shared_ptr<FrameReceiver> receiver, bool connecting);
  void SetPeerFromReactor(const std::string& name);
  // The greeting must be over by then, or the connection is closed.
  void CloseAtFromReactor(int64_t time_ms, const Status& why);
  // The greeting is over: from now on frames may be large.
  void TrustFromReactor();
  // What binds a proof to the TLS session; "" without TLS.
  std::string_view TlsBindingFromReactor() const {
    return tls_ != nullptr ? std::string_view(tls_->binding()) : std::string_view();
  }
  // From now on what is sent has checksums.
  void SendCheckedFromReactor() { sends_checked_.store(true, std::memory_order_release); }
  bool sends_checked() const { return sends_checked_.load(std::memory_order_acquire); }
  // The peer reads our memory.
  void LendFromReactor() { lends_.store(true, std::memory_order_release); }
  // The peer fetches large payloads itself.
  void HoldFromReactor() { holds_.store(true, std::memory_order_release); }
  void ReturnLoanFromReactor(uint64_t number) { loans_.Return(number); }
  // Stops reading while the peer leaves much untaken. For servers: if both ends did
  // it, they could wait for each other.
  void PauseReadingWhenBlockedFromReactor() { pauses_reading_ = true; }
  // The call whose reply's payload is arriving, if it is this request's: the rest is dropped.
  CallTable::Entry TakeArrivingCallFromReactor(uint64_t request_id);
  // Tells the peer why, and closes once it has been told or a moment has passed.
  void SayGoodbyeFromReactor(const std::string& why);
  void CloseFromReactor(const Status& reason);
  void OnEventsFromReactor(uint32_t epoll_events) override;
  void OnStopFromReactor() override;
  Reactor* reactor() const { return reactor_; }

 private:
  friend class SendBatch;

  // Writing; by the writer only.
  void Write();
  void TakeQueuedAsWriter();
  enum class Written { kSome, kNothing, kFull, kBroken };
  Written WriteOnceAsWriter(size_t* finished);
  void ResumeOnReactor();

  // Reading.
  void ReadFromReactor();
  // Whether what is read would only pile up: then reading stops until ResumeReadingFromReactor.
  bool PauseReadingFromReactor();
  void WatchPauseFromReactor();
  void ResumeReadingFromReactor();
  void RefuseFromReactor(const Status& why);
  Status ParseFromReactor(const char* bytes, size_t size);
  Status ParseHeadFromReactor(const char** bytes, size_t* size, bool* complete);
  Status TakePayloadFromReactor(const char** bytes, size_t* size);
  void AdvanceInto(size_t size);
  bool IsWhole() const;
  Status DamagedFromReactor(const std::string& what);
  Status FinishFrameFromReactor();

  // TLS: what comes before the first frame.
  void ShakeHandsFromReactor();
  void RefusePlainFromReactor();
  ssize_t SendAsWriter(const iovec* parts, int count);
  ssize_t ReceiveFromReactor(const iovec* parts, int count);

  void TickFromReactor();
  void FinishConnectFromReactor();
  void UpdateEventsFromReactor();

  const std::shared_ptr<Context> context_;  // keeps reactor_ too
  Reactor* const reactor_;
  const Fd fd_;
  const uint64_t id_;
  const std::string address_;
  std::string peer_;
  std::shared_ptr<PeerCounters> counters_;
  // Null where payloads go as they are. Up here, where nothing is written that another thread
  // reads.
  std::unique_ptr<TlsStream> tls_;
  std::atomic<bool> closed_{false};

  MpscQueue outbox_;
  std::atomic<size_t> queued_{0};  // frames in outbox_, small_, large_ and current_
  std::atomic<int64_t> inline_write_us_{0};
  std::atomic<uint64_t> unsent_bytes_{0};
  std::atomic<bool> sends_checked_;
  std::atomic<bool> lends_{false};
  std::atomic<bool> holds_{false};
  Loans loans_;
  // The writer's.
  // Frames that TLS has taken and the socket not yet; they still count in queued_. So does the
  // handshake: nobody writes before it is over.
  size_t unflushed_frames_ = 0;
  std::unique_ptr<OutFrame> current_;            // partly written
  std::deque<std::unique_ptr<OutFrame>> small_;  // go first: they are what somebody waits for
  std::deque<std::unique_ptr<OutFrame>> large_;

  std::mutex lazy_mutex_;
  std::vector<std::unique_ptr<OutFrame>> lazy_;
  std::atomic<bool> has_lazy_{false};

  // The reactor's.
  std::shared_ptr<FrameReceiver> receiver_;
  bool connecting_ = false;
  bool trusted_ = false;
  bool shaking_hands_ = false;
  bool peer_speaks_tls_ = false;
  bool wants_write_ = false;
  bool pauses_reading_ = false;
  bool reading_paused_ = false;
  Reactor::Timer tick_timer_;
  Reactor::Timer pause_timer_;
  Reactor::Timer close_timer_;  // of the greeting, or after a goodbye
  bool draining_ = false;       // said goodbye; what still comes in is ignored
  std::string goodbye_;         // why
  std::string stash_;           // the beginning of a frame whose head is not complete
  bool in_payload_ = false;
  InFrame frame_;
  uint64_t payload_got_ = 0;
  std::array<char, kChecksumBytes> checksum_;  // that comes behind the payload
  size_t checksum_got_ = 0;
  bool receives_checked_ = false;
  size_t into_index_ = 0;
  size_t into_offset_ = 0;
  int64_t last_sign_ms_ = 0;  // of life, from the peer; without the time in which nobody looked
  int64_t pinged_ms_ = 0;
};

}  // namespace tensorwire::wire
