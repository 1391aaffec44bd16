// Cholesky factors and substitution for one SIMD level, in the blocks of common/likelihood.h, so that
// nearly all work is matrix products.

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
// common/likelihood.h.
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
