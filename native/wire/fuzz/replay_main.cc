// Feeds files to a fuzz target, for compilers without libFuzzer: FILE or FOLDER...

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

int Replay(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    return 1;
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files += Replay(entry.path());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) files += Replay(argv[i]);
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
