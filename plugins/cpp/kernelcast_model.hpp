// Reads a kernelcast model file (.kcm, docs/flat-model.md) and predicts seconds of configurations with it.
//
//   std::string error;
//   std::unique_ptr<kernelcast::Model> model = kernelcast::Model::load("iree-contraction.kcm", error);
//   if (!model) { say(error); return; }
//   std::vector<double> seconds(2);
//   if (!model->predict({{"m", 512}, {"n", 512}}, "amd-epyc-9005-vm-2c", "fp32", {{"tile_m", {32, 64}}}, 2, seconds.data(),
//                       error)) { say(error); return; }
//
// C++17, the standard library only; works with -fno-exceptions and -fno-rtti. A file is not trusted: every length, number and
// reference is checked, and what is wrong with it is one sentence in `error`. A loaded model never changes, so threads may
// share it. Devices and dtypes go by the names in the file; aliases are for Python. Of measurements in the file those of the
// very configuration asked for are used; what Python derives from them for its neighbours is not.

#ifndef KERNELCAST_MODEL_HPP
#define KERNELCAST_MODEL_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kernelcast {

/// The sizes of an operation by name; every size of the kind, and no other.
using Sizes = std::map<std::string, std::int64_t>;
/// Columns of knobs by name, one value per configuration; 0, or no column at all, means the knob is left out.
using Knobs = std::map<std::string, std::vector<std::int64_t>>;

namespace detail {

constexpr std::uint32_t format = 1;
constexpr std::size_t most_bytes = std::size_t{1} << 28;
constexpr std::uint32_t most_sections = 64, most_names = 1u << 12, most_steps = 1u << 16, most_strings = 1u << 16;
constexpr std::uint32_t most_rows = 1u << 20, most_comparisons = 1u << 24, most_leaves = 1u << 24, most_depth = 12;
constexpr std::uint32_t longest_name_b = 200;
constexpr std::int64_t most_size = std::int64_t{1} << 40;
constexpr std::size_t header_b = 32, entry_b = 24, checksum_at = 24;
constexpr double least_log2 = -64.0, most_exp = 700.0;
constexpr std::size_t word = 64;

inline std::uint32_t u32_at(const unsigned char *at) {
  return std::uint32_t{at[0]} | std::uint32_t{at[1]} << 8 | std::uint32_t{at[2]} << 16 | std::uint32_t{at[3]} << 24;
}

inline std::uint64_t u64_at(const unsigned char *at) {
  return std::uint64_t{u32_at(at)} | std::uint64_t{u32_at(at + 4)} << 32;
}

inline std::uint32_t crc32(std::uint32_t before, const unsigned char *data, std::size_t size) {
  std::uint32_t table[256];
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
    table[i] = value;
  }
  std::uint32_t crc = ~before;
  for (std::size_t i = 0; i < size; ++i) crc = table[(crc ^ data[i]) & 255] ^ (crc >> 8);
  return ~crc;
}

inline std::string listed(const std::vector<std::string> &names) {
  std::string all;
  for (const std::string &name : names) all += (all.empty() ? "" : ", ") + name;
  return all.empty() ? "none" : all;
}

/// Reads a section from start to end. After the first thing that cannot be, `what` says it and all reads give nothing.
class Cursor {
 public:
  Cursor(const unsigned char *at, std::size_t left, std::string tag) : at_(at), left_(left), tag_(std::move(tag)) {}

  bool ok() const { return what.empty(); }
  bool fail(const std::string &why) {
    if (what.empty()) what = "in section " + tag_ + " " + why;
    return false;
  }
  /// Whether so many numbers of so many bytes are left.
  bool room(std::uint64_t count, std::uint64_t size) {
    if (!ok()) return false;
    return count <= left_ / size ? true : fail("it ends too early");
  }
  std::uint32_t u32() {
    if (!room(1, 4)) return 0;
    const std::uint32_t value = u32_at(at_);
    skip(4);
    return value;
  }
  std::uint32_t count(const char *name, std::uint32_t most) {
    const std::uint32_t value = u32();
    if (value <= most) return value;
    fail("it says " + std::to_string(value) + " " + name + ", where at most " + std::to_string(most) + " can be");
    return 0;
  }
  std::uint32_t below(std::uint32_t limit, const char *name) {
    const std::uint32_t value = u32();
    if (!ok() || value < limit) return value;
    fail(std::string(name) + " " + std::to_string(value) + " does not exist, there are " + std::to_string(limit));
    return 0;
  }
  std::int64_t i64() {
    if (!room(1, 8)) return 0;
    const std::uint64_t bits = u64_at(at_);
    std::int64_t value;
    std::memcpy(&value, &bits, 8);
    skip(8);
    return value;
  }
  double f64() {
    const std::int64_t bits = i64();
    double value;
    std::memcpy(&value, &bits, 8);
    if (!std::isfinite(value)) fail("it has a number that is not finite");
    return value;
  }
  float f32() {
    const std::uint32_t bits = u32();
    float value;
    std::memcpy(&value, &bits, 4);
    if (!std::isfinite(value)) fail("it has a number that is not finite");
    return value;
  }
  std::string text(std::size_t size) {
    if (!room(size, 1)) return {};
    std::string found(reinterpret_cast<const char *>(at_), size);
    skip(size);
    return found;
  }
  void end() {
    if (ok() && left_ != 0) fail("it has " + std::to_string(left_) + " bytes too many");
  }
  std::size_t left() const { return left_; }

  std::string what;

 private:
  void skip(std::size_t size) {
    at_ += size;
    left_ -= size;
  }

  const unsigned char *at_;
  std::size_t left_;
  std::string tag_;
};

enum Operation : std::uint32_t { add, sub, mul, div, min, max, floor, ceil, log2, exp, sqrt, less, equal, select, n_operations };
constexpr std::uint32_t arity[n_operations] = {2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 2, 2, 3};

struct Step {
  std::uint32_t code, operand[3];
};

/// One step on `rows` values; the operations are explained in docs/flat-model.md.
inline void apply(std::uint32_t code, const double *a, const double *b, const double *c, double *out, std::size_t rows) {
  const double least = 0x1p-64;
  switch (code) {
    case add: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] + b[i]; break;
    case sub: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] - b[i]; break;
    case mul: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] * b[i]; break;
    case div: for (std::size_t i = 0; i < rows; ++i) out[i] = b[i] != 0.0 ? a[i] / b[i] : 0.0; break;
    case min: for (std::size_t i = 0; i < rows; ++i) out[i] = b[i] < a[i] ? b[i] : a[i]; break;
    case max: for (std::size_t i = 0; i < rows; ++i) out[i] = b[i] > a[i] ? b[i] : a[i]; break;
    case floor: for (std::size_t i = 0; i < rows; ++i) out[i] = std::floor(a[i]); break;
    case ceil: for (std::size_t i = 0; i < rows; ++i) out[i] = std::ceil(a[i]); break;
    case log2: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] > least ? std::log2(a[i]) : least_log2; break;
    case exp: for (std::size_t i = 0; i < rows; ++i) out[i] = std::exp(a[i] < most_exp ? a[i] : most_exp); break;
    case sqrt: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] > 0.0 ? std::sqrt(a[i]) : 0.0; break;
    case less: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] < b[i] ? 1.0 : 0.0; break;
    case equal: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] == b[i] ? 1.0 : 0.0; break;
    default: for (std::size_t i = 0; i < rows; ++i) out[i] = a[i] != 0.0 ? b[i] : c[i]; break;
  }
}

/// Features of a block of up to 64 rows: `at[f]` points to their values, `constant[f]` says they are all the same.
struct Block {
  std::size_t rows;
  std::vector<const double *> at;
  std::vector<char> constant;
};

/// Trees that are complete, every one with its own `2^depth - 1` splits depth first; see `models/tuning/forest.py`.
class Forest {
 public:
  bool read(Cursor &cursor, std::uint32_t n_features) {
    bias_ = cursor.f64();
    const std::uint32_t n = cursor.count("comparisons", most_comparisons), trees = cursor.count("trees", most_leaves);
    depth_ = cursor.count("levels", most_depth);
    cursor.count("zero", 0);
    const std::uint64_t nodes = (std::uint64_t{1} << depth_) - 1;
    if ((std::uint64_t{trees} << depth_) > most_leaves) return cursor.fail("it says more leaves than can be");
    if (!cursor.room(std::uint64_t{n} * 2 + nodes * trees + (nodes + 1) * trees, 4)) return false;
    trees_ = trees;
    nodes_ = static_cast<std::size_t>(nodes);
    for (std::uint32_t i = 0; i < n; ++i) features_.push_back(cursor.below(n_features, "feature"));
    for (std::uint32_t i = 0; i < n; ++i) thresholds_.push_back(cursor.f32());
    splits_.resize(nodes_ * trees_);
    for (std::size_t node = 0; node < nodes_ && cursor.ok(); ++node)
      for (std::size_t tree = 0; tree < trees_; ++tree) splits_[tree * nodes_ + node] = cursor.below(n, "comparison");
    leaves_.resize((nodes_ + 1) * trees_);
    for (float &leaf : leaves_) leaf = cursor.f32();
    cursor.end();
    for (std::uint32_t i = 1; i < n && cursor.ok(); ++i)
      if (features_[i] < features_[i - 1] ||
          (features_[i] == features_[i - 1] && !(thresholds_[i] > thresholds_[i - 1])))
        cursor.fail("comparisons are not in order");
    return cursor.ok();
  }

  /// Bias plus leaves of every row of a block.
  void sums(const Block &block, double *out) const {
    for (std::size_t row = 0; row < block.rows; ++row) out[row] = 0.0;
    if (block.rows < few)
      for (std::size_t row = 0; row < block.rows; ++row) descend(block, row, out[row]);
    else
      judge(block, out);
    for (std::size_t row = 0; row < block.rows; ++row) out[row] += bias_;
  }

 private:
  /// Below so many rows walking each tree is faster than judging all rows at every node.
  static constexpr std::size_t few = 12;

  void descend(const Block &block, std::size_t row, double &sum) const {
    std::vector<float> values(block.at.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(block.at[i][row]);
    for (std::size_t tree = 0; tree < trees_; ++tree) {
      const std::uint32_t *splits = splits_.data() + tree * nodes_;
      std::size_t node = 0, leaf = 0, half = nodes_;
      while (half != 0) {
        half /= 2;
        const std::uint32_t split = splits[node];
        const std::size_t right = values[features_[split]] < thresholds_[split] ? 0 : 1;
        node += 1 + right * half;
        leaf = leaf * 2 + right;
      }
      sum += static_cast<double>(leaves_[tree * (nodes_ + 1) + leaf]);
    }
  }

  /// All rows at once: bit r of a word says that row r goes right.
  void judge(const Block &block, double *out) const {
    const std::vector<std::uint64_t> right = compared(block);
    std::uint64_t spread[256];
    for (std::uint64_t byte = 0; byte < 256; ++byte) {
      spread[byte] = 0;
      for (std::uint64_t bit = 0; bit < 8; ++bit) spread[byte] |= (byte >> bit & 1) << (8 * bit);
    }
    std::vector<std::uint64_t> nodes(nodes_ + 1);
    for (std::size_t tree = 0; tree < trees_; ++tree) {
      const std::uint32_t *splits = splits_.data() + tree * nodes_;
      std::uint64_t chosen[most_depth] = {};
      for (std::size_t node = 0; node < nodes_; ++node) nodes[node] = right[splits[node]];
      for (std::size_t level = 0, half = nodes_ / 2; level < depth_; ++level, half /= 2) {
        const std::uint64_t side = chosen[level] = nodes[0];
        for (std::size_t i = 0; i < half; ++i) {
          const std::uint64_t left = nodes[1 + i];
          nodes[i] = left ^ ((left ^ nodes[1 + half + i]) & side);
        }
      }
      add_leaves(chosen, leaves_.data() + tree * (nodes_ + 1), spread, block.rows, out);
    }
  }

  std::vector<std::uint64_t> compared(const Block &block) const {
    std::vector<std::uint64_t> right(thresholds_.size());
    const float *const begin = thresholds_.data();
    for (std::size_t low = 0, high = 0; low < thresholds_.size(); low = high) {
      while (high < thresholds_.size() && features_[high] == features_[low]) ++high;
      const double *values = block.at[features_[low]];
      const std::size_t rows = block.constant[features_[low]] ? 1 : block.rows;
      std::size_t rank = high;
      float before = std::numeric_limits<float>::quiet_NaN();
      for (std::size_t row = 0; row < rows; ++row) {
        const float value = static_cast<float>(values[row]);
        // Rows in sequence often share a value. Where the first threshold above a value is, the row stops going right.
        if (!(value == before)) rank = static_cast<std::size_t>(std::upper_bound(begin + low, begin + high, value) - begin);
        before = value;
        if (rank > low) right[rank - 1] |= rows == 1 ? ~std::uint64_t{0} : std::uint64_t{1} << row;
      }
      for (std::size_t i = high - 1; i > low; --i) right[i - 1] |= right[i];
    }
    return right;
  }

  void add_leaves(const std::uint64_t *chosen, const float *leaves, const std::uint64_t *spread, std::size_t rows,
                  double *out) const {
    for (std::size_t first = 0; first < rows; first += 8) {
      const std::size_t some = std::min<std::size_t>(8, rows - first);
      if (depth_ <= 8) {
        // Eight numbers of leaves at once, one in each byte.
        std::uint64_t numbers = 0;
        for (std::size_t level = 0; level < depth_; ++level) numbers = numbers << 1 | spread[chosen[level] >> first & 255];
        for (std::size_t i = 0; i < some; ++i) out[first + i] += static_cast<double>(leaves[numbers >> (8 * i) & 255]);
      } else {
        for (std::size_t i = 0; i < some; ++i) {
          std::size_t number = 0;
          for (std::size_t level = 0; level < depth_; ++level) number = number * 2 + (chosen[level] >> (first + i) & 1);
          out[first + i] += static_cast<double>(leaves[number]);
        }
      }
    }
  }

  double bias_ = 0.0;
  std::size_t depth_ = 0, trees_ = 0, nodes_ = 0;
  std::vector<std::uint32_t> features_, splits_;
  std::vector<float> thresholds_, leaves_;
};

}  // namespace detail

/// The model of one kind of tuning problem. `load` makes one; it never changes.
class Model {
 public:
  /// The model in a file; null, with one sentence in `error`, where it cannot be used or is of another kind than asked for.
  static std::unique_ptr<Model> load(const std::string &path, std::string &error, const std::string &kind = "") {
    std::FILE *file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) {
      error = "there is no model file " + path + " that can be read; train one with `kernelcast train tuning` (kinds named op-...: `kernelcast train export-ops`)";
      return nullptr;
    }
    std::vector<unsigned char> content;
    unsigned char part[1 << 14];
    std::size_t got = 0;
    while (content.size() <= detail::most_bytes && (got = std::fread(part, 1, sizeof part, file)) > 0)
      content.insert(content.end(), part, part + got);
    const bool broken = std::ferror(file) != 0;
    std::fclose(file);
    if (broken) {
      error = "cannot read the model file " + path;
      return nullptr;
    }
    return parse(content.data(), content.size(), path, error, kind);
  }

  /// The model in the bytes of a file that errors call `origin`.
  static std::unique_ptr<Model> parse(const unsigned char *data, std::size_t size, const std::string &origin,
                                      std::string &error, const std::string &kind = "") {
    std::map<std::string, std::pair<std::size_t, std::size_t>> sections;
    if (!unpack(data, size, origin, sections, error)) return nullptr;
    std::unique_ptr<Model> model(new Model());
    const char *required[] = {"STRS", "KIND", "FACT", "FORM", "TREE", "META"};
    for (const char *tag : required)
      if (sections.find(tag) == sections.end()) {
        error = origin + damaged(std::string("it lacks the section ") + tag);
        return nullptr;
      }
    std::string what;
    const auto read = [&](const char *tag, auto &&reader) {
      if (!what.empty() || sections.find(tag) == sections.end()) return;
      const auto place = sections[tag];
      detail::Cursor cursor(data + place.first, place.second, tag);
      reader(cursor);
      cursor.end();
      what = cursor.what;
    };
    std::vector<std::string> strings;
    read("STRS", [&](detail::Cursor &cursor) { read_strings(cursor, strings); });
    read("KIND", [&](detail::Cursor &cursor) { model->read_names(cursor, strings); });
    if (what.empty() && !kind.empty() && model->kind_ != kind) {
      error = origin + " is a model of " + model->kind_ + ", not of " + kind;
      return nullptr;
    }
    read("FACT", [&](detail::Cursor &cursor) { model->read_table(cursor, strings); });
    read("FORM", [&](detail::Cursor &cursor) { model->read_formula(cursor, strings); });
    const std::uint32_t n_features = static_cast<std::uint32_t>(model->outputs_.size());
    read("TREE", [&](detail::Cursor &cursor) { model->latency_.read(cursor, n_features); });
    read("TRE2", [&](detail::Cursor &cursor) { model->has_energy_ = model->energy_.read(cursor, n_features); });
    read("META", [&](detail::Cursor &cursor) { model->metadata_ = cursor.text(cursor.left()); });
    read("SEEN", [&](detail::Cursor &cursor) { model->read_measured(cursor, strings); });
    if (!what.empty()) {
      error = origin + damaged(what);
      return nullptr;
    }
    return model;
  }

  const std::string &kind() const { return kind_; }
  const std::vector<std::string> &sizes() const { return sizes_; }
  const std::vector<std::string> &knobs() const { return knobs_; }
  bool predicts_energy() const { return has_energy_; }
  /// Names of the features, in the order of what `features` gives.
  const std::vector<std::string> &feature_names() const { return names_; }
  /// The JSON text of the section META, as it is in the file.
  const std::string &metadata() const { return metadata_; }
  /// Names of the devices the model knows, sorted.
  std::vector<std::string> devices() const {
    std::set<std::string> found;
    for (const auto &row : table_) found.insert(row.first.first);
    return {found.begin(), found.end()};
  }

  /// Seconds of `n` configurations of one operation into `seconds`, and where `joules` is not null joules into it.
  /// False, with one sentence in `error`, where something asked for is unknown or impossible.
  bool predict(const Sizes &sizes, const std::string &device, const std::string &dtype, const Knobs &knobs, std::size_t n,
               double *seconds, std::string &error, double *joules = nullptr) const {
    if (!known(device, dtype, error) || !valid(sizes, knobs, n, error)) return false;
    if (joules != nullptr && !has_energy_) {
      error = "the model of " + kind_ + " predicts no energy";
      return false;
    }
    const std::vector<const std::int64_t *> columns = columns_of(knobs);
    std::vector<double> sums(std::min(n, detail::word));
    visit_blocks(sizes, {device, dtype}, columns, n, [&](const detail::Block &block, std::size_t first) {
      latency_.sums(block, sums.data());
      for (std::size_t row = 0; row < block.rows; ++row) seconds[first + row] = block.at[bound_][row] * power(sums[row]);
      if (joules == nullptr) return;
      energy_.sums(block, sums.data());
      for (std::size_t row = 0; row < block.rows; ++row) joules[first + row] = power(sums[row]);
    });
    if (!possible(seconds, n, "time", error)) return false;
    remember(sizes, device, dtype, columns, n, seconds);
    if (joules == nullptr) return true;
    for (std::size_t row = 0; row < n; ++row) joules[row] *= seconds[row];
    return possible(joules, n, "energy", error);
  }

  /// The features of one configuration, knobs that are not in it left out. False, with one sentence in `error`, as `predict`.
  bool features(const Sizes &sizes, const std::string &device, const std::string &dtype,
                const std::map<std::string, std::int64_t> &config, std::vector<double> &values, std::string &error) const {
    Knobs knobs;
    for (const auto &knob : config) knobs[knob.first] = {knob.second};
    if (!known(device, dtype, error) || !valid(sizes, knobs, 1, error)) return false;
    values.clear();
    visit_blocks(sizes, {device, dtype}, columns_of(knobs), 1, [&](const detail::Block &block, std::size_t) {
      for (const double *feature : block.at) values.push_back(*feature);
    });
    return true;
  }

 private:
  using Key = std::pair<std::string, std::string>;
  using Configuration = std::vector<std::int64_t>;

  Model() = default;

  /// The values of each knob, null for one that is left out.
  std::vector<const std::int64_t *> columns_of(const Knobs &knobs) const {
    std::vector<const std::int64_t *> columns;
    for (const std::string &name : knobs_) {
      const auto column = knobs.find(name);
      columns.push_back(column == knobs.end() ? nullptr : column->second.data());
    }
    return columns;
  }

  /// Calls `visit(block, first)` with the features of `n` configurations in blocks; `first` is a block's place among them.
  template <class Visit>
  void visit_blocks(const Sizes &sizes, const Key &key, const std::vector<const std::int64_t *> &columns, std::size_t n,
                    Visit visit) const {
    const std::size_t n_inputs = sizes_.size() + knobs_.size() + facts_.size();
    const std::size_t n_slots = n_inputs + constants_.size() + steps_.size(), width = std::min(n, detail::word);
    std::vector<double> cells(n_slots * width);
    std::vector<char> constant(n_slots, 1);
    const auto cell = [&](std::size_t slot) { return cells.data() + slot * width; };
    const auto fill = [&](std::size_t slot, double value) { std::fill(cell(slot), cell(slot) + width, value); };
    std::size_t slot = 0;
    for (const std::string &name : sizes_) fill(slot++, static_cast<double>(sizes.find(name)->second));
    for (const std::int64_t *column : columns) {
      for (std::size_t row = 1; column != nullptr && row < n && constant[slot]; ++row) constant[slot] = column[row] == column[0];
      if (column != nullptr && constant[slot] && n > 0) fill(slot, static_cast<double>(column[0]));
      ++slot;
    }
    for (double value : table_.find(key)->second) fill(slot++, value);
    for (double value : constants_) fill(slot++, value);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const detail::Step &step = steps_[i];
      for (std::uint32_t k = 0; k < detail::arity[step.code]; ++k) constant[slot + i] &= constant[step.operand[k]];
    }
    const auto run = [&](bool constants, std::size_t rows) {
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        const detail::Step &step = steps_[i];
        if (static_cast<bool>(constant[slot + i]) != constants) continue;
        const double *const a = cell(step.operand[0]), *const b = cell(step.operand[1]), *const c = cell(step.operand[2]);
        detail::apply(step.code, a, b, c, cell(slot + i), constants ? 1 : rows);
        if (constants) fill(slot + i, *cell(slot + i));
      }
    };
    if (n > 0) run(true, 1);
    detail::Block block;
    for (std::uint32_t output : outputs_) {
      block.at.push_back(cell(output));
      block.constant.push_back(constant[output]);
    }
    for (std::size_t first = 0; first < n; first += width) {
      block.rows = std::min(width, n - first);
      for (std::size_t i = 0; i < columns.size(); ++i)
        if (!constant[sizes_.size() + i])
          for (std::size_t row = 0; row < block.rows; ++row)
            cell(sizes_.size() + i)[row] = static_cast<double>(columns[i][first + row]);
      run(false, block.rows);
      visit(block, first);
    }
  }

  static double power(double log) { return std::exp(log < detail::most_exp ? log : detail::most_exp); }

  static std::string damaged(const std::string &what) {
    return " is damaged: " + what + "; copy it again or train it again";
  }

  static std::string cut_short(std::uint64_t have, std::uint64_t want) {
    return " is cut short: it has " + std::to_string(have) + " of " + std::to_string(want) + " bytes; copy it again";
  }

  static bool unpack(const unsigned char *data, std::size_t size, const std::string &origin,
                     std::map<std::string, std::pair<std::size_t, std::size_t>> &sections, std::string &error) {
    using namespace detail;
    const unsigned char magic[8] = {0x89, 'K', 'C', 'M', '\r', '\n', 0x1a, '\n'};
    const auto fail = [&](const std::string &why) {
      error = origin + why;
      return false;
    };
    if (size > most_bytes) return fail(" is larger than " + std::to_string(most_bytes) + " bytes, which no model file is");
    if (size == 0 || std::memcmp(data, magic, std::min<std::size_t>(size, 8)) != 0)
      return fail(" is not a kernelcast model file: its first bytes are not those of one");
    if (size < header_b) return fail(cut_short(size, header_b));
    const std::uint32_t version = u32_at(data + 8), n_sections = u32_at(data + 12);
    const std::uint64_t length_b = u64_at(data + 16);
    if (version != format)
      return fail(" has format " + std::to_string(version) + (version < format ? ", older" : ", newer") + " than format " +
                  std::to_string(format) + " that this version reads; " +
                  (version < format ? "train it again" : "update kernelcast"));
    if (size < length_b) return fail(cut_short(size, length_b));
    if (crc32(crc32(0, data, checksum_at), data + checksum_at + 4, size - checksum_at - 4) != u32_at(data + checksum_at))
      return fail(damaged("its checksum does not match its content"));
    if (size > length_b || n_sections > most_sections || header_b + entry_b * n_sections > size)
      return fail(damaged("its length or number of sections cannot be"));
    for (std::uint32_t i = 0; i < n_sections; ++i) {
      const unsigned char *entry = data + header_b + entry_b * i;
      const std::uint64_t offset = u64_at(entry + 8), length = u64_at(entry + 16);
      const std::string tag(reinterpret_cast<const char *>(entry), 4);
      if (offset % 8 != 0 || offset > size || length > size - offset || sections.find(tag) != sections.end())
        return fail(damaged("section " + std::to_string(i + 1) + " lies outside the file or is there twice"));
      sections[tag] = {static_cast<std::size_t>(offset), static_cast<std::size_t>(length)};
    }
    return true;
  }

  static void read_strings(detail::Cursor &cursor, std::vector<std::string> &strings) {
    const std::uint32_t count = cursor.count("strings", detail::most_strings);
    if (!cursor.room(std::uint64_t{count} + 1, 4)) return;
    std::uint32_t before = cursor.u32();
    if (before != 0) cursor.fail("the first name does not begin at 0");
    std::vector<std::uint32_t> lengths(count);
    for (std::uint32_t &length : lengths) {
      const std::uint32_t end = cursor.u32();
      if (end <= before || end - before > detail::longest_name_b) {
        cursor.fail("a name is not of 1 to " + std::to_string(detail::longest_name_b) + " bytes");
        return;
      }
      length = end - before;
      before = end;
    }
    for (std::uint32_t length : lengths) strings.push_back(cursor.text(length));
  }

  static std::string name(detail::Cursor &cursor, const std::vector<std::string> &strings) {
    const std::uint32_t i = cursor.below(static_cast<std::uint32_t>(strings.size()), "name");
    return cursor.ok() ? strings[i] : std::string();
  }

  void read_names(detail::Cursor &cursor, const std::vector<std::string> &strings) {
    const std::uint32_t n_sizes = cursor.count("sizes", detail::most_names);
    const std::uint32_t n_knobs = cursor.count("knobs", detail::most_names);
    const std::uint32_t n_facts = cursor.count("facts", detail::most_names);
    kind_ = name(cursor, strings);
    for (std::uint32_t i = 0; i < n_sizes; ++i) sizes_.push_back(name(cursor, strings));
    for (std::uint32_t i = 0; i < n_knobs; ++i) knobs_.push_back(name(cursor, strings));
    for (std::uint32_t i = 0; i < n_facts; ++i) facts_.push_back(name(cursor, strings));
    std::set<std::string> all(sizes_.begin(), sizes_.end());
    all.insert(knobs_.begin(), knobs_.end());
    all.insert(facts_.begin(), facts_.end());
    if (all.size() != sizes_.size() + knobs_.size() + facts_.size()) cursor.fail("two sizes, knobs or facts have one name");
  }

  static std::vector<Key> read_keys(detail::Cursor &cursor, const std::vector<std::string> &strings, std::uint32_t rows) {
    std::vector<Key> keys(rows);
    for (Key &key : keys) {
      key.first = name(cursor, strings);
      key.second = name(cursor, strings);
    }
    return keys;
  }

  void read_table(detail::Cursor &cursor, const std::vector<std::string> &strings) {
    const std::uint32_t rows = cursor.count("rows", detail::most_rows), width = cursor.count("facts", detail::most_names);
    if (cursor.ok() && width != facts_.size()) cursor.fail("a row has another number of facts than the kind");
    if (!cursor.room(rows, 8)) return;
    const std::vector<Key> keys = read_keys(cursor, strings, rows);
    if (!cursor.room(std::uint64_t{rows} * width, 8)) return;
    for (const Key &key : keys) {
      std::vector<double> values(width);
      for (double &value : values) value = cursor.f64();
      if (!table_.emplace(key, std::move(values)).second) cursor.fail("a device has a dtype twice");
    }
  }

  void read_formula(detail::Cursor &cursor, const std::vector<std::string> &strings) {
    using namespace detail;
    const std::uint32_t n_constants = cursor.count("constants", most_steps), n_steps = cursor.count("steps", most_steps);
    const std::uint32_t n_outputs = cursor.count("features", most_names);
    bound_ = cursor.count("bound", most_names);
    if (!cursor.room(std::uint64_t{n_constants} + 2 * std::uint64_t{n_steps} + n_outputs, 8)) return;
    for (std::uint32_t i = 0; i < n_constants; ++i) constants_.push_back(cursor.f64());
    const std::uint32_t first = static_cast<std::uint32_t>(sizes_.size() + knobs_.size() + facts_.size()) + n_constants;
    for (std::uint32_t i = 0; i < n_steps; ++i) {
      Step step;
      step.code = cursor.u32();
      for (std::uint32_t &operand : step.operand) operand = cursor.u32();
      if (step.code >= n_operations) {
        cursor.fail("step " + std::to_string(i) + " has the operation " + std::to_string(step.code) + ", which does not exist");
        return;
      }
      for (std::uint32_t k = 0; k < 3; ++k)
        if (k < arity[step.code] ? step.operand[k] >= first + i : step.operand[k] != 0)
          cursor.fail("step " + std::to_string(i) + " reads what comes after it");
      steps_.push_back(step);
    }
    for (std::uint32_t i = 0; i < n_outputs; ++i) names_.push_back(name(cursor, strings));
    for (std::uint32_t i = 0; i < n_outputs; ++i) outputs_.push_back(cursor.below(first + n_steps, "slot"));
    if (cursor.ok() && (std::set<std::string>(names_.begin(), names_.end()).size() != names_.size() || bound_ >= n_outputs ||
                        names_[bound_] != "bound_s"))
      cursor.fail("the features' names are not each there once, bound_s where it is said to be");
  }

  void read_measured(detail::Cursor &cursor, const std::vector<std::string> &strings) {
    const std::uint32_t rows = cursor.count("rows", detail::most_rows);
    cursor.count("zero", 0);
    const std::size_t width = sizes_.size() + knobs_.size();
    if (!cursor.room(std::uint64_t{rows} * (2 + width), 8)) return;
    const std::vector<Key> keys = read_keys(cursor, strings, rows);
    std::vector<double> seconds(rows);
    for (double &value : seconds) {
      value = cursor.f64();
      if (!(value > 0.0)) cursor.fail("a measured time is not greater than 0");
    }
    std::map<Key, std::map<Configuration, std::vector<double>>> all;
    for (std::uint32_t row = 0; row < rows && cursor.ok(); ++row) {
      Configuration values(width);
      for (std::int64_t &value : values) {
        value = cursor.i64();
        if (value < 0 || value > detail::most_size) cursor.fail("a size or knob is not from 0 to 2**40");
      }
      all[keys[row]][values].push_back(seconds[row]);
    }
    for (auto &device : all)
      for (auto &one : device.second) {
        std::vector<double> &values = one.second;
        std::sort(values.begin(), values.end());
        const std::size_t middle = values.size() / 2;
        measured_[device.first][one.first] =
            values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
      }
  }

  bool known(const std::string &device, const std::string &dtype, std::string &error) const {
    if (table_.find({device, dtype}) != table_.end()) return true;
    std::vector<std::string> dtypes;
    for (const auto &row : table_)
      if (row.first.first == device) dtypes.push_back(row.first.second);
    error = "the model of " + kind_ + " does not know " +
            (dtypes.empty() ? "the device '" + device + "'; it knows: " + detail::listed(devices())
                            : dtype + " on " + device + "; it knows: " + detail::listed(dtypes));
    return false;
  }

  bool valid(const Sizes &sizes, const Knobs &knobs, std::size_t n, std::string &error) const {
    for (const std::string &size : sizes_)
      if (sizes.find(size) == sizes.end()) {
        error = kind_ + " needs the size " + size + "; sizes: " + detail::listed(sizes_);
        return false;
      }
    for (const auto &size : sizes) {
      if (std::find(sizes_.begin(), sizes_.end(), size.first) == sizes_.end()) {
        error = kind_ + " has no size '" + size.first + "'; sizes: " + detail::listed(sizes_);
        return false;
      }
      if (size.second < 0 || size.second > detail::most_size) {
        error = size.first + " must be a whole number from 0 to 2**40, got " + std::to_string(size.second);
        return false;
      }
    }
    for (const auto &column : knobs) {
      if (std::find(knobs_.begin(), knobs_.end(), column.first) == knobs_.end()) {
        error = kind_ + " has no knob '" + column.first + "'; knobs: " + detail::listed(knobs_);
        return false;
      }
      if (column.second.size() != n) {
        error = "the knob " + column.first + " has " + std::to_string(column.second.size()) + " values for " +
                std::to_string(n) + " configurations";
        return false;
      }
      for (std::int64_t value : column.second)
        if (value < 0 || value > detail::most_size) {
          error = "the knob " + column.first + " must be from 0 to 2**40 in every configuration";
          return false;
        }
    }
    return true;
  }

  bool possible(const double *values, std::size_t n, const char *what, std::string &error) const {
    for (std::size_t row = 0; row < n; ++row)
      if (!(values[row] > 0.0 && std::isfinite(values[row]))) {
        error = "the model of " + kind_ + " has no " + what + " for these sizes; they may be too large";
        return false;
      }
    return true;
  }

  /// Put measured times where a configuration was measured.
  void remember(const Sizes &sizes, const std::string &device, const std::string &dtype,
                const std::vector<const std::int64_t *> &columns, std::size_t n, double *seconds) const {
    const auto task = measured_.find({device, dtype});
    if (task == measured_.end()) return;
    Configuration values;
    for (const std::string &size : sizes_) values.push_back(sizes.find(size)->second);
    values.resize(sizes_.size() + columns.size());
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t i = 0; i < columns.size(); ++i)
        values[sizes_.size() + i] = columns[i] == nullptr ? 0 : columns[i][row];
      const auto found = task->second.find(values);
      if (found != task->second.end()) seconds[row] = found->second;
    }
  }

  std::string kind_, metadata_;
  std::vector<std::string> sizes_, knobs_, facts_, names_;
  std::map<Key, std::vector<double>> table_;
  std::vector<double> constants_;
  std::vector<detail::Step> steps_;
  std::vector<std::uint32_t> outputs_;
  std::size_t bound_ = 0;
  detail::Forest latency_, energy_;
  bool has_energy_ = false;
  std::map<Key, std::map<Configuration, double>> measured_;
};

}  // namespace kernelcast

#endif
