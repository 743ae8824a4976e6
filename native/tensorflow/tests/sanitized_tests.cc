// All tests of the plug-in that run under sanitizers, in one program, because compiling the plug-in
// takes most of their time. Compiled as one unit with its files (tests/plugin_unit.py).
//
// usage: sanitized_tests PS_PORT WORKER_PORT CLIENT_PORT   the tests of pushes and of a cluster
//        sanitized_tests replay FILE_OR_FOLDER...          feeds inputs to the fuzz targets

#include <cstring>

#define main PushMain  // unused: the other main runs all tests
#include "push_test.cc"
#undef main
#define main ClusterMain
#include "cluster_test.cc"
#undef main
#include "../fuzz/plugin_fuzz.cc"
#define main ReplayMain
#include "../../wire/fuzz/replay_main.cc"
#undef main

int main(int argc, char** argv) {
  const bool replays = argc > 1 && std::strcmp(argv[1], "replay") == 0;
  return replays ? ReplayMain(argc - 1, argv + 1) : ClusterMain(argc, argv);
}
