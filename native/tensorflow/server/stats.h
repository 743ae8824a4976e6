#pragma once

#include "transport/data_plane.h"

namespace tensorwire::plugin {

// Adds a task's figures to those of this process, or removes them. `plane` must live until it is
// removed.
void ShowPlane(const DataPlane* plane, bool shown);

}  // namespace tensorwire::plugin
