#include "token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "fd.h"
#include "socket.h"

namespace tensorwire::wire {
namespace {

constexpr const char* kFileVariable = "TENSORWIRE_TOKEN_FILE";
constexpr const char* kVariable = "TENSORWIRE_TOKEN";
// An attacker who records a greeting can try tokens offline; 128 bits, as hexadecimal digits, are
// too many to try.
constexpr size_t kShortest = 32;
constexpr size_t kLongest = 1024;
constexpr const char* kHow =
    "; make one with: python3 -c 'import secrets; print(secrets.token_hex(32))'";

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

Status Wrong(const std::string& what) {
  return Status(Code::kInvalidArgument, "the job token: " + what);
}

Status ReadFile(const std::string& path,
                const std::function<void(LogLevel, const std::string&)>& log, std::string* text) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about;
  if (!fd.valid() || fstat(fd.get(), &about) != 0) {
    return Wrong("cannot read " + path + ", which " + kFileVariable +
                 " names: " + ErrorText(errno));
  }
  // A Kubernetes Secret belongs to root; other users read it through their group.
  const mode_t others = about.st_uid == geteuid() ? S_IRGRP | S_IROTH : S_IROTH;
  if ((about.st_mode & others) != 0 && log) {
    log(LogLevel::kWarning, "others than its owner may read the job token in " + path +
                                ": chmod 400 it (a Secret: defaultMode 0400)");
  }
  std::array<char, 2 * kLongest> bytes;
  const ssize_t size = ::read(fd.get(), bytes.data(), bytes.size());
  if (size < 0) return Wrong("cannot read " + path + ": " + ErrorText(errno));
  text->assign(bytes.data(), static_cast<size_t>(size));
  return Status();
}

}  // namespace

Status ReadToken(const std::function<void(LogLevel, const std::string&)>& log, std::string* token) {
  const std::string path = Variable(kFileVariable);
  std::string text = Variable(kVariable);
  if (path.empty() && text.empty()) return Status();
  if (!path.empty()) {
    if (!text.empty()) {
      return Wrong(std::string("both ") + kFileVariable + " and " + kVariable +
                   " are set: unset one");
    }
    if (Status s = ReadFile(path, log, &text); !s.ok()) return s;
  }
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  text = first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  const std::string where = path.empty() ? std::string(kVariable) : path;
  if (text.size() < kShortest || text.size() > kLongest) {
    return Wrong(where + " has " + std::to_string(text.size()) + " characters, and " +
                 std::to_string(kShortest) + " to " + std::to_string(kLongest) + " are wanted" +
                 kHow);
  }
  *token = std::move(text);
  return Status();
}

}  // namespace tensorwire::wire
