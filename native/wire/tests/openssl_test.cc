// The error messages of a task with a token on machines where OpenSSL is missing or wrong.

#include "openssl.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSay = "--say";

// Prints the messages of an engine that needs a token, and of one that needs TLS as well.
int Say() {
  EngineOptions options;
  options.executor = [](const std::function<void()>& closure) { closure(); };
  options.reactors = 1;
  options.token = "a token that is long enough for anybody";
  options.tls = true;
  std::unique_ptr<Engine> engine;
  const Status status = Engine::Create(std::move(options), &engine);
  std::printf("%d %s\n", static_cast<int>(status.code()), status.message().c_str());
  return 0;
}

// A folder of libraries that take precedence over the system's.
class Libraries {
 public:
  Libraries() {
    std::string made = fs::temp_directory_path() / "tensorwire-XXXXXX";
    CHECK(mkdtemp(made.data()) != nullptr);
    folder_ = made;
  }
  ~Libraries() { fs::remove_all(folder_); }

  void Break(const std::string& name) const {
    for (const char* version : {".so.3", ".so.1.1"}) {
      std::ofstream(folder_ / (name + version)) << "no library";
    }
  }
  // Replaces the library by another one, which has none of its functions.
  void Replace(const std::string& name) const {
    const link_map* math = nullptr;
    void* const handle = dlopen("libm.so.6", RTLD_NOW);
    CHECK(handle != nullptr);
    CHECK_EQ(dlinfo(handle, RTLD_DI_LINKMAP, &math), 0);
    fs::create_symlink(fs::canonical(math->l_name), folder_ / (name + ".so.3"));
    dlclose(handle);
  }

  // The messages of a task that finds these libraries. A new process, because the loader reads the
  // variable when a program starts.
  std::string WhatATaskSays() const {
    std::array<int, 2> out{};
    CHECK_EQ(pipe(out.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(out[1], STDOUT_FILENO);
      setenv("LD_LIBRARY_PATH", folder_.c_str(), 1);
      execl("/proc/self/exe", "openssl_test", kSay, nullptr);
      _exit(127);
    }
    close(out[1]);
    std::string said;
    std::array<char, 4096> bytes;
    for (ssize_t n = 0; (n = read(out[0], bytes.data(), bytes.size())) > 0;) {
      said.append(bytes.data(), static_cast<size_t>(n));
    }
    close(out[0]);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    return said;
  }

 private:
  fs::path folder_;
};

const std::string kRefused = std::to_string(static_cast<int>(Code::kFailedPrecondition)) + " ";

TEST(a_token_where_openssl_is_missing_names_the_library_and_the_packages) {
  for (const std::string name : {"libcrypto", "libssl"}) {
    const Libraries libraries;
    libraries.Break(name);
    const std::string said = libraries.WhatATaskSays();
    CHECK_EQ(said.rfind(kRefused, 0), 0u);
    CHECK(Contains(said, "a job token needs OpenSSL's library " + name + ".so.3"));
    CHECK(Contains(said, "install the package libssl3 or openssl-libs"));
  }
}

TEST(a_library_that_only_has_openssl_s_name_is_refused) {
  const Libraries libraries;
  libraries.Replace("libcrypto");
  const std::string said = libraries.WhatATaskSays();
  CHECK_EQ(said.rfind(kRefused, 0), 0u);
  CHECK(Contains(said, "OpenSSL's library has no function EVP_sha256"));
}

TEST(the_openssl_that_is_here_will_do) {
  CHECK_EQ(Libraries().WhatATaskSays(), std::to_string(static_cast<int>(Code::kOk)) + " \n");
}

}  // namespace
}  // namespace tensorwire::wire

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], tensorwire::wire::kSay) == 0) return tensorwire::wire::Say();
  return check::RunTests(argc, argv);
}
