// Prints what a kernelcast model predicts for configurations given as lines of text.
//
//   score MODEL.kcm [--energy] [--time ROUNDS] < QUESTIONS
//
// Lines are `device NAME`, `dtype NAME`, `sizes NAME=NUMBER ...` and `config NAME=NUMBER ...` (no pairs: all knobs left out);
// any line but `config` ends the operation before it. One line of seconds is printed per configuration, with --energy joules
// behind it. With --time every operation is predicted so many times, and the fastest round's microseconds per configuration
// are printed instead. What is wrong is one sentence on stderr, and the exit status is 1.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "kernelcast_model.hpp"

namespace {

struct Operation {
  std::string device, dtype;
  kernelcast::Sizes sizes;
  std::vector<std::map<std::string, std::int64_t>> configs;
};

bool pairs(std::istringstream &line, std::map<std::string, std::int64_t> &found) {
  std::string pair;
  while (line >> pair) {
    const std::size_t at = pair.find('=');
    if (at == std::string::npos || at + 1 == pair.size()) return false;
    char *end = nullptr;
    found[pair.substr(0, at)] = std::strtoll(pair.c_str() + at + 1, &end, 10);
    if (*end != '\0') return false;
  }
  return true;
}

bool answer(const kernelcast::Model &model, const Operation &asked, bool energy, int rounds, std::string &error) {
  const std::size_t n = asked.configs.size();
  kernelcast::Knobs knobs;
  for (std::size_t i = 0; i < n; ++i)
    for (const auto &knob : asked.configs[i]) {
      knobs[knob.first].resize(n);
      knobs[knob.first][i] = knob.second;
    }
  std::vector<double> seconds(n), joules(n);
  double fastest = 0.0;
  for (int round = 0; round < std::max(rounds, 1); ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (!model.predict(asked.sizes, asked.device, asked.dtype, knobs, n, seconds.data(), error, energy ? joules.data() : nullptr))
      return false;
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (round == 0 || took.count() < fastest) fastest = took.count();
  }
  if (rounds > 0) std::printf("%.6g\n", fastest / static_cast<double>(std::max<std::size_t>(n, 1)));
  for (std::size_t i = 0; i < n && rounds == 0; ++i)
    energy ? std::printf("%.17g %.17g\n", seconds[i], joules[i]) : std::printf("%.17g\n", seconds[i]);
  return true;
}

int wrong(const std::string &sentence) {
  std::cerr << sentence << '\n';
  return 1;
}

}  // namespace

int main(int argc, char **argv) {
  std::string path, error, text;
  bool energy = false;
  int rounds = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--energy") energy = true;
    else if (word == "--time" && i + 1 < argc) rounds = std::atoi(argv[++i]);
    else path = word;
  }
  if (path.empty()) return wrong("usage: score MODEL.kcm [--energy] [--time ROUNDS] < QUESTIONS");
  const std::unique_ptr<kernelcast::Model> model = kernelcast::Model::load(path, error);
  if (!model) return wrong(error);
  Operation asked;
  while (std::getline(std::cin, text)) {
    std::istringstream line(text);
    std::string what;
    if (!(line >> what)) continue;
    std::map<std::string, std::int64_t> found;
    if (what == "config" && pairs(line, found)) {
      asked.configs.push_back(found);
      continue;
    }
    if (!asked.configs.empty() && !answer(*model, asked, energy, rounds, error)) return wrong(error);
    asked.configs.clear();
    if (what == "device") {
      line >> asked.device;
    } else if (what == "dtype") {
      line >> asked.dtype;
    } else if (what == "sizes" && pairs(line, found)) {
      asked.sizes = found;
    } else {
      return wrong("cannot read the line '" + text + "'; lines are device, dtype, sizes and config");
    }
  }
  if (!asked.configs.empty() && !answer(*model, asked, energy, rounds, error)) return wrong(error);
  return 0;
}
