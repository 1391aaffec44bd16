// Matrix products for one SIMD level. The right factor is stored in panels, [panel][inner][kPanel].

template <typename T>
static int64_t panels_of(int64_t columns) {
    return (columns + Simd<T>::kPanel - 1) / Simd<T>::kPanel;
}

// Packs rows [N, D], `step` apart, times a factor, as columns. A panel has room for `inner` numbers
// of each.
template <typename T>
static void pack_rows(const T* rows, int64_t step, int64_t N, int64_t D, T factor, T* panels,
                      int64_t inner) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    for (int64_t first = 0; first < N; first += kPanel) {
        const int64_t width = std::min(N - first, kPanel);
        const T* from[kPanel];
        for (int64_t i = 0; i < kPanel; ++i)
            from[i] = rows + (first + std::min(i, width - 1)) * step;
        T* __restrict__ to = panels + first * inner;
        for (int64_t d = 0; d < D; ++d, to += kPanel) {
            for (int64_t i = 0; i < kPanel; ++i) to[i] = from[i][d] * factor;
            for (int64_t i = width; i < kPanel; ++i) to[i] = 0;
        }
    }
}

// Packs rows [N, D] as they are.
template <typename T>
static void pack_columns(const T* rows, int64_t N, int64_t D, T* panels) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    for (int64_t first = 0; first < D; first += kPanel) {
        const int64_t width = std::min(D - first, kPanel);
        for (int64_t n = 0; n < N; ++n, panels += kPanel) {
            const T* const from = rows + n * D + first;
            for (int64_t i = 0; i < kPanel; ++i) panels[i] = i < width ? from[i] : T(0);
        }
    }
}

// Rows of a matrix: row n begins at base + n step, its entries are `stride` apart. Or the columns
// of a matrix in panels of `inner` rows.
template <typename T>
struct MatrixRows {
    const T* base;
    int64_t step, stride;
    const int64_t* index = nullptr;  // take these rows
    int64_t inner = 0;

    const T* row(int64_t n) const {
        constexpr int64_t kPanel = Simd<T>::kPanel;
        if (inner > 0) return base + n / kPanel * kPanel * inner + n % kPanel;
        return base + (index == nullptr ? n : index[n]) * step;
    }
};

// Where products are written: row n, panel p at base + n step + p panel.
template <typename T>
struct MatrixOut {
    T* base;
    int64_t step, panel;
};

constexpr int64_t kRowsAtOnce = 60;  // a multiple of every row tile

// out (+)= a B for the rows [first, end) of a.
template <typename T>
static void multiply_rows(const MatrixRows<T>& a, int64_t first, int64_t end, const T* panels,
                          int64_t inner, int64_t count, const MatrixOut<T>& out, bool add) {
    constexpr int64_t kPointers = 4 * kRowsAtOnce;
    const T* from[kPointers];
    T* to[kPointers];
    for (; first < end; first += kPointers) {
        const int64_t rows = std::min(end - first, kPointers);
        for (int64_t i = 0; i < rows; ++i) {
            from[i] = a.row(first + i);
            to[i] = out.base + (first + i) * out.step;
        }
        product(from, a.stride, rows, panels, inner, count, to, out.panel, add);
    }
}

// Calls some(first, end) for parts of N rows, on several threads if so many multiplications pay.
template <typename Some>
static void in_parts(int64_t N, double work, int threads, const Some& some) {
    constexpr double kPays = 1e6;
    const int64_t parts = (N + kRowsAtOnce - 1) / kRowsAtOnce;
    parallel_for(parts, work > kPays ? threads : 1, [&](int64_t part, int) {
        some(part * kRowsAtOnce, std::min(N, (part + 1) * kRowsAtOnce));
    });
}

// out (+)= a B for N rows of a.
template <typename T>
static void multiply(const MatrixRows<T>& a, int64_t N, const T* panels, int64_t inner,
                     int64_t columns, const MatrixOut<T>& out, int threads, bool add = false) {
    in_parts(N, double(N) * double(inner * columns), threads, [&](int64_t first, int64_t end) {
        multiply_rows(a, first, end, panels, inner, panels_of<T>(columns), out, add);
    });
}

// The lower triangle of such a product, N by N; entries above the diagonal may be written too.
template <typename T>
static void multiply_lower(const MatrixRows<T>& a, int64_t N, const T* panels, int64_t inner,
                           const MatrixOut<T>& out, int threads, bool add) {
    in_parts(N, double(N) * double(N * inner), threads, [&](int64_t first, int64_t end) {
        multiply_rows(a, first, end, panels, inner, panels_of<T>(end), out, add);
    });
}

// Removes the gaps between rows of `columns` numbers that are `step` apart.
template <typename T>
static void close_gaps(T* x, int64_t rows, int64_t columns, int64_t step) {
    if (step == columns) return;
    for (int64_t i = 1; i < rows; ++i) {
        __builtin_memmove(x + i * columns, x + i * step, sizeof(T) * columns);
    }
}

// out [N, columns] = a B, without gaps; `out` has room for whole panels.
template <typename T>
static void multiply_closed(const T* a, int64_t a_step, int64_t N, const T* panels, int64_t inner,
                            int64_t columns, T* out, int threads) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t step = round_up(columns, kPanel);
    multiply<T>({a, a_step, 1}, N, panels, inner, columns, {out, step, kPanel}, threads);
    close_gaps(out, N, columns, step);
}

// --- Cholesky factors and substitution -----------------------------------------------------------
//
// In the blocks of common/adaptive.h, so that nearly all work is matrix products.

// The lower triangle of a symmetric block becomes the inverse of its Cholesky factor; above it, zero.
template <typename T>
static void invert_block(T* block, int64_t step) {
    T a[kFactorBlock][kFactorBlock];
    for (int64_t i = 0; i < kFactorBlock; ++i) {
        for (int64_t j = 0; j <= i; ++j) a[i][j] = a[j][i] = block[i * step + j];
    }
    // Elimination: after step k, the columns up to k hold the inverse.
    for (int64_t k = 0; k < kFactorBlock; ++k) {
        T* __restrict__ pivot = a[k];
        const T scale = 1 / std::sqrt(pivot[k]);
        pivot[k] = 1;
        for (int64_t j = 0; j < kFactorBlock; ++j) pivot[j] *= scale;
        for (int64_t i = k + 1; i < kFactorBlock; ++i) {
            T* __restrict__ row = a[i];
            const T factor = pivot[i];
            row[k] = 0;
            for (int64_t j = 0; j < kFactorBlock; ++j) row[j] -= factor * pivot[j];
        }
    }
    for (int64_t i = 0; i < kFactorBlock; ++i) {
        for (int64_t j = 0; j < kFactorBlock; ++j) block[i * step + j] = j <= i ? a[i][j] : T(0);
    }
}

// Rows [N, step] times L^-T, in place, block after block of columns: the two parts of such a step,
// the first before the diagonal block of L is known.
template <typename T>
struct Substitution {
    static constexpr int64_t kPanel = Simd<T>::kPanel;
    const T* factor;  // [M', M']
    int64_t columns;  // M'
    T* panels;        // [kFactorBlock, M'] scratch
    int threads;

    void subtract(T* rows, int64_t step, int64_t N, int64_t first) const {
        pack_rows(factor + first * columns, columns, kFactorBlock, first, T(-1), panels, first);
        multiply<T>({rows, step, 1}, N, panels, first, kFactorBlock, {rows + first, step, kPanel},
                    threads, true);
    }

    void invert(T* rows, int64_t step, int64_t N, int64_t first) const {
        pack_rows(factor + first * (columns + 1), columns, kFactorBlock, kFactorBlock, T(1), panels,
                  kFactorBlock);
        in_parts(N, double(N * kFactorBlock * kFactorBlock), threads, [&](int64_t at, int64_t end) {
            T given[kRowsAtOnce * kFactorBlock];
            T* const to = rows + at * step + first;
            for (int64_t i = 0; i < end - at; ++i) {
                std::copy_n(to + i * step, kFactorBlock, given + i * kFactorBlock);
            }
            for (int64_t j = 0; j < kFactorBlock; j += kPanel) {  // the inverse is triangular
                multiply_rows<T>({given, kFactorBlock, 1}, 0, end - at, panels + j * kFactorBlock,
                                 j + kPanel, 1, {to + j, step, kPanel}, false);
            }
        });
    }
};

// Factors the lower triangle of a matrix [M', M'] that is the unit matrix from M on, as in
// common/adaptive.h.
template <typename T>
static void factorise(T* a, int64_t M, const Substitution<T>& by) {
    const int64_t columns = by.columns;
    for (int64_t first = 0; first < M && !interrupted(); first += kFactorBlock) {
        const int64_t below = first + kFactorBlock;
        by.subtract(a + first * columns, columns, M - first, first);
        invert_block(a + first * (columns + 1), columns);
        if (below < M) by.invert(a + below * columns, columns, M - below, first);
    }
}

// Rows [N, step] become their products with L^-T. Those of the unit matrix are zero at first.
template <typename T>
static void substitute(T* rows, int64_t step, int64_t N, const Substitution<T>& by,
                       bool unit = false) {
    for (int64_t first = 0; first < by.columns && !interrupted(); first += kFactorBlock) {
        const int64_t count = unit ? std::min(N, first + kFactorBlock) : N;
        by.subtract(rows, step, count, first);
        by.invert(rows, step, count, first);
    }
}
