// Feeds inputs to a fuzz target, for compilers without libFuzzer: FILE or FOLDER... A file is one
// input; a file that ends in .learned has one input per line, in hexadecimal digits.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void Feed(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

int Replay(const std::filesystem::path& path) {
  int inputs = 0;
  if (std::filesystem::is_directory(path)) {
    for (const auto& at : std::filesystem::directory_iterator(path)) inputs += Replay(at.path());
    return inputs;
  }
  std::ifstream file(path, std::ios::binary);
  if (path.extension() != ".learned") {
    Feed({std::istreambuf_iterator<char>(file), {}});
    return 1;
  }
  for (std::string line; std::getline(file, line); ++inputs) {
    std::string bytes;
    for (size_t at = 0; at < line.size(); at += 2) {
      bytes += static_cast<char>(std::stoi(line.substr(at, 2), nullptr, 16));
    }
    Feed(bytes);
  }
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  int inputs = 0;
  for (int i = 1; i < argc; ++i) inputs += Replay(argv[i]);
  std::printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
