#include "lane.h"

#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "hex.h"
#include "random.h"

namespace tensorwire::wire {
namespace {

constexpr const char* kPrefix = "tensorwire-";
constexpr const char* kUnfinished = ".new";  // a file on which nobody listens yet
constexpr size_t kNameBytes = 8;

// False if the path is too long.
bool UnixAddress(const std::string& path, SocketAddress* out) {
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  std::memcpy(&out->storage, &address, sizeof(address));
  out->length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return true;
}

std::string PathOf(const std::string& directory, const std::string& name) {
  return (directory.empty() ? std::string(1, '\0') : directory + '/') + kPrefix + name;
}

void RemoveFilesOfTheDead(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name.rfind(kPrefix, 0) != 0 || entry.path().extension() == kUnfinished) continue;
    SocketAddress address;
    const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!UnixAddress(entry.path(), &address)) continue;
    if (::connect(fd.get(), address.raw(), address.length) != 0 && errno == ECONNREFUSED) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

}  // namespace

bool LaneAddress(const std::string& directory, const std::string& name, SocketAddress* out) {
  return name.size() == 2 * kNameBytes &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos &&
         UnixAddress(PathOf(directory, name), out);
}

Status ListenOnLane(const std::string& directory, Fd* out, std::string* name) {
  char number[kNameBytes];
  if (!RandomBytes(number, sizeof(number))) return Status(Code::kInternal, "no random bytes");
  *name = Hex({number, sizeof(number)});
  const auto failed = [&](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  "cannot listen on a Unix socket" +
                      (directory.empty() ? "" : " in TENSORWIRE_HOST_DIR=" + directory) + ": " +
                      why);
  };
  const std::string path = PathOf(directory, *name);
  const std::string unfinished = path + (directory.empty() ? "" : kUnfinished);
  SocketAddress address;
  if (!UnixAddress(unfinished, &address)) return failed(ErrorText(ENAMETOOLONG));
  if (!directory.empty()) RemoveFilesOfTheDead(directory);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::bind(fd.get(), address.raw(), address.length) != 0) {
    return failed(ErrorText(errno));
  }
  std::error_code error;
  if (!directory.empty()) {
    using std::filesystem::perms;
    std::filesystem::permissions(unfinished, perms::owner_read | perms::owner_write, error);
  }
  if (::listen(fd.get(), 1024) != 0) return failed(ErrorText(errno));
  if (!directory.empty()) std::filesystem::rename(unfinished, path, error);
  if (error) return failed(error.message());
  *out = std::move(fd);
  return Status();
}

void RemoveLane(const std::string& directory, const std::string& name) {
  std::error_code error;
  if (!directory.empty()) std::filesystem::remove(PathOf(directory, name), error);
}

bool IsSameUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

void PutDescriptor(int fd, msghdr* message) {
  cmsghdr* const head = CMSG_FIRSTHDR(message);
  *head = {CMSG_LEN(sizeof(fd)), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
}

Fd TakeDescriptor(msghdr* message) {
  const cmsghdr* const head = CMSG_FIRSTHDR(message);
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return Fd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(head), sizeof(fd));
  return Fd(fd);
}

}  // namespace tensorwire::wire
