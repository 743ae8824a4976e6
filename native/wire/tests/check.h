#ifndef TENSORWIRE_TESTS_CHECK_H_
#define TENSORWIRE_TESTS_CHECK_H_

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// A minimal test framework: TEST(name) { CHECK(x); CHECK_EQ(a, b); } and RUN_TESTS(). A failed
// check prints its place and ends the process, so that a sanitizer's report stays the last output.

namespace check {

inline std::vector<std::pair<std::string, std::function<void()>>>& Tests() {
  static std::vector<std::pair<std::string, std::function<void()>>> tests;
  return tests;
}

struct Registrar {
  Registrar(std::string name, std::function<void()> body) {
    Tests().emplace_back(std::move(name), std::move(body));
  }
};

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::_Exit(1);
}

inline std::string Show(const std::string& value) { return '"' + value + '"'; }
inline std::string Show(const char* value) { return Show(std::string(value)); }
template <typename T>
std::string Show(const T& value) {
  return std::to_string(value);
}

// Runs the tests whose name contains argv[1], or all of them.
inline int RunTests(int argc, char** argv) {
  int ran = 0;
  for (const auto& [name, body] : Tests()) {
    if (argc > 1 && name.find(argv[1]) == std::string::npos) continue;
    std::fprintf(stderr, "[ RUN   ] %s\n", name.c_str());
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::fprintf(stderr, "[    OK ] %.0f ms\n", took.count());
    ++ran;
  }
  std::fprintf(stderr, "%d passed\n", ran);
  return ran > 0 ? 0 : 1;
}

}  // namespace check

#endif  // TENSORWIRE_TESTS_CHECK_H_

// Outside of the guard: a file whose other includes define macros of these names undefines those,
// and then includes this one, perhaps not for the first time.

#define TEST(name)                                                    \
  static void Test_##name();                                          \
  static const check::Registrar registrar_##name(#name, Test_##name); \
  static void Test_##name()

#define CHECK(condition) \
  if (!(condition)) check::Fail(__FILE__, __LINE__, "not true: " #condition)

#define CHECK_EQ(a, b)                                                                            \
  do {                                                                                            \
    const auto check_a = (a);                                                                     \
    const auto check_b = (b);                                                                     \
    if (!(check_a == check_b)) {                                                                  \
      check::Fail(                                                                                \
          __FILE__, __LINE__,                                                                     \
          std::string(#a " == " #b ": ") + check::Show(check_a) + " vs " + check::Show(check_b)); \
    }                                                                                             \
  } while (false)

#define RUN_TESTS() \
  int main(int argc, char** argv) { return check::RunTests(argc, argv); }
