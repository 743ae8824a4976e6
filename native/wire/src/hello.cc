#include "hello.h"

#include <algorithm>

namespace tensorwire::wire {

std::string Printable(std::string_view name) {
  constexpr size_t kLongest = 256;
  std::string printable(name.substr(0, kLongest));
  std::replace_if(
      printable.begin(), printable.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

std::string Hello::Encode() const {
  std::string text;
  auto add = [&text](std::string_view key, const std::string& value) {
    if (!value.empty()) text.append(key).append(value) += '\n';
  };
  add("task=", task);
  add("peer=", peer);
  add("memory=", memory);
  add("checksum=", checksum ? "1" : "");
  add("challenge=", challenge);
  add("proof=", proof);
  return text;
}

std::string_view Hello::BeforeProof(std::string_view metadata) {
  return metadata.substr(0, metadata.rfind("proof="));
}

Hello Hello::Decode(std::string_view metadata) {
  Hello hello;
  while (!metadata.empty()) {
    const auto newline = metadata.find('\n');
    const std::string_view line = metadata.substr(0, newline);
    metadata.remove_prefix(newline == std::string_view::npos ? metadata.size() : newline + 1);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view value = line.substr(equals + 1);
    if (line.substr(0, equals) == "task") hello.task = Printable(value);
    if (line.substr(0, equals) == "peer") hello.peer = value;
    if (line.substr(0, equals) == "memory") hello.memory = Printable(value);
    if (line.substr(0, equals) == "challenge") hello.challenge = Printable(value);
    if (line.substr(0, equals) == "proof") hello.proof = Printable(value);
    if (line.substr(0, equals) == "checksum") hello.checksum = value == "1";
  }
  return hello;
}

}  // namespace tensorwire::wire
