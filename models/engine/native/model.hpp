// What the kernels read: forests and networks laid out for them, and the columns of a batch that say nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace kernelcast {

constexpr int kForestRows = 64;   // rows of a batch that forests take together: four AVX-512 registers
constexpr int kThinnedRows = 512;  // from so many rows on, splits that a batch takes alike are left out first
constexpr int kNetworkRows = 80;  // and networks: whole vectors of any width
constexpr int kFewRows = 10;      // rows up to which networks take them one by one, inputs of 0 left out
constexpr int kMostEmbedding = 64;
constexpr int kGroupColumns = 8;  // columns whose part of a network's first layer is one sum
constexpr int kGroupInputs = 40;  // inputs of a hidden layer that are one sum
constexpr int kMostInputs = kGroupColumns * (1 + kMostEmbedding);
constexpr int kAcross = 16;       // room for the columns of a group side by side, whole vectors of any width
constexpr int kMostWords = 8;     // trees of more than 32 times so many leaves are walked
constexpr int kChildBits = 18;     // of a node: trees of so many nodes, and 14 bits for columns
constexpr int kWalkedTrees = 8;   // trees walked side by side

// A vector of zeros on cache lines, which nothing but the kernels touch.
template <class T>
struct Aligned {
    T* data = nullptr;
    std::size_t size = 0;
    Aligned() = default;
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    ~Aligned() { release(); }
    void resize(std::size_t n) {
        release();
        data = static_cast<T*>(::operator new(n * sizeof(T) + 64, std::align_val_t(64)));
        size = n;
        for (std::size_t i = 0; i < n; i++) data[i] = T();
    }
    // Room for n, whatever it holds.
    T* room(std::size_t n) {
        if (size < n) resize(n);
        return data;
    }

  private:
    void release() {
        if (data) ::operator delete(data, std::align_val_t(64));
        data = nullptr;
        size = 0;
    }
};

// A column as splits see it: with what stands for a missing value, so that `x >= threshold` is the whole of a split.
struct Slot {
    uint32_t column;
    float missing;  // -inf goes left of every threshold, +inf right
};

// A split within 32 leaves of its tree: rows right of it can no longer end in the leaves that `left` keeps out.
struct Entry {
    uint32_t slot;
    float threshold;
    uint32_t keep;
};

// A split as it is thinned out for a batch: the leaves on its two sides.
struct Choice {
    uint32_t slot;
    float threshold;
    uint32_t left, right;
};

// 32 leaves of a tree. Those of a tree follow each other, the last leaves first.
struct Segment {
    uint32_t choices, choices_end;
    uint32_t leaves;   // bits of leaves there are
    uint32_t table;    // first of 32 values
    uint32_t target;
    uint32_t starts;   // 1: the first segment of a tree
    uint32_t ends;     // 1: the last one
};

// A node for walking, eight to a cache line: right child at the left one + 1. A leaf reads slot 0, which is no number and so
// left of everything, and is its own left child; what it holds is its value.
struct Node {
    float threshold;
    uint32_t link;  // slot, and the left child's place after the tree's root
    uint32_t slot() const { return link >> kChildBits; }
    uint32_t child() const { return link & ((1u << kChildBits) - 1); }
};

struct Tree {
    uint32_t root, target, depth;
};

struct Forest {
    std::vector<Slot> slots;  // slot 0 is NaN in every row, for leaves
    std::vector<Choice> choices;
    std::vector<Entry> entries;
    std::vector<uint32_t> entry_ends, leaves;  // of each segment
    std::vector<Segment> segments;
    Aligned<float> table;
    std::vector<Node> nodes;
    std::vector<Tree> trees;
    std::vector<float> base;
    bool walked = false;
};

// Inputs of the first layer that come from some columns, whose part of it is one sum: order and rounding of the
// answer are then the same whether they are the same in all rows, and summed once, or not.
struct Group {
    uint32_t first, end;         // columns, in the network's order
    uint32_t inputs;             // of the layer
    std::size_t weights;         // where its panels start
};

struct Layer {
    std::vector<Group> groups;   // hidden layers: inputs only
    Aligned<float> weights;      // by group and panel: (inputs, panel width)
    Aligned<float> bias;
};

struct Network {
    std::vector<uint32_t> columns;
    uint32_t numbers = 0, frequencies = 0, embedding = 0, chunks = 0, padded = 0;
    std::vector<float> mean, scale;
    float clip = 0;
    std::vector<float> frequency;   // (numbers, frequencies)
    std::vector<float> mixing;      // (numbers, chunks, frequencies, sine and cosine, 4)
    std::vector<float> shift;       // (numbers, chunks, 4)
    // The same for a row alone, by group, columns side by side: (frequencies, kAcross); (chunks, frequencies, 8, kAcross);
    // (chunks, 4, kAcross). Mean and scale are as long as the last of it reads.
    std::vector<float> frequency_across, mixing_across, shift_across;
    std::vector<Layer> layers;
    Aligned<float> out;
    float out_bias = 0;
};

struct Model {
    int level = 0;
    uint32_t width = 0, targets = 0;
    std::unique_ptr<Forest> forest;
    std::unique_ptr<Network> network;
};

// The range of every column of a batch.
struct Ranges {
    std::vector<float> low, high;
    std::vector<uint32_t> missing;  // how many rows lack it
    bool known = false;
    int64_t rows = 0;
    bool same(uint32_t column) const {
        if (!known) return rows == 1;
        return missing[column] == 0 ? low[column] == high[column] : missing[column] == rows;
    }
};

// Memory of one thread.
struct Scratch {
    Aligned<float> floats, constants, group, total, hidden;
    std::vector<Entry> entries;
    std::vector<uint32_t> entry_ends, leaves;
    std::vector<float> low, high;
    std::vector<uint8_t> same;
};

struct Kernels {
    int panel;  // outputs of a layer that are computed together
    void (*forest)(const Forest&, const float* x, int64_t n, int64_t width, const Ranges&, Scratch&, double* out);
    void (*network)(const Network&, const float* x, int64_t n, int64_t width, const Ranges&, Scratch&, double* out);
};

}  // namespace kernelcast
