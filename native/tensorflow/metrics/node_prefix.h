#pragma once

namespace tensorwire::plugin {

// Prefix of the name of each node that needs our kernel. A task without that kernel names the node
// that it cannot run, so the user reads this prefix.
constexpr char kNodePrefix[] = "import_tensorwire.tf_in_every_task/";

}  // namespace tensorwire::plugin
