#pragma once

namespace tensorwire::wire {

// How many cores this process may run on; at least 1.
int UsableCores();

}  // namespace tensorwire::wire
