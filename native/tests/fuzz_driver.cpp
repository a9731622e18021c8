// For compilers without libFuzzer: calls a target with random bytes, and with changed copies of earlier
// ones, for SECONDS from SEED on. `program SECONDS SEED`, or `program FILE` to repeat one input.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes next_input(std::mt19937_64& random, const std::vector<Bytes>& kept) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Bytes bytes;
  if (kept.empty() || below(3) == 0) {
    bytes.resize(below(512));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    return bytes;
  }
  bytes = kept[below(kept.size())];
  for (std::size_t change = 1 + below(8); change-- > 0 && !bytes.empty();) {
    const std::size_t at = below(bytes.size());
    switch (below(4)) {
      case 0: bytes[at] = static_cast<std::uint8_t>(random()); break;
      case 1: bytes[at] = below(2) ? 0 : 255; break;
      case 2: bytes.resize(at); break;
      default: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(64), bytes[at]);
    }
  }
  return bytes;
}

}  // namespace

int main(int n_arguments, char** arguments) {
  if (n_arguments == 2) {
    std::ifstream file(arguments[1], std::ios::binary);
    const Bytes bytes{std::istreambuf_iterator<char>(file), {}};
    return LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  const double seconds = n_arguments > 1 ? std::atof(arguments[1]) : 10;
  std::mt19937_64 random(n_arguments > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const char* slash = std::strrchr(arguments[0], '/');
  const char* name = slash ? slash + 1 : arguments[0];
  std::vector<Bytes> kept;
  unsigned long long n_inputs = 0;
  for (; Clock::now() < end; ++n_inputs) {
    const Bytes bytes = next_input(random, kept);
    {  // what ends the program is left behind
      std::ofstream file(std::string(arguments[0]) + ".input", std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    if (kept.size() < 256) kept.push_back(bytes);
    else kept[random() % kept.size()] = bytes;
  }
  std::printf("%s: %llu inputs, nothing found\n", name, n_inputs);
  return 0;
}
