#pragma once

#include "data_plane.h"

namespace tensorwire::plugin {

// Adds a task's figures to those of this process, or removes them. It lives until it is hidden.
void ShowPlane(const DataPlane* plane, bool shown);

}  // namespace tensorwire::plugin
