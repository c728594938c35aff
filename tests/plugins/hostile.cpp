// Damages a model file in many ways, each time with a checksum that fits, and asks whatever can still be read.
//
//   hostile MODEL.kcm ROUNDS        prints how many were refused and how many answered
//
// Built with sanitizers, so that a read outside the file ends it.

#include <cstdlib>
#include <iostream>
#include <random>

#include "kernelcast_model.hpp"

int main(int, char **argv) {
  std::FILE *file = std::fopen(argv[1], "rb");
  std::vector<unsigned char> whole(1 << 20);
  whole.resize(std::fread(whole.data(), 1, whole.size(), file));
  std::fclose(file);
  std::mt19937 draw(0);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(draw() % limit); };
  int refused = 0, answered = 0;
  for (int round = 0; round < std::atoi(argv[2]); ++round) {
    std::vector<unsigned char> damaged = whole;
    for (std::size_t i = 0, n = 1 + below(3); i < n; ++i) {
      const std::size_t at = 8 + below(damaged.size() - 8);
      damaged[at] = static_cast<unsigned char>(below(2) ? below(256) : damaged[at] ^ (1u << below(8)));
    }
    if (below(5) == 0) damaged.resize(below(damaged.size()));
    if (damaged.size() >= 32) {
      using kernelcast::detail::crc32;
      const std::uint32_t sum = crc32(crc32(0, damaged.data(), 24), damaged.data() + 28, damaged.size() - 28);
      for (int byte = 0; byte < 4; ++byte) damaged[24 + byte] = static_cast<unsigned char>(sum >> (8 * byte));
    }
    std::string error;
    const auto model = kernelcast::Model::parse(damaged.data(), damaged.size(), "it", error);
    if (!model) {
      if (error.empty() || error.find('\n') != std::string::npos) return 1;
      ++refused;
      continue;
    }
    kernelcast::Sizes sizes;
    kernelcast::Knobs knobs;
    for (const std::string &name : model->sizes()) sizes[name] = 300;
    for (const std::string &name : model->knobs()) {
      knobs[name] = std::vector<std::int64_t>(70, 8);
      for (std::size_t i = 0; i < 70; ++i) knobs[name][i] = static_cast<std::int64_t>(i % 9);
    }
    std::vector<double> seconds(70), joules(70);
    for (const std::size_t n : {std::size_t{70}, std::size_t{3}}) {
      for (auto &column : knobs) column.second.resize(n);
      for (const std::string &device : model->devices())
        model->predict(sizes, device, "fp32", knobs, n, seconds.data(), error, model->predicts_energy() ? joules.data() : nullptr);
    }
    ++answered;
  }
  std::cout << refused << " " << answered << "\n";
  return 0;
}
