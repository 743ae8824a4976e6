// The tests of the plug-in's parts in one program, because TensorFlow's headers take most of their
// time. Compiled as one unit with the plug-in's files (tests/plugin_unit.py).

#include "push_test.cc"
#include "tensors_test.cc"
