#include "kernel.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tensorwire::simulation {
namespace {

constexpr uint32_t kNetwork = 10u << 24;  // 10.0.0.1 is the first machine
constexpr size_t kSegmentBytes = 64u << 10;
constexpr int64_t kRetryNs = 200 * kMs;  // for segments without an answer
constexpr int64_t kSynRetryNs = 1 * kSecond;
constexpr int kMostSyns = 7;

uint64_t ListenerKey(int machine, int port) {
  return static_cast<uint64_t>(machine) << 32 | static_cast<uint64_t>(port);
}

void Deliver(const std::shared_ptr<Pipe>& pipe);

void Schedule(const std::shared_ptr<Pipe>& pipe, int64_t at_ns) {
  if (pipe->scheduled) return;
  pipe->scheduled = true;
  world->At(at_ns, [pipe] {
    pipe->scheduled = false;
    Deliver(pipe);
  });
}

void Put(const std::shared_ptr<Pipe>& pipe, Pipe::Segment segment) {
  const Link& link = world->LinkBetween(pipe->from, pipe->to);
  const auto bytes = static_cast<int64_t>(segment.bytes.size());
  segment.sent_ns = world->now_ns;
  segment.arrives_ns =
      std::max(pipe->last_arrival_ns,
               world->now_ns + link.latency_ns + world->random.Between(0, link.latency_ns / 4)) +
      bytes * kSecond / link.bytes_per_s;
  pipe->last_arrival_ns = segment.arrives_ns;
  pipe->flight_bytes += segment.bytes.size();
  pipe->flight.push_back(std::move(segment));
  Schedule(pipe, pipe->flight.front().arrives_ns);
}

// A reset discards everything that is under way in this direction.
void PutReset(const std::shared_ptr<Pipe>& pipe) {
  pipe->flight.clear();
  pipe->flight_bytes = 0;
  Pipe::Segment segment;
  segment.reset = true;
  Put(pipe, std::move(segment));
}

void Arrive(const std::shared_ptr<Pipe>& pipe, Pipe::Segment segment) {
  Trace("arrive", static_cast<int64_t>(segment.bytes.size()), segment.fin, segment.reset);
  if (segment.reset) {
    if (pipe->reader != nullptr) pipe->reader->Fail(ECONNRESET);
    if (const auto reverse = pipe->reverse.lock()) {
      reverse->flight.clear();
      reverse->flight_bytes = 0;
    }
    return;
  }
  if (pipe->reader == nullptr || pipe->reader->ended()) {
    // The reader is gone: its kernel answers with a reset. Bytes that the reader sent before are
    // under way already.
    const auto reverse = pipe->reverse.lock();
    if (reverse != nullptr && !segment.bytes.empty()) PutReset(reverse);
    return;
  }
  if (segment.fin) {
    pipe->fin_arrived = true;
  } else {
    if (world->flip_one_in > 0 && !pipe->reader->is_unix &&
        world->random.OneIn(world->flip_one_in)) {
      const uint64_t bit = world->random.Below(segment.bytes.size() * 8);
      segment.bytes[bit / 8] = static_cast<char>(segment.bytes[bit / 8] ^ (1 << (bit % 8)));
      ++world->damaged_segments;
      Trace("flip", static_cast<int64_t>(bit));
    }
    pipe->arrived_bytes += segment.bytes.size();
    pipe->arrived.push_back(std::move(segment.bytes));
    if (segment.file != nullptr) pipe->files.push_back(std::move(segment.file));
  }
  pipe->reader->Notify();
}

void Deliver(const std::shared_ptr<Pipe>& pipe) {
  while (!pipe->flight.empty()) {
    const Pipe::Segment& first = pipe->flight.front();
    if (first.arrives_ns > world->now_ns) {
      Schedule(pipe, first.arrives_ns);
      return;
    }
    const Machine& machine = world->machines[static_cast<size_t>(pipe->to)];
    const Link& link = world->LinkBetween(pipe->from, pipe->to);
    const bool clogged = link.clogged_until_ns > world->now_ns;
    if (clogged || !machine.up) {
      if (pipe->writer != nullptr && pipe->writer->user_timeout_ns > 0 &&
          world->now_ns - first.sent_ns > pipe->writer->user_timeout_ns) {
        pipe->writer->Fail(ETIMEDOUT);
        pipe->flight.clear();
        return;
      }
      if (!machine.up && pipe->writer == nullptr) return;  // its kernel gives up at some time
      Schedule(pipe, clogged ? std::min(link.clogged_until_ns, world->now_ns + kRetryNs)
                             : world->now_ns + kRetryNs);
      return;
    }
    Pipe::Segment segment = std::move(pipe->flight.front());
    pipe->flight.pop_front();
    pipe->flight_bytes -= segment.bytes.size();
    if (machine.boots != pipe->boots) {
      // The machine was restarted and does not know this connection.
      if (pipe->writer != nullptr) pipe->writer->Fail(ECONNRESET);
      pipe->flight.clear();
      return;
    }
    Arrive(pipe, std::move(segment));
  }
}

}  // namespace

// --- files -------------------------------------------------------------------------------------

void File::Notify() {
  for (Epoll* epoll : watched_by) {
    if (epoll->waits != nullptr) world->Wake(epoll->waits);
  }
}

MemoryFile::~MemoryFile() { ::close(real); }

int Epoll::Control(int operation, int descriptor, File* file, epoll_event* event) {
  const auto at = std::find_if(watches_.begin(), watches_.end(), [&](const Watch& watch) {
    return watch.descriptor == descriptor && watch.file == file;
  });
  if (operation == EPOLL_CTL_ADD) {
    if (at != watches_.end()) return EEXIST;
    watches_.push_back({descriptor, file, *event});
    file->watched_by.push_back(this);
  } else if (at == watches_.end()) {
    return ENOENT;
  } else if (operation == EPOLL_CTL_MOD) {
    at->event = *event;
  } else {
    std::erase(file->watched_by, this);
    watches_.erase(at);
  }
  if (waits != nullptr) world->Wake(waits);
  return 0;
}

int Epoll::Collect(epoll_event* out, int most) {
  int found = 0;
  const size_t count = watches_.size();
  const size_t first = count > 0 ? world->random.Below(count) : 0;
  for (size_t i = 0; i < count && found < most; ++i) {
    const Watch& watch = watches_[(first + i) % count];
    const uint32_t ready = watch.file->Ready() & (watch.event.events | EPOLLERR | EPOLLHUP);
    if (ready == 0) continue;
    out[found] = watch.event;
    out[found].events = ready;
    ++found;
  }
  return found;
}

void Epoll::Forget(File* file) {
  std::erase_if(watches_, [&](const Watch& watch) { return watch.file == file; });
}

void Epoll::OnClosed(bool /*silently*/) {
  for (const Watch& watch : watches_) std::erase(watch.file->watched_by, this);
  watches_.clear();
}

File* FileAt(Process* process, int descriptor) {
  const auto index = static_cast<size_t>(descriptor - kFirstDescriptor);
  return descriptor >= kFirstDescriptor && index < process->files.size()
             ? process->files[index].get()
             : nullptr;
}

int Open(Process* process, std::shared_ptr<File> file) {
  ++file->descriptors;
  size_t index = 0;  // the lowest free one, as in Linux
  while (index < process->files.size() && process->files[index] != nullptr) ++index;
  if (index == process->files.size()) process->files.emplace_back();
  process->files[index] = std::move(file);
  return kFirstDescriptor + static_cast<int>(index);
}

namespace {
void CloseFile(std::shared_ptr<File> file, bool silently) {
  if (--file->descriptors > 0) return;
  for (Epoll* epoll : file->watched_by) epoll->Forget(file.get());
  file->watched_by.clear();
  file->OnClosed(silently);
}
}  // namespace

int Close(Process* process, int descriptor) {
  if (FileAt(process, descriptor) == nullptr) return EBADF;
  auto& place = process->files[static_cast<size_t>(descriptor - kFirstDescriptor)];
  CloseFile(std::exchange(place, nullptr), /*silently=*/false);
  return 0;
}

void CloseAll(Process* process, bool silently) {
  auto files = std::exchange(process->files, {});
  for (auto& file : files) {
    if (file != nullptr) CloseFile(std::move(file), silently);
  }
}

size_t OpenDescriptors(const Process* process) {
  return static_cast<size_t>(std::count_if(process->files.begin(), process->files.end(),
                                           [](const auto& file) { return file != nullptr; }));
}

int MachineOf(const sockaddr_in& address) {
  return static_cast<int>(ntohl(address.sin_addr.s_addr) - kNetwork) - 1;
}

sockaddr_in AddressOf(int machine, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kNetwork + 1 + static_cast<uint32_t>(machine));
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

Link& World::LinkBetween(int from, int to) {
  return links_[static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to)];
}

// --- sockets -----------------------------------------------------------------------------------

uint32_t Socket::Ready() const {
  if (state == State::kListening) return accepted_.empty() ? 0u : EPOLLIN;
  uint32_t ready = 0;
  if (error_ != 0) ready |= EPOLLERR | EPOLLIN | EPOLLOUT;
  if (ended_ || shut_) ready |= EPOLLIN | EPOLLOUT;
  if (ended_ || (shut_ && (in_ == nullptr || in_->fin_arrived)) || state == State::kNew) {
    ready |= EPOLLHUP;
  }
  if (state != State::kConnected) return ready;
  if (in_->arrived_bytes > 0 || in_->fin_arrived) ready |= EPOLLIN;
  if (Room() * 3 >= world->buffer_bytes) ready |= EPOLLOUT;
  return ready;
}

size_t Socket::Room() const {
  const size_t used = out_->flight_bytes + out_->arrived_bytes;
  return used >= world->buffer_bytes ? 0 : world->buffer_bytes - used;
}

void Socket::Fail(int error) {
  if (ended_) return;
  Trace("socket error", error);
  error_ = error;
  ended_ = true;
  Notify();
}

void Socket::ResetPeer() {
  if (out_ != nullptr) PutReset(out_);
}

int Socket::TakeError() { return std::exchange(error_, 0); }

int Socket::Bind(const sockaddr_in& address) {
  const int machine_of = MachineOf(address);
  if (machine_of != machine) return EADDRNOTAVAIL;
  own = address;
  if (own.sin_port == 0) own.sin_port = htons(static_cast<uint16_t>(world->next_port++));
  if (world->listeners.count(ListenerKey(machine, ntohs(own.sin_port))) > 0) return EADDRINUSE;
  return 0;
}

int Socket::BindTo(const std::string& to) {
  name = to;
  return 0;
}

int Socket::ConnectTo(const std::string& to) {
  const auto at = world->unix_listeners.find({machine, to});
  if (at == world->unix_listeners.end()) return ECONNREFUSED;
  peer.sin_family = AF_UNIX;
  auto server = std::make_shared<Socket>();
  server->machine = machine;
  server->is_unix = true;
  server->peer = peer;
  Join(std::static_pointer_cast<Socket>(shared_from_this()), server);
  static_cast<Socket*>(at->second)->accepted_.push_back(server);
  at->second->Notify();
  return 0;
}

int Socket::Listen() {
  state = State::kListening;
  if (is_unix) {
    world->unix_listeners[{machine, name}] = this;
    return 0;
  }
  world->listeners[ListenerKey(machine, ntohs(own.sin_port))] = this;
  return 0;
}

int Socket::Connect(const sockaddr_in& address) {
  peer = address;
  own = AddressOf(machine, world->next_port++);
  state = State::kConnecting;
  SayHello(0);
  return EINPROGRESS;
}

void Socket::SayHello(int attempts) {
  const std::weak_ptr<File> weak = weak_from_this();
  auto self = [weak] { return std::static_pointer_cast<Socket>(weak.lock()); };
  const int to = MachineOf(peer);
  if (attempts >= kMostSyns) {
    Fail(ETIMEDOUT);
    return;
  }
  const Link& link = world->LinkBetween(machine, to);
  world->After(link.latency_ns, [self, to, attempts] {
    const auto client = self();
    if (client == nullptr || client->descriptors == 0 || client->ended_) return;
    const bool exists = to >= 0 && static_cast<size_t>(to) < world->machines.size();
    const bool lost = !exists || !world->machines[static_cast<size_t>(to)].up ||
                      world->LinkBetween(client->machine, to).clogged_until_ns > world->now_ns ||
                      world->LinkBetween(to, client->machine).clogged_until_ns > world->now_ns;
    if (lost) {
      Trace("SYN lost", to);
      world->After(kSynRetryNs, [self, attempts] {
        const auto socket = self();
        if (socket != nullptr && socket->descriptors > 0 && !socket->ended_) {
          socket->SayHello(attempts + 1);
        }
      });
      return;
    }
    const auto at = world->listeners.find(ListenerKey(to, ntohs(client->peer.sin_port)));
    const int64_t back_ns = world->LinkBetween(to, client->machine).latency_ns;
    if (at == world->listeners.end()) {
      world->After(back_ns, [self] {
        if (const auto socket = self()) socket->Fail(ECONNREFUSED);
      });
      return;
    }
    auto server = std::make_shared<Socket>();
    server->own = client->peer;
    server->peer = client->own;
    server->machine = to;
    world->After(back_ns,
                 [self, server, to, listener = std::weak_ptr(at->second->weak_from_this())] {
                   const auto socket = self();
                   if (socket == nullptr || socket->descriptors == 0 || socket->ended_) return;
                   const auto accepting = std::static_pointer_cast<Socket>(listener.lock());
                   if (accepting == nullptr || accepting->descriptors == 0) {
                     socket->Fail(ECONNREFUSED);
                     return;
                   }
                   Join(socket, server);
                   socket->Notify();
                   accepting->accepted_.push_back(server);
                   accepting->Notify();
                 });
  });
}

void Socket::Join(const std::shared_ptr<Socket>& client, const std::shared_ptr<Socket>& server) {
  Trace("connected", client->machine, server->machine);
  auto make = [](Socket* from, Socket* to) {
    auto pipe = std::make_shared<Pipe>();
    pipe->from = from->machine;
    pipe->to = to->machine;
    pipe->boots = world->machines[static_cast<size_t>(to->machine)].boots;
    pipe->writer = from;
    pipe->reader = to;
    from->out_ = pipe;
    to->in_ = pipe;
  };
  make(client.get(), server.get());
  make(server.get(), client.get());
  client->out_->reverse = client->in_;
  client->in_->reverse = client->out_;
  client->state = server->state = State::kConnected;
}

std::shared_ptr<Socket> Socket::Accept() {
  if (accepted_.empty()) return nullptr;
  auto socket = std::move(accepted_.front());
  accepted_.pop_front();
  return socket;
}

std::shared_ptr<File> Socket::TakePassed() {
  if (in_ == nullptr || in_->files.empty()) return nullptr;
  auto file = std::move(in_->files.front());
  in_->files.pop_front();
  return file;
}

ssize_t Socket::Send(const iovec* parts, size_t count, std::shared_ptr<File> file) {
  if (error_ != 0) {
    errno = TakeError();
    return -1;
  }
  if (ended_ || shut_) {
    errno = EPIPE;
    return -1;
  }
  if (state != State::kConnected) {
    errno = state == State::kConnecting ? EAGAIN : ENOTCONN;
    return -1;
  }
  size_t wanted = 0;
  for (size_t i = 0; i < count; ++i) wanted += parts[i].iov_len;
  if (wanted == 0) return 0;
  size_t taken = std::min(wanted, Room());
  if (taken == 0) {
    errno = EAGAIN;
    return -1;
  }
  if (world->partial_one_in > 0 && world->random.OneIn(world->partial_one_in)) {
    taken = static_cast<size_t>(world->random.AnySize(1, static_cast<int64_t>(taken)));
  }
  size_t left = taken;
  size_t part = 0;
  size_t offset = 0;
  while (left > 0) {
    Pipe::Segment segment;
    segment.file = std::move(file);
    segment.bytes.reserve(std::min(left, kSegmentBytes));
    while (left > 0 && segment.bytes.size() < kSegmentBytes) {
      const size_t step =
          std::min({parts[part].iov_len - offset, left, kSegmentBytes - segment.bytes.size()});
      segment.bytes.append(static_cast<const char*>(parts[part].iov_base) + offset, step);
      left -= step;
      offset += step;
      if (offset == parts[part].iov_len) {
        ++part;
        offset = 0;
      }
    }
    Put(out_, std::move(segment));
  }
  return static_cast<ssize_t>(taken);
}

ssize_t Socket::Receive(const iovec* parts, size_t count, bool peek) {
  size_t room = 0;
  for (size_t i = 0; i < count; ++i) room += parts[i].iov_len;
  const size_t there = in_ != nullptr && !shut_ ? in_->arrived_bytes : 0;
  if (there == 0) {
    if (error_ != 0) {
      errno = TakeError();
      return -1;
    }
    if (ended_ || shut_ || (in_ != nullptr && in_->fin_arrived)) return 0;
    errno = state == State::kNew ? ENOTCONN : EAGAIN;
    return -1;
  }
  size_t taken = std::min(room, there);
  if (world->partial_one_in > 0 && world->random.OneIn(world->partial_one_in)) {
    taken = static_cast<size_t>(world->random.AnySize(1, static_cast<int64_t>(taken)));
  }
  if (peek) {
    taken = std::min(taken, in_->arrived.front().size() - in_->first_offset);
    std::memcpy(parts[0].iov_base, in_->arrived.front().data() + in_->first_offset, taken);
    return static_cast<ssize_t>(taken);
  }
  size_t part = 0;
  size_t offset = 0;
  for (size_t left = taken; left > 0;) {
    const std::string& first = in_->arrived.front();
    const size_t step =
        std::min({parts[part].iov_len - offset, left, first.size() - in_->first_offset});
    std::memcpy(static_cast<char*>(parts[part].iov_base) + offset, first.data() + in_->first_offset,
                step);
    left -= step;
    offset += step;
    in_->first_offset += step;
    if (offset == parts[part].iov_len) {
      ++part;
      offset = 0;
    }
    if (in_->first_offset == first.size()) {
      in_->arrived.pop_front();
      in_->first_offset = 0;
    }
  }
  in_->arrived_bytes -= taken;
  // Now the peer has room to write.
  if (in_->writer != nullptr) in_->writer->Notify();
  return static_cast<ssize_t>(taken);
}

int Socket::Shutdown() {
  if (shut_) return 0;
  shut_ = true;
  if (state == State::kConnected && !ended_) {
    Pipe::Segment fin;
    fin.fin = true;
    Put(out_, std::move(fin));
  }
  Notify();
  return state == State::kConnected ? 0 : ENOTCONN;
}

void Socket::OnClosed(bool silently) {
  if (state == State::kListening) {
    if (is_unix) world->unix_listeners.erase({machine, name});
    const auto at = world->listeners.find(ListenerKey(machine, ntohs(own.sin_port)));
    if (at != world->listeners.end() && at->second == this) world->listeners.erase(at);
    for (const auto& socket : accepted_) socket->OnClosed(silently);
    accepted_.clear();
  }
  if (in_ == nullptr) return;
  const bool unread = in_->arrived_bytes > 0;
  in_->reader = nullptr;
  out_->writer = nullptr;
  if (silently) {
    out_->flight.clear();
    out_->flight_bytes = 0;
  } else if (!ended_ && unread) {
    PutReset(out_);
  } else if (!ended_ && !shut_) {
    Pipe::Segment fin;
    fin.fin = true;
    Put(out_, std::move(fin));
  }
  in_->arrived.clear();
  in_->arrived_bytes = 0;
  in_.reset();
  out_.reset();
}

void ResetConnections(int from, int to, bool half) {
  Trace("reset", from, to);
  for (const auto& process : world->processes) {
    if (process->machine != from) continue;
    for (const auto& file : process->files) {
      auto* const socket = dynamic_cast<Socket*>(file.get());
      if (socket == nullptr || socket->state != Socket::State::kConnected || socket->is_unix) {
        continue;
      }
      if (MachineOf(socket->peer) != to || world->random.OneIn(3)) continue;
      if (!half || world->random.OneIn(2)) socket->ResetPeer();
      socket->Fail(ECONNRESET);
    }
  }
}

}  // namespace tensorwire::simulation
