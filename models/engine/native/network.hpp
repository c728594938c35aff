// Networks; part of arithmetic.hpp, which see.

struct SineCosine {
    Floats sine, cosine;
};

// Cody and Waite's reduction by pi/2 in three parts and the polynomials of Cephes' sinf and cosf (Moshier, single/sinf.c):
// absolute error below 2e-7 for |x| < 8192, which engine.cpp makes sure of.
static inline SineCosine sine_cosine(Floats x) {
    const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, its last bits
    const Floats shifted = fma(x, all(0.636619772f), magic);
    const Ints quadrant = (Ints)shifted;
    const Floats turns = shifted - magic;
    Floats r = fma(turns, all(-1.5703125f), x);
    r = fma(turns, all(-4.837512969970703125e-4f), r);
    r = fma(turns, all(-7.54978995489188216e-8f), r);
    const Floats z = r * r;
    Floats s = fma(z, all(-1.9515295891e-4f), all(8.3321608736e-3f));
    s = fma(z, s, all(-1.6666654611e-1f));
    s = fma(z * r, s, r);
    Floats c = fma(z, all(2.443315711809948e-5f), all(-1.388731625493765e-3f));
    c = fma(z, c, all(4.166664568298827e-2f));
    c = fma(z * z, c, fma(z, all(-0.5f), all(1.0f)));
    const Ints odd = (quadrant & 1) != 0;
    const Ints sign = (quadrant & 2) << 30, other = ((quadrant + 1) & 2) << 30;
    return {(Floats)((Ints)(odd ? c : s) ^ sign), (Floats)((Ints)(odd ? s : c) ^ other)};
}

static inline Floats within(Floats v, float clip) {
    v = v < -clip ? all(-clip) : v;
    return v > clip ? all(clip) : v;
}

// A column of `rows` rows standardised: missing values are the mean, all stay within the limits.
static inline void standardise(const Network& f, uint32_t c, const float* x, int64_t width, int rows, int padded, float* to) {
    const float* from = x + f.columns[c];
    const float mean = f.mean[c], scale = f.scale[c], clip = f.clip;
    int i = 0;
    for (; i < rows; i++) {
        const float given = from[i * width];
        to[i] = given == given ? given : mean;
    }
    for (; i < padded; i++) to[i] = mean;
    for (i = 0; i < padded; i += kLanes) store(to + i, within((load(to + i) - all(mean)) / all(scale), clip));
}

// One number for all lanes, or one for each, `across` columns.
template <bool across>
static inline Floats weight(const float* mix, int o) {
    if constexpr (across) return load(mix + o * kAcross);
    else return all(mix[o]);
}

// What a wave adds to four outputs, by its eight weights.
template <bool across>
static inline void mix_in(const SineCosine& wave, const float* mix, Floats (&mixed)[4]) {
    KC_UNROLL
    for (int o = 0; o < 4; o++) mixed[o] = fma(wave.sine, weight<across>(mix, o), mixed[o]);
    KC_UNROLL
    for (int o = 0; o < 4; o++) mixed[o] = fma(wave.cosine, weight<across>(mix, 4 + o), mixed[o]);
}

// The group's inputs of the first layer, one after the other, `stride` rows each.
static void embed(const Network& f, const Group& g, const float* x, int64_t width, int rows, float* to) {
    constexpr int stride = kNetworkRows;
    const int padded = (rows + kLanes - 1) / kLanes * kLanes;
    const uint32_t frequencies = f.frequencies;
    for (uint32_t c = g.first; c < g.end; c++) {
        standardise(f, c, x, width, rows, padded, to);
        const float* given = to;
        to += stride;
        if (c >= f.numbers) continue;
        for (uint32_t chunk = 0; chunk < f.chunks; chunk++) {
            const std::size_t place = std::size_t(c) * f.chunks + chunk;
            const uint32_t outputs = f.embedding - 4 * chunk < 4 ? f.embedding - 4 * chunk : 4;
            for (int i = 0; i < padded; i += kLanes) {
                const Floats v = load(given + i);
                const float* shift = &f.shift[place * 4];
                const float* mix = &f.mixing[place * frequencies * 8];
                const float* frequency = &f.frequency[std::size_t(c) * frequencies];
                Floats mixed[4] = {all(shift[0]), all(shift[1]), all(shift[2]), all(shift[3])};
                for (uint32_t k = 0; k < frequencies; k++, mix += 8)
                    mix_in<false>(sine_cosine(v * all(frequency[k])), mix, mixed);
                for (uint32_t o = 0; o < outputs; o++) store(to + o * stride + i, relu(mixed[o]));
            }
            to += outputs * stride;
        }
    }
}

// The same of one row, inputs beside each other: columns in lanes, else most lanes would be empty.
static void embed_one(const Network& f, const Group& g, const float* x, float* to) {
    alignas(64) float given[kAcross], mixed_in[4 * kAcross];
    const std::size_t group = g.first / kGroupColumns, waves = f.frequencies;
    const uint32_t count = g.end - g.first;
    const uint32_t numbers = f.numbers <= g.first ? 0 : f.numbers < g.end ? f.numbers - g.first : count;
    for (uint32_t i = 0; i < kAcross; i++) {
        const float v = i < count ? x[f.columns[g.first + i]] : 0.0f;
        given[i] = v == v ? v : f.mean[g.first + i];
    }
    for (int i = 0; i < kGroupColumns; i += kLanes)
        store(given + i, within((load(given + i) - load(&f.mean[g.first + i])) / load(&f.scale[g.first + i]), f.clip));
    const uint32_t each = 1 + f.embedding;
    for (uint32_t i = 0; i < count; i++) to[i < numbers ? i * each : numbers * each + i - numbers] = given[i];
    for (uint32_t chunk = 0; numbers && chunk < f.chunks; chunk++) {
        const std::size_t place = group * f.chunks + chunk;
        const uint32_t outputs = f.embedding - 4 * chunk < 4 ? f.embedding - 4 * chunk : 4;
        for (int i = 0; i < kGroupColumns; i += kLanes) {
            const Floats v = load(given + i);
            const float* shift = &f.shift_across[place * 4 * kAcross + i];
            const float* mix = &f.mixing_across[place * waves * 8 * kAcross + i];
            const float* frequency = &f.frequency_across[group * waves * kAcross + i];
            Floats mixed[4];
            KC_UNROLL
            for (int o = 0; o < 4; o++) mixed[o] = load(shift + o * kAcross);
            for (std::size_t k = 0; k < waves; k++, mix += 8 * kAcross)
                mix_in<true>(sine_cosine(v * load(frequency + k * kAcross)), mix, mixed);
            KC_UNROLL
            for (int o = 0; o < 4; o++) store(mixed_in + o * kAcross + i, relu(mixed[o]));
        }
        for (uint32_t c = 0; c < numbers; c++)
            for (uint32_t o = 0; o < outputs; o++) to[c * each + 1 + 4 * chunk + o] = mixed_in[o * kAcross + c];
    }
}

// total += h times one panel of weights, for R rows: a sum from 0 of its own, whatever R is.
template <int R>
static inline void tile(const float* h, std::size_t by_row, std::size_t by_input, uint32_t inputs, const float* weights,
                        float* total, std::size_t by_total) {
    Floats sum[R][kVectors];
    KC_UNROLL
    for (int r = 0; r < R; r++)
        KC_UNROLL
        for (int v = 0; v < kVectors; v++) sum[r][v] = Floats{};
    for (uint32_t k = 0; k < inputs; k++, weights += kPanel, h += by_input) {
        Floats w[kVectors];
        KC_UNROLL
        for (int v = 0; v < kVectors; v++) w[v] = load(weights + v * kLanes);
        KC_UNROLL
        for (int r = 0; r < R; r++) {
            const Floats one = all(h[r * by_row]);
            KC_UNROLL
            for (int v = 0; v < kVectors; v++) sum[r][v] = fma(one, w[v], sum[r][v]);
        }
    }
    KC_UNROLL
    for (int r = 0; r < R; r++)
        KC_UNROLL
        for (int v = 0; v < kVectors; v++) {
            float* to = total + r * by_total + v * kLanes;
            store(to, load(to) + sum[r][v]);
        }
}

// One row: weights of inputs that are 0, half of them and more, are not read; to add 0 times them would change nothing.
static void multiply_one(const float* h, uint32_t inputs, const float* weights, uint32_t padded, float* total) {
    uint32_t some[kMostInputs], count = 0;
    for (uint32_t k = 0; k < inputs; k++) {
        some[count] = k;
        count += h[k] != 0.0f;
    }
    for (uint32_t panel = 0; panel < padded; panel += kPanel, weights += std::size_t(inputs) * kPanel) {
        Floats sum[kVectors];
        KC_UNROLL
        for (int v = 0; v < kVectors; v++) sum[v] = Floats{};
        for (uint32_t i = 0; i < count; i++) {
            const float* w = weights + std::size_t(some[i]) * kPanel;
            const Floats one = all(h[some[i]]);
            KC_UNROLL
            for (int v = 0; v < kVectors; v++) sum[v] = fma(one, load(w + v * kLanes), sum[v]);
        }
        KC_UNROLL
        for (int v = 0; v < kVectors; v++) {
            float* to = total + panel + v * kLanes;
            store(to, load(to) + sum[v]);
        }
    }
}

static void multiply(const float* h, std::size_t by_row, std::size_t by_input, int rows, uint32_t inputs,
                     const float* weights, uint32_t padded, float* total) {
    for (uint32_t panel = 0; panel < padded; panel += kPanel, weights += std::size_t(inputs) * kPanel) {
        int r = 0;
        for (; r + kTile <= rows; r += kTile)
            tile<kTile>(h + r * by_row, by_row, by_input, inputs, weights, total + r * std::size_t(padded) + panel, padded);
        const float* rest = h + r * by_row;
        float* to = total + r * std::size_t(padded) + panel;
        switch (rows - r) {
            case 1: tile<1>(rest, by_row, by_input, inputs, weights, to, padded); break;
            case 2: tile<2>(rest, by_row, by_input, inputs, weights, to, padded); break;
            case 3: tile<3>(rest, by_row, by_input, inputs, weights, to, padded); break;
            case 4: tile<4>(rest, by_row, by_input, inputs, weights, to, padded); break;
            case 5: tile<5>(rest, by_row, by_input, inputs, weights, to, padded); break;
            default: break;
        }
    }
}

static void set_rows(const float* bias, int rows, uint32_t padded, float* total) {
    for (int r = 0; r < rows; r++)
        for (uint32_t i = 0; i < padded; i += kLanes) store(total + r * std::size_t(padded) + i, load(bias + i));
}

static void run_network(const Network& f, const float* x, int64_t n, int64_t width, const Ranges& ranges, Scratch& scratch,
                        double* out) {
    const uint32_t padded = f.padded;
    const Layer& first = f.layers[0];
    const std::size_t groups = first.groups.size();
    float* buffer = scratch.group.room(std::size_t(kGroupColumns) * (1 + f.embedding) * kNetworkRows);
    float* total = scratch.total.room(std::size_t(kNetworkRows) * padded);
    float* hidden = scratch.hidden.room(std::size_t(kNetworkRows) * padded);
    float* constants = scratch.constants.room(groups * padded);
    scratch.same.assign(groups, 0);
    for (std::size_t g = 0; g < groups && n > 1; g++) {
        const Group& group = first.groups[g];
        bool same = true;
        for (uint32_t c = group.first; c < group.end && same; c++) same = ranges.same(f.columns[c]);
        if (!same) continue;
        scratch.same[g] = 1;
        float* sum = constants + g * padded;
        for (uint32_t i = 0; i < padded; i++) sum[i] = 0.0f;
        embed_one(f, group, x, buffer);
        multiply_one(buffer, group.inputs, first.weights.data + group.weights, padded, sum);
    }
    for (int64_t row = 0; row < n; row += kNetworkRows) {
        const int rows = int(n - row < kNetworkRows ? n - row : kNetworkRows);
        set_rows(first.bias.data, rows, padded, total);
        for (std::size_t g = 0; g < groups; g++) {
            const Group& group = first.groups[g];
            if (scratch.same[g]) {
                const float* sum = constants + g * padded;
                for (int r = 0; r < rows; r++) {
                    float* to = total + r * std::size_t(padded);
                    for (uint32_t i = 0; i < padded; i += kLanes) store(to + i, load(to + i) + load(sum + i));
                }
                continue;
            }
            if (rows <= kFewRows) {
                for (int r = 0; r < rows; r++) {
                    embed_one(f, group, x + (row + r) * width, buffer);
                    multiply_one(buffer, group.inputs, first.weights.data + group.weights, padded, total + r * std::size_t(padded));
                }
                continue;
            }
            embed(f, group, x + row * width, width, rows, buffer);
            multiply(buffer, 1, kNetworkRows, rows, group.inputs, first.weights.data + group.weights, padded, total);
        }
        const std::size_t count = std::size_t(rows) * padded;
        for (std::size_t i = 0; i < count; i += kLanes) store(hidden + i, relu(load(total + i)));
        for (std::size_t l = 1; l < f.layers.size(); l++) {
            const Layer& layer = f.layers[l];
            set_rows(layer.bias.data, rows, padded, total);
            for (const Group& group : layer.groups) {
                const float *h = hidden + group.first, *weights = layer.weights.data + group.weights;
                for (int r = 0; r < rows && rows <= kFewRows; r++)
                    multiply_one(h + r * std::size_t(padded), group.inputs, weights, padded, total + r * std::size_t(padded));
                if (rows > kFewRows) multiply(h, padded, 1, rows, group.inputs, weights, padded, total);
            }
            for (std::size_t i = 0; i < count; i += kLanes) store(hidden + i, load(hidden + i) + relu(load(total + i)));
        }
        for (int r = 0; r < rows; r++) {
            Floats sum = Floats{};
            for (uint32_t i = 0; i < padded; i += kLanes)
                sum = fma(load(hidden + r * std::size_t(padded) + i), load(f.out.data + i), sum);
            float answer = f.out_bias;
            for (int i = 0; i < kLanes; i++) answer += sum[i];
            out[row + r] = answer;
        }
    }
}
