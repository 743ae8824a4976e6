#pragma once

#include <functional>
#include <string>

#include "tensorwire/wire/options.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// The job token of the environment: the text of the file that TENSORWIRE_TOKEN_FILE names, or
// TENSORWIRE_TOKEN itself; "" where neither is set. Space around it does not count. Fails where the
// file cannot be read and where the token is too short to be one. `log` hears of a file that others
// than its owner may read.
Status ReadToken(const std::function<void(LogLevel, const std::string&)>& log, std::string* token);

}  // namespace tensorwire::wire
