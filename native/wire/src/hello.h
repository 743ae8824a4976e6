#pragma once

#include <string>
#include <string_view>

#include "tensorwire/wire/message.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// A name from the network, fit for a log and for figures: cut, and without control characters.
std::string Printable(std::string_view name);

// How the two ends of a connection introduce themselves: `key=value` lines in the metadata of
// kHello and kHelloAck. Keys that a reader does not know are skipped.
struct Hello {
  std::string task;    // who speaks
  std::string peer;    // kHello only: whom it wants to speak to; "" for whoever is there
  std::string memory;  // kHelloAck only: the ticket to its shared memory; "" where there is none

  Message Encode() const;
  static Hello Decode(std::string_view metadata);
};

}  // namespace tensorwire::wire
