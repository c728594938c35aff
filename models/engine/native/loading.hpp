// From the arrays of a graph to the layout the kernels read; part of engine.cpp. What is no forest gives null: every number is
// checked here again, whatever the caller checked.

struct ForestArrays {
    int32_t width, targets, trees, splits, leaves;
    const int32_t *roots, *feature, *left, *right, *leaf_target;
    const uint8_t *left_leaf, *right_leaf, *missing_left;
    const float *threshold, *leaf_value, *base;  // right where x >= threshold
};

struct NetworkArrays {
    int32_t width, columns, numbers, frequencies, embedding, layers, outputs;
    float clip, out_bias;
    const int32_t* column;
    const float *mean, *scale, *frequency, *embed_weight, *embed_bias, *out_weight;
    const float *const *layer_weight, *const *layer_bias;
};

constexpr int kDeepest = 1000;  // deeper trees are given back rather than followed by recursion

// One tree after the other, its leaves numbered from the left.
class TreeReader {
  public:
    TreeReader(const ForestArrays& a, Forest& f) : a_(a), f_(f), split_seen_(a.splits), leaf_seen_(a.leaves) {
        f_.slots.push_back({0, 0.0f});
        slot_of_.assign(std::size_t(a.width) * 2, 0);
    }

    bool read(int32_t root) {
        order_.clear();
        values_.clear();
        target_ = -1;
        depth_ = 0;
        if (!follow(root, false, 0)) return false;
        if (values_.size() > 1u << (kChildBits - 1) || f_.slots.size() > 1u << (32 - kChildBits)) return false;
        f_.walked |= values_.size() > 32 * kMostWords;
        put_nodes();
        return true;
    }

    // Splits by words of 32 leaves; only where the whole forest is scored so.
    struct Split {
        uint32_t slot;
        float threshold;
        uint32_t first, middle, end;  // leaves left and right
    };
    struct Shape {
        std::vector<Split> splits;
        std::vector<float> values;
        uint32_t target;
    };
    std::vector<Shape> shapes;

  private:
    struct Place {
        int32_t split, left, right;  // in order_, or -1 - leaf
    };

    bool follow(int32_t id, bool leaf, int depth, int* place = nullptr) {
        if (depth > kDeepest || id < 0 || id >= (leaf ? a_.leaves : a_.splits)) return false;
        auto& seen = leaf ? leaf_seen_ : split_seen_;
        if (seen[id]) return false;  // not a tree
        seen[id] = 1;
        if (leaf) {
            const int32_t target = a_.leaf_target[id];
            if (target < 0 || target >= a_.targets || (target_ >= 0 && target_ != target)) return false;
            target_ = target;
            if (depth > depth_) depth_ = depth;
            if (place) *place = -1 - int(values_.size());
            values_.push_back(a_.leaf_value[id]);
            return true;
        }
        const int32_t feature = a_.feature[id];
        if (feature < 0 || feature >= a_.width || !std::isfinite(a_.threshold[id])) return false;
        const int at = int(order_.size());
        if (place) *place = at;
        order_.push_back({slot(feature, a_.missing_left[id] != 0), a_.threshold[id], uint32_t(values_.size()), 0, 0});
        children_.resize(order_.size());
        int left = 0, right = 0;
        if (!follow(a_.left[id], a_.left_leaf[id] != 0, depth + 1, &left)) return false;
        order_[at].middle = uint32_t(values_.size());
        if (!follow(a_.right[id], a_.right_leaf[id] != 0, depth + 1, &right)) return false;
        order_[at].end = uint32_t(values_.size());
        children_[at] = {at, left, right};
        return true;
    }

    uint32_t slot(int32_t feature, bool left) {
        uint32_t& slot = slot_of_[std::size_t(feature) * 2 + left];
        if (!slot) {
            slot = uint32_t(f_.slots.size());
            f_.slots.push_back({uint32_t(feature), left ? -INFINITY : INFINITY});
        }
        return slot;
    }

    // Level by level, children beside each other: the first steps of all rows share their cache lines.
    void put_nodes() {
        const uint32_t root = uint32_t(f_.nodes.size());
        std::vector<int> level{0}, next;
        f_.nodes.push_back({});
        uint32_t at = root;
        while (!level.empty()) {
            next.clear();
            for (const int place : level) {
                if (place < 0) {
                    f_.nodes[at] = {values_[-1 - place], at - root};
                } else {
                    const uint32_t child = uint32_t(f_.nodes.size()) - root;
                    f_.nodes[at] = {order_[place].threshold, order_[place].slot << kChildBits | child};
                    f_.nodes.resize(f_.nodes.size() + 2);
                    next.push_back(children_[place].left);
                    next.push_back(children_[place].right);
                }
                at++;
            }
            level.swap(next);
        }
        f_.trees.push_back({root, uint32_t(target_), uint32_t(depth_)});
        shapes.push_back({order_, values_, uint32_t(target_)});
    }

    const ForestArrays& a_;
    Forest& f_;
    std::vector<uint8_t> split_seen_, leaf_seen_;
    std::vector<uint32_t> slot_of_;
    std::vector<Split> order_;
    std::vector<Place> children_;
    std::vector<float> values_;
    int32_t target_ = -1;
    int depth_ = 0;
};

// Bits of a word of leaves from `first` to `end`, in its own numbering.
static uint32_t bits(int64_t first, int64_t end) {
    first = first < 0 ? 0 : first > 32 ? 32 : first;
    end = end < 0 ? 0 : end > 32 ? 32 : end;
    const uint64_t all = ((uint64_t(1) << end) - 1) & ~((uint64_t(1) << first) - 1);
    return uint32_t(all);
}

static void put_segments(const std::vector<TreeReader::Shape>& shapes, Forest& f) {
    std::vector<float> table;
    for (const auto& shape : shapes) {
        const int words = int((shape.values.size() + 31) / 32);
        for (int w = words - 1; w >= 0; w--) {
            const uint32_t choices = uint32_t(f.choices.size());
            for (const auto& split : shape.splits) {
                const int64_t from = 32 * int64_t(w);
                const uint32_t left = bits(split.first - from, split.middle - from);
                const uint32_t right = bits(split.middle - from, split.end - from);
                if (!(left | right)) continue;
                f.choices.push_back({split.slot, split.threshold, left, right});
                if (left) f.entries.push_back({split.slot, split.threshold, ~left});
            }
            const uint32_t leaves = bits(0, int64_t(shape.values.size()) - 32 * int64_t(w));
            f.segments.push_back({choices, uint32_t(f.choices.size()), leaves, uint32_t(table.size()), shape.target,
                                  uint32_t(w == words - 1), uint32_t(w == 0)});
            f.entry_ends.push_back(uint32_t(f.entries.size()));
            f.leaves.push_back(leaves);
            for (std::size_t i = 32 * std::size_t(w); i < 32 * std::size_t(w) + 32; i++)
                table.push_back(i < shape.values.size() ? shape.values[i] : 0.0f);
        }
    }
    f.table.resize(table.size());
    std::memcpy(f.table.data, table.data(), table.size() * sizeof(float));
    f.choices.shrink_to_fit();
    f.entries.shrink_to_fit();
}

static std::unique_ptr<Model> forest_of(int level, const ForestArrays& a) {
    if (level < 0 || level > best_level() || a.width < 1 || a.targets < 1 || a.trees < 1 || a.splits < 1 || a.leaves < 1)
        return nullptr;
    std::unique_ptr<Model> model(new Model);
    model->level = level;
    model->width = uint32_t(a.width);
    model->targets = uint32_t(a.targets);
    model->forest.reset(new Forest);
    Forest& f = *model->forest;
    f.base.assign(a.base, a.base + a.targets);
    TreeReader reader(a, f);
    for (int32_t i = 0; i < a.trees; i++)
        if (!reader.read(a.roots[i])) return nullptr;
    if (!f.walked) put_segments(reader.shapes, f);
    f.nodes.shrink_to_fit();
    return model;
}

// Weights (outputs, inputs), of which `inputs[...]` belong to one group, in panels.
static void put_panels(const float* weights, std::size_t by_output, int outputs, const std::vector<uint32_t>& inputs,
                       uint32_t padded, int panel, float* to) {
    for (uint32_t first = 0; first < padded; first += panel)
        for (const uint32_t input : inputs)
            for (int o = 0; o < panel; o++) {
                const uint32_t output = first + o;
                *to++ = int(output) < outputs ? weights[output * by_output + input] : 0.0f;
            }
}

static void put_layer(const NetworkArrays& a, int i, uint32_t padded, int panel,
                      const std::vector<std::vector<uint32_t>>& inputs, Layer& layer) {
    std::size_t count = 0, at = 0;
    for (const auto& some : inputs) count += some.size();
    layer.weights.resize(count * padded);
    layer.bias.resize(padded);
    std::memcpy(layer.bias.data, a.layer_bias[i], a.outputs * sizeof(float));
    for (std::size_t g = 0; g < inputs.size(); g++) {
        layer.groups[g].inputs = uint32_t(inputs[g].size());
        layer.groups[g].weights = at;
        put_panels(a.layer_weight[i], count, a.outputs, inputs[g], padded, panel, layer.weights.data + at);
        at += inputs[g].size() * padded;
    }
}

// Embeddings once more for a row alone: columns of a group side by side.
static void put_across(Network& f) {
    const std::size_t groups = (f.numbers + kGroupColumns - 1) / kGroupColumns, waves = f.frequencies, chunks = f.chunks;
    f.frequency_across.assign(groups * waves * kAcross, 0.0f);
    f.mixing_across.assign(groups * chunks * waves * 8 * kAcross, 0.0f);
    f.shift_across.assign(groups * chunks * 4 * kAcross, 0.0f);
    for (std::size_t c = 0; c < f.numbers; c++) {
        const std::size_t group = c / kGroupColumns, lane = c % kGroupColumns;
        for (std::size_t k = 0; k < waves; k++)
            f.frequency_across[(group * waves + k) * kAcross + lane] = f.frequency[c * waves + k];
        for (std::size_t i = 0; i < chunks * waves * 8; i++)
            f.mixing_across[(group * chunks * waves * 8 + i) * kAcross + lane] = f.mixing[c * chunks * waves * 8 + i];
        for (std::size_t i = 0; i < chunks * 4; i++)
            f.shift_across[(group * chunks * 4 + i) * kAcross + lane] = f.shift[c * chunks * 4 + i];
    }
}

static std::unique_ptr<Model> network_of(int level, const NetworkArrays& a) {
    if (level < 0 || level > best_level() || a.width < 1 || a.columns < 1 || a.numbers < 0 || a.numbers > a.columns ||
        a.frequencies < 1 || a.embedding < 1 || a.embedding > kMostEmbedding || a.layers < 1 || a.outputs < 1)
        return nullptr;
    for (int32_t i = 0; i < a.columns; i++)
        if (a.column[i] < 0 || a.column[i] >= a.width || !(a.scale[i] > 0) || !std::isfinite(a.mean[i])) return nullptr;
    for (int32_t i = 0; i < a.numbers * a.frequencies; i++)
        if (!(std::fabs(a.frequency[i]) * a.clip < 8192)) return nullptr;  // sine_cosine's range
    std::unique_ptr<Model> model(new Model);
    model->level = level;
    model->width = uint32_t(a.width);
    model->targets = 1;
    model->network.reset(new Network);
    Network& f = *model->network;
    const int panel = kernels_of(level).panel;
    const uint32_t embedding = uint32_t(a.embedding), chunks = (embedding + 3) / 4, waves = uint32_t(a.frequencies);
    f.columns.assign(a.column, a.column + a.columns);
    f.mean.assign(a.mean, a.mean + a.columns);
    f.scale.assign(a.scale, a.scale + a.columns);
    f.frequency.assign(a.frequency, a.frequency + a.numbers * a.frequencies);
    f.numbers = uint32_t(a.numbers);
    f.frequencies = waves;
    f.embedding = embedding;
    f.chunks = chunks;
    f.padded = uint32_t((a.outputs + panel - 1) / panel * panel);
    f.clip = a.clip;
    f.mixing.assign(std::size_t(f.numbers) * chunks * waves * 8, 0.0f);
    f.shift.assign(std::size_t(f.numbers) * chunks * 4, 0.0f);
    for (uint32_t c = 0; c < f.numbers; c++)
        for (uint32_t e = 0; e < embedding; e++) {
            const std::size_t place = std::size_t(c) * chunks + e / 4;
            f.shift[place * 4 + e % 4] = a.embed_bias[c * embedding + e];
            for (uint32_t k = 0; k < 2 * waves; k++)
                f.mixing[(place * waves + k % waves) * 8 + (k < waves ? 0 : 4) + e % 4] =
                    a.embed_weight[(std::size_t(c) * 2 * waves + k) * embedding + e];
        }
    f.mean.resize(a.columns + kAcross, 0.0f);
    f.scale.resize(a.columns + kAcross, 1.0f);
    put_across(f);
    f.layers = std::vector<Layer>(a.layers);
    // A layer's inputs in groups of `each`; in the first layer the embeddings of a column follow it.
    const auto put_groups = [&](int i, int count, int each) {
        std::vector<std::vector<uint32_t>> inputs;
        for (int first = 0; first < count; first += each) {
            const int end = first + each < count ? first + each : count;
            inputs.emplace_back();
            for (int input = first; input < end; input++) {
                inputs.back().push_back(input);
                for (uint32_t e = 0; i == 0 && input < a.numbers && e < embedding; e++)
                    inputs.back().push_back(a.columns + input * embedding + e);
            }
            f.layers[i].groups.push_back({uint32_t(first), uint32_t(end), 0, 0});
        }
        put_layer(a, i, f.padded, panel, inputs, f.layers[i]);
    };
    put_groups(0, a.columns, kGroupColumns);
    for (int i = 1; i < a.layers; i++) put_groups(i, a.outputs, kGroupInputs);
    f.out.resize(f.padded);
    std::memcpy(f.out.data, a.out_weight, a.outputs * sizeof(float));
    f.out_bias = a.out_bias;
    return model;
}
