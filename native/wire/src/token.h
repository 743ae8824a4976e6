#pragma once

#include <functional>
#include <string>

#include "tensorwire/wire/options.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// Reads the job token of the environment: the text of the file that TENSORWIRE_TOKEN_FILE names, or
// TENSORWIRE_TOKEN itself; "" if neither is set. Space around the token is ignored. Fails if the
// file cannot be read or the token is too short. Logs a warning if other users than its owner may
// read the file.
Status ReadToken(const std::function<void(LogLevel, const std::string&)>& log, std::string* token);

}  // namespace tensorwire::wire
