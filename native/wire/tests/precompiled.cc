// Compiles the tests' headers once: see CMakeLists.txt.
#include "harness.h"
