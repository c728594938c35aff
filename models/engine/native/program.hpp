// Straight-line programs over float64, which models/engine/program.py traces; opcodes are the places in its table.

enum class Op : int32_t {
    add, subtract, multiply, divide, maximum, minimum, log, log2, exp, sqrt, ceil, floor, negative,
    greater, greater_equal, less, less_equal, equal, not_equal, isnan, where,
};

struct Step {
    Op op;
    int32_t a, b, c;
};

// Slots: columns of the rows, columns of the categories, constants, then one per step.
struct Program {
    int64_t columns, numbers;
    std::vector<double> constants;
    std::vector<Step> steps;
    std::vector<int32_t> outputs;
    std::size_t slots() const { return columns + numbers + constants.size() + steps.size(); }
};

// What a program is run on; see `Program.run` in program.py.
struct Rows {
    int64_t n, given;  // rows, and rows of `columns`
    const double* columns;
    const int64_t* place;
    const double* numbers;
    const int64_t* code;
};

template <int L, class F>
static inline void each(double* to, F f) {
    for (int i = 0; i < L; i++) to[i] = f(i);
}

template <int L>
static void run_steps(const Program& p, double* slots) {
    double* to = slots + (p.slots() - p.steps.size()) * L;
    for (const Step& s : p.steps) {
        const double *a = slots + std::size_t(s.a) * L, *b = slots + std::size_t(s.b) * L, *c = slots + std::size_t(s.c) * L;
        switch (s.op) {
            case Op::add: each<L>(to, [=](int i) { return a[i] + b[i]; }); break;
            case Op::subtract: each<L>(to, [=](int i) { return a[i] - b[i]; }); break;
            case Op::multiply: each<L>(to, [=](int i) { return a[i] * b[i]; }); break;
            case Op::divide: each<L>(to, [=](int i) { return a[i] / b[i]; }); break;
            // As NumPy has it: what is not a number stays so.
            case Op::maximum: each<L>(to, [=](int i) { return a[i] >= b[i] || a[i] != a[i] ? a[i] : b[i]; }); break;
            case Op::minimum: each<L>(to, [=](int i) { return a[i] <= b[i] || a[i] != a[i] ? a[i] : b[i]; }); break;
            case Op::log: each<L>(to, [=](int i) { return std::log(a[i]); }); break;
            case Op::log2: each<L>(to, [=](int i) { return std::log2(a[i]); }); break;
            case Op::exp: each<L>(to, [=](int i) { return std::exp(a[i]); }); break;
            case Op::sqrt: each<L>(to, [=](int i) { return std::sqrt(a[i]); }); break;
            case Op::ceil: each<L>(to, [=](int i) { return std::ceil(a[i]); }); break;
            case Op::floor: each<L>(to, [=](int i) { return std::floor(a[i]); }); break;
            case Op::negative: each<L>(to, [=](int i) { return -a[i]; }); break;
            case Op::greater: each<L>(to, [=](int i) { return double(a[i] > b[i]); }); break;
            case Op::greater_equal: each<L>(to, [=](int i) { return double(a[i] >= b[i]); }); break;
            case Op::less: each<L>(to, [=](int i) { return double(a[i] < b[i]); }); break;
            case Op::less_equal: each<L>(to, [=](int i) { return double(a[i] <= b[i]); }); break;
            case Op::equal: each<L>(to, [=](int i) { return double(a[i] == b[i]); }); break;
            case Op::not_equal: each<L>(to, [=](int i) { return double(a[i] != b[i]); }); break;
            case Op::isnan: each<L>(to, [=](int i) { return double(a[i] != a[i]); }); break;
            case Op::where: each<L>(to, [=](int i) { return a[i] != 0.0 ? b[i] : c[i]; }); break;
        }
        to += L;
    }
}

// Rows `first` … `first + L`.
template <int L>
static void calculate(const Program& p, const Rows& rows, int64_t first, double* slots, double* out) {
    double* to = slots;
    for (int64_t j = 0; j < p.columns; j++, to += L) {
        const double* column = rows.columns + j * rows.given;
        each<L>(to, [=, &rows](int i) { return column[rows.place ? rows.place[first + i] : first + i]; });
    }
    for (int64_t j = 0; j < p.numbers; j++, to += L)
        each<L>(to, [=, &rows, &p](int i) { return rows.numbers[(rows.code ? rows.code[first + i] : 0) * p.numbers + j]; });
    for (const double constant : p.constants) {
        each<L>(to, [=](int) { return constant; });
        to += L;
    }
    run_steps<L>(p, slots);
    for (std::size_t j = 0; j < p.outputs.size(); j++)
        for (int i = 0; i < L; i++) out[j * rows.n + first + i] = slots[std::size_t(p.outputs[j]) * L + i];
}

// All rows; the first `read` outputs go to `x` as well, each into its column of a copy of its row's constants.
static void calculate_all(const Program& p, const Rows& rows, Aligned<double>& scratch, double* out, int64_t read,
                          const int64_t* position, int64_t width, const float* constants, float* x) {
    constexpr int kBlock = 8;
    double* slots = scratch.room(p.slots() * kBlock);
    int64_t row = 0;
    for (; row + kBlock <= rows.n; row += kBlock) calculate<kBlock>(p, rows, row, slots, out);
    for (; row < rows.n; row++) calculate<1>(p, rows, row, slots, out);
    for (row = 0; row < rows.n && x; row++, x += width) {
        std::memcpy(x, constants + (rows.code ? rows.code[row] : 0) * width, width * sizeof(float));
        for (int64_t j = 0; j < read; j++) x[position[j]] = float(out[j * rows.n + row]);
    }
}
