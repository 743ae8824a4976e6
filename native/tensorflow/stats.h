#pragma once

#include "data_plane.h"

namespace tensorwire::plugin {

// Whether a task's figures are among those of this process. What it shows lives until it is hidden.
void ShowPlane(const DataPlane* plane, bool shown);

}  // namespace tensorwire::plugin
