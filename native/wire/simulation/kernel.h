#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "simulator.h"

// Descriptors and the objects behind them: TCP over the world's links, abstract Unix sockets,
// epoll, eventfd, timerfd and files in memory. All functions run in KernelMode.
namespace tensorwire::simulation {

constexpr int kFirstDescriptor = 1 << 20;  // real descriptors are smaller

class Epoll;

class File : public std::enable_shared_from_this<File> {
 public:
  virtual ~File() = default;
  virtual uint32_t Ready() const { return 0; }  // the epoll events that are true now
  // Called when its last descriptor is closed. `silently`: because of a power failure, so the peer
  // is not told.
  virtual void OnClosed(bool /*silently*/) {}
  void Notify();

  int descriptors = 0;
  std::vector<Epoll*> watched_by;
};

class Epoll : public File {
 public:
  int Control(int operation, int descriptor, File* file, epoll_event* event);
  int Collect(epoll_event* out, int most);
  void Forget(File* file);
  void OnClosed(bool silently) override;

  Fiber* waits = nullptr;

 private:
  struct Watch {
    int descriptor;
    File* file;
    epoll_event event;
  };
  std::vector<Watch> watches_;
};

class EventFile : public File {
 public:
  uint32_t Ready() const override { return count > 0 ? EPOLLIN : 0u; }
  uint64_t count = 0;
};

class TimerFile : public File {
 public:
  uint32_t Ready() const override { return expirations > 0 ? EPOLLIN : 0u; }
  uint64_t expirations = 0;
  uint64_t settings = 0;
};

// A real file in memory.
class MemoryFile : public File {
 public:
  explicit MemoryFile(int real) : real(real) {}
  ~MemoryFile() override;
  const int real;
};

class Socket;

// One direction of a connection. Its bytes arrive even if the writer has closed.
struct Pipe {
  struct Segment {
    int64_t sent_ns = 0;
    int64_t arrives_ns = 0;
    std::string bytes;
    std::shared_ptr<File> file;  // that was passed with them
    bool fin = false;
    bool reset = false;
  };
  int from = 0;
  int to = 0;
  int boots = 0;             // of the target machine, when the pipe was made
  Socket* writer = nullptr;  // null if it has closed
  Socket* reader = nullptr;
  std::weak_ptr<Pipe> reverse;
  std::deque<Segment> flight;
  std::deque<std::string> arrived;
  std::deque<std::shared_ptr<File>> files;  // that have arrived
  size_t first_offset = 0;                  // how much of arrived.front() has been read
  size_t flight_bytes = 0;
  size_t arrived_bytes = 0;
  bool fin_arrived = false;
  int64_t last_arrival_ns = 0;
  bool scheduled = false;
};

class Socket : public File {
 public:
  enum class State { kNew, kListening, kConnecting, kConnected };

  uint32_t Ready() const override;
  void OnClosed(bool silently) override;

  int Bind(const sockaddr_in& address);
  int BindTo(const std::string& name);  // of a Unix socket
  int ConnectTo(const std::string& name);
  int Listen();
  int Connect(const sockaddr_in& address);
  std::shared_ptr<Socket> Accept();
  ssize_t Send(const iovec* parts, size_t count, std::shared_ptr<File> file = nullptr);
  std::shared_ptr<File> TakePassed();
  ssize_t Receive(const iovec* parts, size_t count, bool peek);
  int Shutdown();
  int TakeError();
  void Fail(int error);
  void ResetPeer();
  bool ended() const { return ended_; }
  // True if the connection has ended or the peer has closed: only closing it is left.
  bool over() const { return ended_ || (in_ != nullptr && in_->fin_arrived); }

  State state = State::kNew;
  sockaddr_in own{};
  sockaddr_in peer{};
  int machine = 0;
  bool is_unix = false;
  std::string name;
  int64_t user_timeout_ns = 0;

 private:
  static void Join(const std::shared_ptr<Socket>& client, const std::shared_ptr<Socket>& server);
  void SayHello(int attempts);
  size_t Room() const;

  int error_ = 0;
  bool ended_ = false;  // after an error
  bool shut_ = false;
  std::shared_ptr<Pipe> in_;
  std::shared_ptr<Pipe> out_;
  std::deque<std::shared_ptr<Socket>> accepted_;
};

// Null if there is no such descriptor.
File* FileAt(Process* process, int descriptor);
template <typename T>
T* FileAs(int descriptor) {
  return dynamic_cast<T*>(FileAt(current->process, descriptor));
}
int Open(Process* process, std::shared_ptr<File> file);
int Close(Process* process, int descriptor);
void CloseAll(Process* process, bool silently);
size_t OpenDescriptors(const Process* process);

int MachineOf(const sockaddr_in& address);
sockaddr_in AddressOf(int machine, int port);

// Breaks connections between two machines. `half`: for some of them only one end is told.
void ResetConnections(int from, int to, bool half);

}  // namespace tensorwire::simulation
