// Tree ensembles; part of arithmetic.hpp, which see.

// QuickScorer (Lucchese et al., SIGIR 2015) over rows in lanes, as RapidScorer (Ye et al., KDD 2018) and V-QuickScorer have it:
// every split to the right of which a row lies takes the leaves on its left away; the first leaf that is left is the row's.
template <int R>
static inline void score(const Forest& f, const Entry* entries, const uint32_t* ends, const uint32_t* leaves,
                         const float* columns, float* sums) {
    Floats value[R] = {};
    uint32_t at = 0;
    for (std::size_t s = 0; s < f.segments.size(); s++) {
        const Segment& segment = f.segments[s];
        const float* table = f.table.data + segment.table;
        const uint32_t end = ends[s];
        if (segment.starts)
            KC_UNROLL
            for (int r = 0; r < R; r++) value[r] = Floats{};
#if defined(KC_AVX512)
        __m512i left[R];
        KC_UNROLL
        for (int r = 0; r < R; r++) left[r] = _mm512_set1_epi32((int)leaves[s]);
        for (; at < end; at++) {
            const Entry& e = entries[at];
            const float* column = columns + std::size_t(e.slot) * (R * kLanes);
            const __m512 threshold = _mm512_set1_ps(e.threshold);
            const __m512i keep = _mm512_set1_epi32((int)e.keep);
            KC_UNROLL
            for (int r = 0; r < R; r++) {
                const __mmask16 right = _mm512_cmp_ps_mask(_mm512_load_ps(column + r * kLanes), threshold, _CMP_GE_OQ);
                left[r] = _mm512_mask_and_epi32(left[r], right, left[r], keep);
            }
        }
        const __m512 low = _mm512_load_ps(table), high = _mm512_load_ps(table + 16);
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            const __m512i first = _mm512_and_si512(left[r], _mm512_sub_epi32(_mm512_setzero_si512(), left[r]));
            const __m512i place = _mm512_sub_epi32(_mm512_set1_epi32(31), _mm512_lzcnt_epi32(first));
            const __m512 found = _mm512_permutex2var_ps(low, place, high);
            const __mmask16 some = _mm512_test_epi32_mask(left[r], left[r]);
            value[r] = (Floats)_mm512_mask_mov_ps((__m512)value[r], some, found);
        }
#else
        Ints left[R];
        KC_UNROLL
        for (int r = 0; r < R; r++) left[r] = (int32_t)leaves[s] - Ints{};
        for (; at < end; at++) {
            const Entry& e = entries[at];
            const float* column = columns + std::size_t(e.slot) * (R * kLanes);
            const Floats threshold = all(e.threshold);
            const Ints keep = (int32_t)e.keep - Ints{};
            KC_UNROLL
            for (int r = 0; r < R; r++) left[r] &= keep | (Ints)(*(const Floats*)(column + r * kLanes) < threshold);
        }
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            // The place of the lowest bit is the exponent of the power of two it is.
            const Ints first = (Ints)((Words)left[r] & (Words{} - (Words)left[r]));
            const Ints power = (Ints)__builtin_convertvector(first, Floats);
            const Ints place = (((power & 0x7fffffff) >> 23) - 127) & 31;
            Floats found;
#if defined(KC_AVX2)
            found = (Floats)_mm256_i32gather_ps(table, (__m256i)place, 4);
#else
            for (int i = 0; i < kLanes; i++) found[i] = table[place[i]];
#endif
            value[r] = left[r] != 0 ? found : value[r];
        }
#endif
        if (segment.ends) {
            float* sum = sums + std::size_t(segment.target) * (R * kLanes);
            KC_UNROLL
            for (int r = 0; r < R; r++) store(sum + r * kLanes, load(sum + r * kLanes) + value[r]);
        }
    }
}

// Splits that all rows of a batch take alike, and those no row comes to, left out: the leaves found stay the same.
static void thin_out(const Forest& f, const Ranges& ranges, Scratch& scratch) {
    const std::size_t slots = f.slots.size();
    scratch.low.resize(slots);
    scratch.high.resize(slots);
    for (std::size_t s = 0; s < slots; s++) {
        const Slot& slot = f.slots[s];
        const uint32_t lacking = s ? ranges.missing[slot.column] : 0;
        float low = s ? ranges.low[slot.column] : 0.0f, high = s ? ranges.high[slot.column] : 0.0f;
        if (lacking) {
            low = slot.missing < low ? slot.missing : low;
            high = slot.missing > high ? slot.missing : high;
        }
        scratch.low[s] = low;
        scratch.high[s] = high;
    }
    scratch.entries.resize(f.choices.size() + 1);
    scratch.entry_ends.resize(f.segments.size());
    scratch.leaves.resize(f.segments.size());
    Entry* to = scratch.entries.data();
    uint32_t count = 0;
    for (std::size_t s = 0; s < f.segments.size(); s++) {
        uint32_t leaves = f.segments[s].leaves;
        for (uint32_t c = f.segments[s].choices; c < f.segments[s].choices_end; c++) {
            const Choice& choice = f.choices[c];
            const uint32_t all_right = 0u - uint32_t(scratch.low[choice.slot] >= choice.threshold);
            const uint32_t all_left = 0u - uint32_t(scratch.high[choice.slot] < choice.threshold);
            to[count] = {choice.slot, choice.threshold, ~choice.left};
            count += ((all_right | all_left) == 0) & ((leaves & choice.left) != 0);
            leaves &= ~((all_right & choice.left) | (all_left & choice.right));
        }
        scratch.entry_ends[s] = count;
        scratch.leaves[s] = leaves;
    }
}

// `rows` rows of `x` by slot, `stride` to a slot; rows that are not there are zeros.
static void by_slot(const Forest& f, const float* x, int64_t rows, int64_t width, int stride, float* columns) {
    for (int i = 0; i < stride; i++) columns[i] = NAN;
    for (std::size_t s = 1; s < f.slots.size(); s++) {
        const float* from = x + f.slots[s].column;
        const float missing = f.slots[s].missing;
        float* to = columns + s * stride;
        int i = 0;
        for (; i < rows; i++) {
            const float v = from[i * width];
            to[i] = v == v ? v : missing;
        }
        for (; i < stride; i++) to[i] = 0.0f;
    }
}

static void give(const Forest& f, const float* sums, int stride, int64_t rows, double* out) {
    const std::size_t targets = f.base.size();
    for (int64_t i = 0; i < rows; i++)
        for (std::size_t t = 0; t < targets; t++) out[i * targets + t] = sums[t * stride + i] + f.base[t];
}

template <int R>
static void score_block(const Forest& f, const Entry* entries, const uint32_t* ends, const uint32_t* leaves, const float* x,
                        int64_t rows, int64_t width, Scratch& scratch, double* out) {
    constexpr int stride = R * kLanes;
    const std::size_t targets = f.base.size();
    float* columns = scratch.floats.room((f.slots.size() + targets) * kForestRows);
    float* sums = columns + f.slots.size() * stride;
    by_slot(f, x, rows, width, stride, columns);
    for (std::size_t i = 0; i < targets * stride; i++) sums[i] = 0.0f;
    score<R>(f, entries, ends, leaves, columns, sums);
    give(f, sums, stride, rows, out);
}

// Rows one by one, several trees side by side: one walk alone would wait for memory at every step.
static void walk(const Forest& f, const float* x, int64_t n, int64_t width, Scratch& scratch, double* out) {
    const std::size_t targets = f.base.size(), trees = f.trees.size();
    float* values = scratch.floats.room(f.slots.size() + targets);
    float* sums = values + f.slots.size();
    const Node* nodes = f.nodes.data();
    for (int64_t row = 0; row < n; row++) {
        by_slot(f, x + row * width, 1, width, 1, values);
        for (std::size_t t = 0; t < targets; t++) sums[t] = 0.0f;
        for (std::size_t first = 0; first < trees; first += kWalkedTrees) {
            const int some = int(trees - first < kWalkedTrees ? trees - first : kWalkedTrees);
            const Node* roots[kWalkedTrees];
            uint32_t at[kWalkedTrees];
            uint32_t depth = 0;
            for (int i = 0; i < kWalkedTrees; i++) {
                const Tree& tree = f.trees[first + (i < some ? i : 0)];
                roots[i] = nodes + tree.root;
                at[i] = 0;
                depth = tree.depth > depth ? tree.depth : depth;
            }
            for (uint32_t step = 0; step < depth;) {
                uint32_t moved = 0;
                for (int twice = 0; twice < 2; twice++, step++) {
                    moved = 0;
                    for (int i = 0; i < kWalkedTrees; i++) {
                        const Node node = roots[i][at[i]];
                        const uint32_t next = node.child() + uint32_t(values[node.slot()] >= node.threshold);
                        moved |= next ^ at[i];
                        at[i] = next;
                    }
                }
                if (!moved) break;
            }
            for (int i = 0; i < some; i++) sums[f.trees[first + i].target] += roots[i][at[i]].threshold;
        }
        give(f, sums, 1, 1, out + row * targets);
    }
}

static void run_forest(const Forest& f, const float* x, int64_t n, int64_t width, const Ranges& ranges, Scratch& scratch,
                       double* out) {
    if (f.walked || n < kLanes / 2) return walk(f, x, n, width, scratch, out);
    const Entry* entries = f.entries.data();
    const uint32_t *ends = f.entry_ends.data(), *leaves = f.leaves.data();
    // Thinning out reads every split once and costs as much as some blocks of rows.
    if (ranges.known && n >= kThinnedRows) {
        thin_out(f, ranges, scratch);
        entries = scratch.entries.data();
        ends = scratch.entry_ends.data();
        leaves = scratch.leaves.data();
    }
    const std::size_t targets = f.base.size();
    for (int64_t row = 0; row < n;) {
        const int64_t left = n - row;
        const float* from = x + row * width;
        double* to = out + row * targets;
        const auto block = left > 2 * kLanes ? score_block<4> : left > kLanes ? score_block<2> : score_block<1>;
        const int64_t most = left > 2 * kLanes ? 4 * kLanes : left > kLanes ? 2 * kLanes : kLanes;
        const int64_t rows = left < most ? left : most;
        block(f, entries, ends, leaves, from, rows, width, scratch, to);
        row += rows;
    }
}
