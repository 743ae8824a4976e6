// The tests of the plug-in's parts in one program, because TensorFlow's headers take most of their
// time. Compiled as one unit with the plug-in's files (tests/plugin_unit.py).

// They look at the process's peak of memory, so they run first:
#include "tensors_test.cc"
// and these allocate much:
#include "push_test.cc"
