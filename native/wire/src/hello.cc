#include "hello.h"

#include <algorithm>

namespace tensorwire::wire {
namespace {

constexpr std::string_view kProof = "proof=";

}  // namespace

std::string Printable(std::string_view text, size_t longest) {
  std::string printable(text.substr(0, longest));
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
  add("lane=", lane);
  add("checksum=", checksum ? "1" : "");
  add("challenge=", challenge);
  add(kProof, proof);
  return text;
}

std::string_view Hello::BeforeProof(std::string_view metadata) {
  if (metadata.substr(0, kProof.size()) == kProof) return "";
  const auto line = metadata.find("\n" + std::string(kProof));
  return metadata.substr(0, line == std::string_view::npos ? line : line + 1);
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
    if (line.substr(0, equals) == "lane") hello.lane = Printable(value);
    if (line.substr(0, equals) == "challenge") hello.challenge = Printable(value);
    if (line.substr(0, equals) == "checksum") hello.checksum = value == "1";
    if (line.substr(0, equals + 1) == kProof) {
      hello.proof = Printable(value);
      break;
    }
  }
  return hello;
}

}  // namespace tensorwire::wire
