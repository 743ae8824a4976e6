#pragma once

namespace tensorwire::wire {

// The number of cores that this process may run on; at least 1.
int UsableCores();

}  // namespace tensorwire::wire
